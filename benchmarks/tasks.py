"""The tasks that both sides run. They do as little as can be done, which is what shows the cost of a loop best."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from enum import Enum, auto
from typing import Any

from cano import CheckpointStore, CloseReason, Context, StreamTask, Window, Workflow


class Step(Enum):
    """The states."""

    WORK = auto()
    PING = auto()
    PONG = auto()
    DONE = auto()


class Numbers(StreamTask[Step, int, int, int]):
    """`count` numbers in windows; counts what is flushed, so that no side can leave work out."""

    def __init__(self, count: int, window: Window) -> None:
        self.count = count
        self.window = window
        self.flushed = 0

    async def flush_window(self, ctx: Context[Any], outputs: list[int]) -> None:
        self.flushed += len(outputs)

    async def on_close(self, ctx: Context[Any], reason: CloseReason) -> Step:
        return Step.DONE

    def settle(self) -> None:
        """Check that every item was flushed, and begin anew."""
        if self.flushed != self.count:
            raise AssertionError(f"{self.flushed} of {self.count} items were flushed")
        self.flushed = 0


class Awaited(Numbers):
    """Its `process_item` is async."""

    async def process_item(self, ctx: Context[Any], item: int) -> tuple[int, int]:
        return item, item


class Ready(Awaited):
    """Its source is an async generator that never waits."""

    async def open(self, ctx: Context[Any], cursor: int | None) -> AsyncIterator[int]:
        for number in range(0 if cursor is None else cursor + 1, self.count):
            yield number


class Plain(Numbers):
    """Like `Ready`, with a plain `process_item`."""

    async def open(self, ctx: Context[Any], cursor: int | None) -> AsyncIterator[int]:
        for number in range(self.count):
            yield number

    def process_item(self, ctx: Context[Any], item: int) -> tuple[int, int]:
        return item, item


class Listed(Awaited):
    """Its source is a plain iterable."""

    def open(self, ctx: Context[Any], cursor: int | None) -> Iterable[int]:
        return range(self.count)


class Arriving(Awaited):
    """Its source waits for each item until the event loop brings it."""

    async def open(self, ctx: Context[Any], cursor: int | None) -> AsyncIterator[int]:
        loop = asyncio.get_running_loop()
        for number in range(self.count):
            arrival: asyncio.Future[int] = loop.create_future()
            loop.call_soon(arrival.set_result, number)
            yield await arrival


class Queued(Awaited):
    """Its source is a queue with room for one, which another asyncio task fills."""

    async def open(self, ctx: Context[Any], cursor: int | None) -> AsyncIterator[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        producer = asyncio.create_task(self._produce(queue))
        try:
            for _ in range(self.count):
                yield await queue.get()
        finally:
            producer.cancel()

    async def _produce(self, queue: asyncio.Queue[int]) -> None:
        for number in range(self.count):
            await queue.put(number)


def workflow_of(task: Numbers, store: CheckpointStore | None = None) -> Workflow[Step]:
    """A workflow of this one stream."""
    workflow: Workflow[Step] = Workflow(checkpoint_store=store)
    return workflow.register(Step.WORK, task).add_exit_state(Step.DONE)
