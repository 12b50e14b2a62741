"""Streams without a store: the windowed loop beside a hand-written one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import thread_time
from typing import Any

from benchmarks import byhand
from benchmarks.byhand import CTX
from benchmarks.measure import Benchmark, Effort, Figure, Target, compare, timed
from benchmarks.tasks import Arriving, Listed, Numbers, Plain, Queued, Ready, Step, workflow_of
from cano import Window

SIZE = 1_000
PERIOD = 0.005
COUNTED = Window(count=SIZE)
TIMED = Window(seconds=PERIOD)
READY = 200_000
WAITING = 20_000

HandWritten = Callable[[Any, Any], Awaitable[object]]
"""A loop over a task and its opened source."""


@dataclass(frozen=True, slots=True)
class Case:
    """A stream, and the loop by hand that does its work."""

    title: str
    task: type[Numbers]
    window: Window
    items: int
    hand_written: HandWritten
    target: Target | None = None
    per: str = "item"

    async def run(self, effort: Effort) -> Figure:
        task = self.task(effort.units(self.items), self.window)
        source: Any = task.open
        workflow = workflow_of(task)

        async def engine() -> None:
            await workflow.orchestrate(Step.WORK)
            task.settle()

        async def other() -> None:
            await self.hand_written(task, source(CTX, None))
            task.settle()

        ours, theirs = timed(engine, task.count, thread_time), timed(other, task.count, thread_time)
        return await compare(self.title, ours, theirs, pairs=effort.pairs(15), per=self.per, target=self.target)


async def _counted(task: Any, items: Any) -> object:
    return await byhand.count_windows(task, items, SIZE)


async def _counted_plain_item(task: Any, items: Any) -> object:
    return await byhand.count_windows_plain_item(task, items, SIZE)


async def _counted_plain_source(task: Any, items: Any) -> object:
    return await byhand.count_windows_plain_source(task, items, SIZE)


async def _single(task: Any, items: Any) -> object:
    return await byhand.count_windows(task, items, 1)


async def _timed(task: Any, items: Any) -> object:
    return await byhand.time_windows(task, items, PERIOD)


BENCHMARKS: dict[str, Benchmark] = {
    "count": Case("windows of 1,000, ready source", Ready, COUNTED, READY, _counted, Target(1.35)).run,
    "count-plain-item": Case("  with a plain process_item", Plain, COUNTED, READY, _counted_plain_item).run,
    "count-plain-source": Case("  over a plain iterable", Listed, COUNTED, READY, _counted_plain_source).run,
    "time": Case("windows of 5 ms, ready source", Ready, TIMED, READY, _timed, Target(1.5)).run,
    "time-future": Case("  each item a future awaited", Arriving, TIMED, WAITING, _timed, Target(1.1)).run,
    "time-queue": Case("  from an asyncio.Queue(1)", Queued, TIMED, WAITING, _timed, Target(1.1)).run,
    "single": Case("windows of one, ready source", Ready, Window(count=1), WAITING, _single, per="window").run,
}
