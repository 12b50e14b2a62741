"""Stores under any schedule: writers that contend for the same runs and are cancelled, held against what each was told."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

from cano import CheckpointConflictError, CheckpointRow, MemoryCheckpointStore, RowKind, RunOwnedError, SqliteCheckpointStore
from cano.testing import simulate

RUNS = ("one", "two")


class Contest:
    """What was acknowledged, and what may or may not be there because its writer was cancelled."""

    def __init__(self, random: Random, store: Any) -> None:
        self.random, self.store = random, store
        self.taken: dict[tuple[str, int], str] = {}
        self.unsure: dict[tuple[str, int], set[str]] = {}
        self.holders: dict[str, int] = dict.fromkeys(RUNS, 0)

    async def write(self, writer: str) -> None:
        for turn in range(6):
            run = self.random.choice(RUNS)
            rows = await self.store.load_run(run)
            sequences = [row.sequence for row in rows]
            assert sequences == sorted(set(sequences)), f"sequences {sequences}"
            following = sequences[-1] + 1 if sequences else 0
            if self.random.random() < 0.3:
                await asyncio.sleep(0)
            name = f"{writer}.{turn}"
            replaces = sequences[-1] if len(rows) > 1 else None
            row = CheckpointRow(following, RowKind.STEP_CURSOR, name, "task", blob=b"1", replaces=replaces)
            try:
                await self.store.append(run, row)
            except CheckpointConflictError:
                continue
            except asyncio.CancelledError:
                self.unsure.setdefault((run, following), set()).add(name)
                raise
            other = self.taken.setdefault((run, following), name)
            assert other == name, f"{other} and {name} both wrote row {following}"
            found = [row for row in await self.store.load_run(run) if row.sequence >= following]
            assert found, "an acknowledged row is not there"

    async def hold(self, run: str) -> None:
        for _ in range(3):
            try:
                async with self.store.claim(run):
                    self.holders[run] += 1
                    assert self.holders[run] == 1, "a claim was given twice"
                    await asyncio.sleep(self.random.choice((0, 1)))
                    self.holders[run] -= 1
            except RunOwnedError:
                await asyncio.sleep(self.random.choice((0, 1)))

    async def fight(self) -> None:
        loop, random = asyncio.get_running_loop(), self.random
        tasks = [asyncio.create_task(self.write(f"w{number}")) for number in range(random.randrange(2, 6))]
        tasks += [asyncio.create_task(self.hold(run)) for run in RUNS for _ in range(2)]
        for task in tasks[: random.randrange(3)]:
            turns = random.randrange(12)
            loop.call_soon(_cancel_after, task, turns)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None and not isinstance(outcome, asyncio.CancelledError):
                raise outcome
        for run in RUNS:
            rows = await self.store.load_run(run)
            for row in rows:
                key = (run, row.sequence)
                known = self.taken.get(key) == row.state or row.state in self.unsure.get(key, ())
                assert known, f"row {row.sequence} of {row.state}, to whom nobody has said so"
            last = max((sequence for name, sequence in self.taken if name == run), default=-1)
            assert last < 0 or (rows and rows[-1].sequence >= last), "an acknowledged row is gone"


def _cancel_after(task: asyncio.Task[None], turns: int) -> None:
    if turns:
        asyncio.get_running_loop().call_soon(_cancel_after, task, turns - 1)
    else:
        task.cancel()


async def on_sqlite(seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteCheckpointStore(Path(folder) / "runs.db", synchronous="NORMAL") as store:
            await Contest(Random(seed), store).fight()


def explore(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(lambda seed=seed: Contest(Random(seed), MemoryCheckpointStore()).fight(), seed=seed)


def explore_sqlite(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(lambda seed=seed: on_sqlite(seed), seed=seed)
