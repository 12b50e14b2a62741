"""A stream that tells what happened to it, and sources to feed it with."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from cano import CancellationToken, CheckpointStore, CloseReason, Context, Stop, StreamTask, Window, Workflow


class Probe(StreamTask[str, int, int, int]):
    """Items are their own outputs and cursors. What each hook saw is kept; `process`, `flush` and `close` may step in."""

    def __init__(
        self,
        source: Callable[..., Any],
        *,
        process: Callable[..., Any] | None = None,
        flush: Callable[..., Any] | None = None,
        close: Callable[..., Any] | None = None,
        **attributes: Any,
    ) -> None:
        self.window = Window(count=2)
        self.source = source
        self.hooks = {"process": process, "flush": flush, "close": close}
        self.opened: list[int | None] = []
        self.processed: list[int] = []
        self.flushed: list[list[int]] = []
        self.closed: list[CloseReason] = []
        self.events: list[str] = []
        for name, value in attributes.items():
            setattr(self, name, value)

    @property
    def items(self) -> list[int]:
        return [item for window in self.flushed for item in window]

    async def _step_in(self, name: str, *arguments: Any) -> Any:
        hook = self.hooks[name]
        result = None if hook is None else hook(*arguments)
        return await result if inspect.isawaitable(result) else result

    def open(self, ctx: Context, cursor: int | None) -> Any:
        self.opened.append(cursor)
        return self.source(cursor)

    async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
        self.processed.append(item)
        changed = await self._step_in("process", item)
        return (item, item) if changed is None else changed

    async def flush_window(self, ctx: Context, outputs: list[int]) -> Stop[str] | None:
        stop = await self._step_in("flush", outputs)
        self.flushed.append(outputs)
        return stop

    async def on_close(self, ctx: Context, reason: CloseReason) -> str:
        self.closed.append(reason)
        chosen = await self._step_in("close", reason)
        return "done" if chosen is None else chosen


def numbers(first: int, last: int) -> Callable[[int | None], AsyncIterator[int]]:
    """A source of `first` to `last`, always ready, that starts after a cursor."""

    async def source(cursor: int | None) -> AsyncIterator[int]:
        for number in range(first if cursor is None else cursor + 1, last + 1):
            yield number

    return source


def then_silence(last: int, reached: asyncio.Event | None = None) -> Callable[[int | None], AsyncIterator[int]]:
    """A source of 1 to `last` that then waits for ever, having set `reached`."""

    async def source(cursor: int | None) -> AsyncIterator[int]:
        for number in range(1 if cursor is None else cursor + 1, last + 1):
            yield number
        if reached is not None:
            reached.set()
        await asyncio.Event().wait()

    return source


def machine(task: Any, store: CheckpointStore | None = None, **options: Any) -> Workflow[str]:
    """A workflow of that one task in state "work", with the exit states "done" and "stopped"."""
    return Workflow[str](checkpoint_store=store, **options).register("work", task).add_exit_state("done", "stopped")


async def run(task: Any, store: CheckpointStore | None = None, *, token: CancellationToken | None = None, **options: Any) -> str:
    """Run such a workflow, as run "r" if there is a store."""
    flow = machine(task, store, **options)
    return await flow.orchestrate("work", workflow_id="r" if store is not None else None, token=token)


async def turns(count: int = 5) -> None:
    """Let the event loop go round a few times."""
    for _ in range(count):
        await asyncio.sleep(0)


async def cursors(store: Any, workflow_id: str = "r") -> list[str | None]:
    """The cursors in a log, undecoded text."""
    return [row.blob.decode() for row in await store.load_run(workflow_id) if row.blob is not None]


def failing(*bad: int) -> Callable[[int], None]:
    """A `process` that fails at these items."""

    def process(item: int) -> None:
        if item in bad:
            raise ValueError(f"bad {item}")

    return process


class Gates:
    """A `process` whose items wait until they are let through; `inside` are those that wait."""

    def __init__(self) -> None:
        self._events: dict[int, asyncio.Event] = {}
        self.inside: set[int] = set()

    def _gate(self, item: int) -> asyncio.Event:
        return self._events.setdefault(item, asyncio.Event())

    def open(self, *items: int) -> None:
        for item in items:
            self._gate(item).set()

    async def __call__(self, item: int) -> None:
        self.inside.add(item)
        try:
            await self._gate(item).wait()
        finally:
            self.inside.discard(item)


async def scattered(item: int) -> None:
    """A `process` whose items finish in another order than they begin."""
    await turns(item * 7 % 5)


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until something has come about."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)
