"""Observers, stores and clocks for the tests of the processing models: they tell what happened, or kill a run in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from cano import CheckpointRow, MemoryCheckpointStore, WorkflowObserver


class Crash(BaseException):
    """Ends a run like a `kill -9`: nothing is committed, compensated or cleared."""


class Recorder(WorkflowObserver):
    """Keeps every event with the name of its method; `on` calls a function at the first event of a name."""

    def __init__(self, **on: Callable[[Any], Any]) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.on = on

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__("_keep")(name) if name.startswith("on_") else super().__getattribute__(name)

    def _keep(self, name: str) -> Callable[[Any], None]:
        def told(event: Any) -> None:
            self.seen.append((name.removeprefix("on_"), event))
            react = self.on.pop(name.removeprefix("on_"), None)
            if react is not None:
                react(event)

        return told

    def of(self, name: str) -> list[Any]:
        """The events of one kind."""
        return [event for seen, event in self.seen if seen == name]


class DyingStore(MemoryCheckpointStore):
    """Crashes the run at its append number `at`, counted from 0, before or after the row is durable; never if None."""

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        super().__init__()
        self.at, self.after, self.appended = at, after, 0

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        here = self.appended == self.at
        self.appended += 1
        if here and not self.after:
            raise Crash
        await super().append(workflow_id, row)
        if here:
            raise Crash


async def until(met: Callable[[], Any]) -> None:
    """Let the event loop go round until a condition is met."""
    async with asyncio.timeout(10):
        while not met():
            await asyncio.sleep(0)


async def elapsed(operation: Any) -> tuple[float, BaseException | None]:
    """How long something took, and what it raised."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        await operation
    except (Exception, asyncio.CancelledError) as error:
        return loop.time() - began, error
    return loop.time() - began, None
