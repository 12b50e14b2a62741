"""Windows whose cursors are committed to SQLite: the engine beside the standard library's driver used inline."""

from __future__ import annotations

import tempfile
from functools import partial
from itertools import count
from pathlib import Path

import aiosqlite

from benchmarks import byhand
from benchmarks.byhand import CTX
from benchmarks.measure import Benchmark, Effort, Figure, Target, compare, timed
from benchmarks.tasks import Ready, Step, workflow_of
from cano import SqliteCheckpointStore, Window
from cano.recovery.sqlite import Synchronous

SIZE = 1_000
WINDOWS = 200
SINGLES = 1_000
SINGLES_FULL = 200


async def windows(effort: Effort, size: int, number: int, synchronous: Synchronous, target: Target | None) -> Figure:
    """`number` windows of `size` items. The engine's run also begins and ends durably, which is three commits more."""
    task = Ready(effort.units(number) * size, Window(count=size))
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteCheckpointStore(Path(directory, "engine.db"), synchronous=synchronous)
        database = byhand.Database(f"{directory}/hand.db", synchronous)
        workflow = workflow_of(task, store)
        numbers = count()

        async def engine() -> None:
            await workflow.orchestrate(Step.WORK, workflow_id=f"run-{next(numbers)}")
            task.settle()

        async def other() -> None:
            await byhand.durable_windows(task, task.open(CTX, None), size, database)
            task.settle()

        try:
            ours, theirs = timed(engine, task.count // size), timed(other, task.count // size)
            title = f"durable windows of {size:,}, {synchronous}"
            return await compare(title, ours, theirs, pairs=effort.pairs(15), per="window", target=target)
        finally:
            database.close()
            await store.close()


async def windows_in_thread(effort: Effort) -> Figure:
    """The same beside aiosqlite: what of `durable-normal` is the engine's, and what the way into a thread and back."""
    task = Ready(effort.units(WINDOWS) * SIZE, Window(count=SIZE))
    with tempfile.TemporaryDirectory() as directory:
        byhand.Database(f"{directory}/hand.db", "NORMAL").close()
        store = SqliteCheckpointStore(Path(directory, "engine.db"), synchronous="NORMAL")
        workflow = workflow_of(task, store)
        numbers = count()
        async with aiosqlite.connect(f"{directory}/hand.db", isolation_level=None) as connection:
            await connection.execute_fetchall("PRAGMA synchronous = NORMAL")

            async def engine() -> None:
                await workflow.orchestrate(Step.WORK, workflow_id=f"run-{next(numbers)}")
                task.settle()

            async def other() -> None:
                await byhand.durable_windows_in_thread(task, task.open(CTX, None), SIZE, connection)
                task.settle()

            ours, theirs = timed(engine, task.count // SIZE), timed(other, task.count // SIZE)
            figure = await compare("  beside aiosqlite by hand", ours, theirs, pairs=effort.pairs(15), per="window")
        await store.close()
    return figure


BENCHMARKS: dict[str, Benchmark] = {
    "durable-normal": partial(windows, size=SIZE, number=WINDOWS, synchronous="NORMAL", target=Target(1.5)),
    "durable-thread": windows_in_thread,
    "durable-full": partial(windows, size=SIZE, number=WINDOWS, synchronous="FULL", target=Target(1.5)),
    "durable-single-normal": partial(windows, size=1, number=SINGLES, synchronous="NORMAL", target=None),
    "durable-single-full": partial(windows, size=1, number=SINGLES_FULL, synchronous="FULL", target=None),
}
