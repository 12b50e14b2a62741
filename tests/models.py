"""Observers, stores and clocks for the tests of the processing models: they tell what happened, or kill a run in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from cano import CancellationToken, MemoryCheckpointStore, WorkflowCancelledError, WorkflowTimeoutError
from cano.testing import FaultyStore, RecordingObserver


def dying(at: int = 0, *, after: bool = False) -> FaultyStore:
    """A store in memory that dies at its append number `at`, counted from 1, before or after it is durable; never if 0."""
    return FaultyStore(MemoryCheckpointStore(), crash_at=at or None, before=not after)


class Cancelling(RecordingObserver):
    """Cancels the run when it is told that a task starts."""

    def __init__(self, token: CancellationToken) -> None:
        super().__init__()
        self.token = token

    def on_task_start(self, event: Any) -> None:
        super().on_task_start(event)
        self.token.cancel()


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


async def stopped(how: str, running: asyncio.Future[Any], token: CancellationToken) -> None:
    """Stop a run by its token or by `task.cancel()`, or leave it to its total timeout; it ends soon, with the error for that."""
    if how == "token":
        token.cancel()
    elif how == "task.cancel()":
        running.cancel()
    took, error = await elapsed(running)
    expected = {"token": WorkflowCancelledError, "task.cancel()": asyncio.CancelledError, "total timeout": WorkflowTimeoutError}
    assert type(error) is expected[how]
    assert took < 2
