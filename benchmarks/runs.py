"""Whole runs on one SQLite store: many at once, and the return to a run whose log has seen many windows."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.measure import Benchmark, Effort, Figure, Sample, Target, compare, timed
from benchmarks.tasks import Ready, Step, workflow_of
from cano import CanoError, Context, SqliteCheckpointStore, Window

RUNS = 1_000
IN_TURN = 100
LONG = 100_000
SHORT = 100


async def many_runs(effort: Effort) -> Figure:
    """Runs of one window at once, and one after another: three rows and the removal of the log, each durable (FULL).

    Fewer are run in turn, because that may take long; what is compared is the time for each run.
    """
    number = effort.units(RUNS)
    task = Ready(1, Window(count=1))
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteCheckpointStore(Path(directory, "runs.db"))
        workflow = workflow_of(task, store)
        numbers = count()

        async def one() -> None:
            await workflow.orchestrate(Step.WORK, workflow_id=f"run-{next(numbers)}")

        async def at_once() -> None:
            await asyncio.gather(*(one() for _ in range(number)))

        async def in_turn() -> None:
            for _ in range(IN_TURN):
                await one()

        try:
            title = f"{number:,} runs at once, FULL (beside: in turn)"
            together, alone = timed(at_once, number), timed(in_turn, IN_TURN)
            target = Target(5.0, at_least=True)
            return await compare(title, together, alone, pairs=effort.pairs(9), per="run", target=target, inverse=True)
        finally:
            await store.close()


class Interrupted(Exception):
    """Ends a run and leaves its log."""


class Reopened(Ready):
    """Breaks off as soon as it is opened after its last item, or when it has none left."""

    opened_at: float = 0.0
    opened_with: int | None = None

    async def open(self, ctx: Context[Any], cursor: int | None) -> AsyncIterator[int]:
        self.opened_at, self.opened_with = perf_counter(), cursor
        for number in range(0 if cursor is None else cursor + 1, self.count):
            yield number
        raise Interrupted


async def resume(effort: Effort) -> Figure:
    """How long `resume_from` takes until `open` has its cursor, on a store just opened, by how many windows the log has seen.

    The engine itself wrote both logs, in windows of one.
    """
    long = LONG // 20 if effort.quick else LONG
    with tempfile.TemporaryDirectory() as directory:
        samples = [await _resumed(Path(directory, f"{windows}.db"), windows) for windows in (long, SHORT)]
        title = f"resume after {long:,} windows (beside: {SHORT})"
        return await compare(title, *samples, pairs=effort.pairs(45), per="resume", target=Target(1.3))


async def _resumed(path: Path, windows: int) -> Sample:
    task = Reopened(windows, Window(count=1))
    store = SqliteCheckpointStore(path, synchronous="NORMAL")
    with suppress(CanoError):
        await workflow_of(task, store).orchestrate(Step.WORK, workflow_id="run")
    task.settle()
    await store.close()

    async def sample() -> float:
        store = SqliteCheckpointStore(path, synchronous="NORMAL")
        workflow = workflow_of(task, store)
        began = perf_counter()
        with suppress(CanoError):
            await workflow.resume_from("run")
        if task.opened_with != windows - 1:
            raise AssertionError(f"resumed at {task.opened_with}")
        await store.close()
        return task.opened_at - began

    return sample


BENCHMARKS: dict[str, Benchmark] = {"many-runs": many_runs, "resume": resume}
