"""The loop against a ten-line reference model, under random schedules, and with a crash at every durable write."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cano import (
    CancellationToken,
    CanoError,
    CheckpointRow,
    CheckpointStoreError,
    FailFast,
    MemoryCheckpointStore,
    RetryOnError,
    SkipAndContinue,
    SqliteCheckpointStore,
    Stop,
    Window,
    WorkflowCancelledError,
)
from cano.recovery.checkpoint import RowKind
from cano.testing import Crashed
from tests.crash.lives import live
from tests.models import dying
from tests.streams import Probe, machine, numbers, run

ITEMS = st.lists(st.sampled_from(["ok", "bad"]), max_size=12)
POLICIES = st.one_of(st.just(FailFast()), st.just(SkipAndContinue()), st.builds(RetryOnError, st.integers(0, 2)))


def reference(items: list[str], count: int, policy: Any) -> tuple[list[list[int]], int | None, bool]:
    """What a stream of count windows does: its flushes, its last committed cursor, and whether it fails."""
    flushes: list[list[int]] = []
    window: list[int] = []
    errors = 0
    for number, kind in enumerate(items):
        if kind == "bad":
            errors += 1
            if isinstance(policy, FailFast) or (isinstance(policy, RetryOnError) and errors > policy.max_errors):
                return flushes, (flushes[-1][-1] if flushes else None), True
            continue
        errors = 0
        window.append(number)
        if len(window) == count:
            flushes.append(window)
            window = []
    if window:
        flushes.append(window)
    return flushes, (flushes[-1][-1] if flushes else None), False


def judged(items: list[str]) -> Any:
    def process(number: int) -> None:
        if items[number] == "bad":
            raise ValueError

    return process


@settings(max_examples=300, deadline=None)
@given(items=ITEMS, count=st.integers(1, 5), policy=POLICIES)
def test_count_windows_do_what_the_reference_model_does(items: list[str], count: int, policy: Any) -> None:
    store = MemoryCheckpointStore()
    committed: list[bytes] = []
    last: list[Any] = []

    class Watched(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            await super().append(workflow_id, row)
            if row.kind is RowKind.STEP_CURSOR:
                assert row.blob is not None
                committed.append(row.blob)

    store = Watched()
    probe = Probe(numbers(0, len(items) - 1), process=judged(items), window=Window(count=count), on_item_error=policy)
    flushes, cursor, fails = reference(items, count, policy)
    try:
        asyncio.run(run(probe, store))
        failed = False
    except CanoError:
        failed = True
    assert failed == fails
    assert probe.flushed == flushes
    assert committed == [str(window[-1]).encode() for window in flushes]
    assert cursor == (int(committed[-1]) if committed else None)
    assert last == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    count=st.one_of(st.none(), st.integers(1, 4)),
    period=st.one_of(st.none(), st.just(0.001), st.just(0.003)),
    cancel_after=st.one_of(st.none(), st.integers(0, 60)),
    store_waits=st.booleans(),
)
def test_under_any_schedule_nothing_is_lost_repeated_or_committed_early(
    seed: int, count: int | None, period: float | None, cancel_after: int | None, store_waits: bool
) -> None:
    if count is None and period is None:
        count = 2
    chance = random.Random(seed)
    total = 10

    async def pause() -> None:
        kind = chance.random()
        if kind < 0.3:
            await asyncio.sleep(0)
        elif kind < 0.4:
            await asyncio.sleep(chance.random() * 0.003)

    async def source(cursor: int | None) -> Any:
        for number in range(1 if cursor is None else cursor + 1, total + 1):
            await pause()
            yield number

    async def hook(argument: Any) -> None:
        await pause()

    class Slow(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            if row.blob is not None:
                flushed = probe.items if probes == [] else [*probes[0].items, *probe.items]
                assert int(row.blob) in flushed, "a cursor was committed before its window was flushed"
            if store_waits:
                await pause()
            await super().append(workflow_id, row)

    window = Window(count=count, seconds=period)
    probes: list[Probe] = []
    probe = Probe(source, window=window, process=hook, flush=hook, close=hook)
    store = Slow()

    async def main() -> list[int]:
        nonlocal probe
        token = CancellationToken()
        running = asyncio.create_task(run(probe, store, token=token))
        if cancel_after is not None:
            for _ in range(cancel_after):
                await asyncio.sleep(0)
            token.cancel()
        try:
            assert await asyncio.wait_for(running, 20) == "done"
            return probe.items
        except WorkflowCancelledError:
            if not await store.list_runs():
                return probe.items
        assert probe.items == probe.processed
        probes.append(probe)
        probe = Probe(source, window=window, process=hook, flush=hook, close=hook)
        if not (await store.load_run("r")):
            return probes[0].items
        assert await machine(probe, store).resume_from("r") == "done"
        return probes[0].items + probe.items

    items = asyncio.run(main())
    if items or cancel_after is None:
        assert items == list(range(1, total + 1))


# -- a crash at every durable write -------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
def test_a_crash_at_any_append_replays_at_most_one_window_and_loses_nothing(at: int, after: bool) -> None:
    async def other(ctx: Any) -> str:
        ctx.data["other"] += 1
        return "work"

    def flow(probe: Probe, store: Any) -> Any:
        return machine(probe, store).register("other", other)

    class Summing(Probe):
        async def process_item(self, ctx: Any, item: int) -> tuple[int, int]:
            ctx.data["sum"] += item
            return await super().process_item(ctx, item)

        async def on_close(self, ctx: Any, reason: Any) -> str:
            final.append(dict(ctx.data))
            return await super().on_close(ctx, reason)

    final: list[dict[str, int]] = []
    store = dying(at, after=after)
    probes = [Summing(numbers(1, 13), window=Window(count=2))]

    async def main() -> None:
        try:
            await flow(probes[0], store).orchestrate("other", workflow_id="r", data={"sum": 0, "other": 0})
        except Crashed:
            probes.append(Summing(numbers(1, 13), window=Window(count=2)))
            if await store.list_runs():
                assert await flow(probes[1], store).resume_from("r") == "done"
            else:
                await flow(probes[1], store).orchestrate("other", workflow_id="r", data={"sum": 0, "other": 0})
        assert await store.list_runs() == []

    asyncio.run(main())
    seen = [item for probe in probes for item in probe.items]
    assert sorted(set(seen)) == list(range(1, 14))
    assert len(seen) - 13 <= (0 if after else 2)
    assert final[-1] == {"sum": 91, "other": 1}


@pytest.mark.parametrize("at", range(2, 5))
@pytest.mark.parametrize("after", [False, True])
def test_a_crash_around_a_decision_takes_it_once_or_again_but_never_another(at: int, after: bool) -> None:
    store = dying(at, after=after)
    decisions: list[str] = []

    def decide(outputs: list[int]) -> Stop[str] | None:
        if 3 in outputs:
            decisions.append("stopped")
            return Stop("stopped")
        return None

    async def main() -> str:
        try:
            return await run(Probe(numbers(1, 9), flush=decide), store)
        except Crashed:
            return await machine(Probe(numbers(1, 9), flush=decide), store).resume_from("r")

    assert asyncio.run(main()) == "stopped"
    assert len(decisions) <= 2


def test_a_crash_between_the_last_row_and_the_clear_ends_the_same() -> None:
    class Sticky(MemoryCheckpointStore):
        dead = False

        async def clear(self, workflow_id: str) -> None:
            if not self.dead:
                self.dead = True
                raise Crashed
            await super().clear(workflow_id)

    store, probe = Sticky(), Probe(numbers(1, 3))

    async def main() -> None:
        with pytest.raises(Crashed):
            await run(probe, store)
        again = Probe(numbers(1, 3))
        assert await machine(again, store).resume_from("r") == "done"
        assert again.opened == []
        assert await store.list_runs() == []
        with pytest.raises(CheckpointStoreError):
            await machine(again, store).resume_from("r")

    asyncio.run(main())


# -- kill -9 ------------------------------------------------------------------------------------------------------------

CHILD = """
import asyncio, os, sys
from tests.streams import Probe, machine, numbers
from cano import SqliteCheckpointStore, Window

