"""The other models: what their rules cost beside the few lines that somebody would write instead.

`transitions` (in `machine`) has the plain state machine. Here:

retries:   a transition whose task has a config beside one whose task has none. Nothing fails, so this is what the wish
           to retry costs when all goes well; `attempt_timeout` asks for a timer, which is the price of `retries-timeout`.
split:     1,000 branches beside `asyncio.gather` over the same functions. Each branch of the engine has an asyncio task,
           as with `gather`, and beyond it a context, attempts, a copy of the data and a place in the results.
batch:     1,000 items, ten at a time, beside ten workers that share an iterator. Each item awaits once, for nothing.
in-flight: a stream of items that sleep for a millisecond, eight at a time, in windows of 100, beside workers by hand
           that keep the order too. By the clock both mostly sleep; `in-flight-work` compares the processor time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from time import perf_counter, thread_time
from typing import Any

from benchmarks import byhand
from benchmarks.byhand import CTX
from benchmarks.machine import Rally
from benchmarks.measure import Benchmark, Effort, Figure, compare, timed
from benchmarks.tasks import Numbers, Step, workflow_of
from cano import All, BatchTask, Context, Err, ExponentialBackoff, Ok, Split, Task, TaskConfig, Window, Workflow

TRANSITIONS = 10_000
BRANCHES = 1_000
ITEMS = 1_000
CONCURRENCY = 10
IN_FLIGHT = 8
SLEEPY = 2_000
SLEEP = 0.001
SIZE = 100


class Turn(Task[Step]):
    """One state of a rally."""

    def __init__(self, function: Callable[[Any], Awaitable[Step]], config: TaskConfig | None) -> None:
        self.function = function
        if config is not None:
            self.config = config

    async def run(self, ctx: Context[Any]) -> Step:
        return await self.function(ctx)


async def retries(effort: Effort, title: str, config: TaskConfig) -> Figure:
    rally = Rally(effort.units(TRANSITIONS))

    def rallied(config: TaskConfig | None) -> Callable[[], Awaitable[None]]:
        workflow: Workflow[Step] = Workflow()
        for state, function in rally.functions.items():
            workflow.register(state, Turn(function, config))
        workflow.add_exit_state(Step.DONE)

        async def work() -> None:
            await workflow.orchestrate(Step.PING)
            rally.settle()

        return work

    ours, theirs = (timed(rallied(each), rally.transitions, thread_time) for each in (config, None))
    return await compare(title, ours, theirs, pairs=effort.pairs(15), per="transition")


async def split(effort: Effort) -> Figure:
    ran = 0

    async def branch(ctx: Any) -> int:
        nonlocal ran
        ran += 1
        return ran

    def settle() -> None:
        nonlocal ran
        if ran != BRANCHES:
            raise AssertionError(f"{ran} of {BRANCHES} branches ran")
        ran = 0

    fan_out = Split([branch] * BRANCHES, join=All(), then=Step.DONE)
    workflow = Workflow[Step]().register(Step.WORK, fan_out).add_exit_state(Step.DONE)

    async def engine() -> None:
        await workflow.orchestrate(Step.WORK)
        settle()

    async def other() -> None:
        await asyncio.gather(*(branch(CTX) for _ in range(BRANCHES)))
        settle()

    ours, theirs = timed(engine, BRANCHES, thread_time), timed(other, BRANCHES, thread_time)
    title = f"split of {BRANCHES:,} (beside: gather)"
    return await compare(title, ours, theirs, pairs=effort.pairs(15), per="branch")


class Sheet(BatchTask[Step, int, int]):
    """Numbers that each give others a turn; counts what it finishes with."""

    concurrency = CONCURRENCY
    finished = 0

    async def load(self, ctx: Context[Any]) -> range:
        return range(ITEMS)

    async def process_item(self, ctx: Context[Any], item: int) -> int:
        await asyncio.sleep(0)
        return item

    async def finish(self, ctx: Context[Any], outcomes: list[Ok[int] | Err]) -> Step:
        self.finished = len(outcomes)
        return Step.DONE

    def settle(self) -> None:
        """Check that no item was left out, and begin anew."""
        if self.finished != ITEMS:
            raise AssertionError(f"{self.finished} of {ITEMS} items were finished")
        self.finished = 0


async def batch(effort: Effort) -> Figure:
    task = Sheet()
    workflow = Workflow[Step]().register(Step.WORK, task).add_exit_state(Step.DONE)

    async def engine() -> None:
        await workflow.orchestrate(Step.WORK)
        task.settle()

    async def other() -> None:
        await byhand.batch(task, CONCURRENCY)
        task.settle()

    ours, theirs = timed(engine, ITEMS, thread_time), timed(other, ITEMS, thread_time)
    return await compare(f"batch of {ITEMS:,}, {CONCURRENCY} at a time", ours, theirs, pairs=effort.pairs(15), per="item")


class Sleepy(Numbers):
    """Numbers that each take a while."""

    max_in_flight = IN_FLIGHT

    async def open(self, ctx: Context[Any], cursor: int | None) -> AsyncIterator[int]:
        for number in range(self.count):
            yield number

    async def process_item(self, ctx: Context[Any], item: int) -> tuple[int, int]:
        await asyncio.sleep(SLEEP)
        return item, item


async def in_flight(effort: Effort, title: str, clock: Callable[[], float]) -> Figure:
    task = Sleepy(effort.units(SLEEPY), Window(count=SIZE))
    workflow = workflow_of(task)

    async def engine() -> None:
        await workflow.orchestrate(Step.WORK)
        task.settle()

    async def other() -> None:
        await byhand.in_flight(task, task.open(CTX, None), SIZE, IN_FLIGHT)
        task.settle()

    ours, theirs = timed(engine, task.count, clock), timed(other, task.count, clock)
    return await compare(title, ours, theirs, pairs=effort.pairs(9), per="item")


BACKOFF = ExponentialBackoff(max_retries=5)
BENCHMARKS: dict[str, Benchmark] = {
    "retries": partial(retries, title="retries that nobody needs (beside: none)", config=TaskConfig(retry=BACKOFF)),
    "retries-timeout": partial(
        retries, title="  with an attempt_timeout", config=TaskConfig(retry=BACKOFF, attempt_timeout=60.0)
    ),
    "split": split,
    "batch": batch,
    "in-flight": partial(in_flight, title=f"{IN_FLIGHT} items of {SLEEP * 1e3:g} ms in flight", clock=perf_counter),
    "in-flight-work": partial(in_flight, title="  processor time", clock=thread_time),
}
