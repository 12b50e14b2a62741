"""Transitions: the state machine beside a `while` over a dictionary of functions."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path
from time import thread_time
from typing import Any

from benchmarks import byhand
from benchmarks.measure import Benchmark, Effort, Figure, compare, timed
from benchmarks.tasks import Step
from cano import CheckpointStore, SqliteCheckpointStore, Workflow
from cano.recovery.sqlite import Synchronous

TRANSITIONS = 10_000
DURABLE = 1_000
DURABLE_FULL = 200
RUNS = 1_000


class Rally:
    """Two states that take turns for so many transitions."""

    def __init__(self, transitions: int) -> None:
        self.transitions = transitions
        self._left = transitions
        self.functions: dict[Step, Callable[[Any], Awaitable[Step]]] = {Step.PING: self.ping, Step.PONG: self.pong}

    async def ping(self, ctx: Any) -> Step:
        return self._next(Step.PONG)

    async def pong(self, ctx: Any) -> Step:
        return self._next(Step.PING)

    def _next(self, state: Step) -> Step:
        self._left -= 1
        return state if self._left else Step.DONE

    def settle(self) -> None:
        """Check that every transition was made, and begin anew."""
        if self._left:
            raise AssertionError(f"{self._left} transitions are left")
        self._left = self.transitions

    def workflow(self, store: CheckpointStore | None = None) -> Workflow[Step]:
        workflow: Workflow[Step] = Workflow(checkpoint_store=store)
        for state, function in self.functions.items():
            workflow.register(state, function)
        return workflow.add_exit_state(Step.DONE)


async def transitions(effort: Effort) -> Figure:
    rally = Rally(effort.units(TRANSITIONS))
    workflow = rally.workflow()

    async def engine() -> None:
        await workflow.orchestrate(Step.PING)
        rally.settle()

    async def other() -> None:
        await byhand.transitions(Step.PING, rally.functions)
        rally.settle()

    ours, theirs = timed(engine, rally.transitions, thread_time), timed(other, rally.transitions, thread_time)
    return await compare("transitions, no store", ours, theirs, pairs=effort.pairs(15), per="transition")


async def short_runs(effort: Effort) -> Figure:
    """Whole runs of one state, without a store; by hand each is an asyncio task of its own, as the engine's are."""
    number = effort.units(RUNS)
    rally = Rally(1)
    workflow = rally.workflow()

    async def engine() -> None:
        for _ in range(number):
            await workflow.orchestrate(Step.PING)
            rally.settle()

    async def other() -> None:
        for _ in range(number):
            await asyncio.create_task(byhand.transitions(Step.PING, rally.functions))
            rally.settle()

    ours, theirs = timed(engine, number, thread_time), timed(other, number, thread_time)
    return await compare("a run of one state, no store", ours, theirs, pairs=effort.pairs(9), per="run")


async def durable_transitions(effort: Effort, number: int, synchronous: Synchronous) -> Figure:
    rally = Rally(effort.units(number))
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteCheckpointStore(Path(directory, "engine.db"), synchronous=synchronous)
        database = byhand.Database(f"{directory}/hand.db", synchronous)
        workflow = rally.workflow(store)
        numbers = count()

        async def engine() -> None:
            await workflow.orchestrate(Step.PING, workflow_id=f"run-{next(numbers)}")
            rally.settle()

        async def other() -> None:
            await byhand.durable_transitions(Step.PING, rally.functions, database)
            rally.settle()

        try:
            ours, theirs = timed(engine, rally.transitions), timed(other, rally.transitions)
            title = f"transitions, SQLite {synchronous}"
            return await compare(title, ours, theirs, pairs=effort.pairs(15), per="transition")
        finally:
            database.close()
            await store.close()


BENCHMARKS: dict[str, Benchmark] = {
    "transitions": transitions,
    "run": short_runs,
    "transitions-normal": partial(durable_transitions, number=DURABLE, synchronous="NORMAL"),
    "transitions-full": partial(durable_transitions, number=DURABLE_FULL, synchronous="FULL"),
}