path, sink = sys.argv[1], open(sys.argv[2], "a", buffering=1)

def flush(outputs):
    sink.write(" ".join(map(str, outputs)) + chr(10))
    print("flushed", flush=True)

probe = Probe(numbers(1, 400), window=Window(count=5), flush=flush)
flow = machine(probe, SqliteCheckpointStore(path))
print(asyncio.run(flow.orchestrate("work", workflow_id="r", if_exists="resume")), flush=True)
"""


def test_a_process_killed_again_and_again_loses_nothing_and_replays_at_most_one_window_each_time(tmp_path: Path) -> None:
    chance = random.Random(7)
    sink, kills = tmp_path / "sink.txt", 0
    while True:
        if live(CHILD, str(tmp_path / "runs.db"), str(sink), patience=chance.randint(1, 25)):
            break
        kills += 1
        if not asyncio.run(_stored(tmp_path / "runs.db")):
            break  # killed when it had completed, with the log removed
    flushed = [int(number) for number in sink.read_text().split()]
    assert kills >= 3
    assert sorted(set(flushed)) == list(range(1, 401))
    assert len(flushed) - 400 <= 5 * kills


def test_two_processes_on_one_log_never_both_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "runs.db"), str(tmp_path / "sink.txt")]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [child.communicate() for child in children]
    done = [child.returncode == 0 for child in children]
    assert any(done)
    for finished, (_, errors) in zip(done, outputs, strict=True):
        assert finished or "RunOwnedError" in errors
    flushed = [int(number) for number in (tmp_path / "sink.txt").read_text().split()]
    assert flushed == list(range(1, 401)) * sum(done)
    assert asyncio.run(_stored(tmp_path / "runs.db")) == []


async def _stored(path: Path) -> list[str]:
    async with SqliteCheckpointStore(path) as store:
        return await store.list_runs()
