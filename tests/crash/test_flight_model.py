"""Items in flight against a sequential reference: under random schedules and cancels, with crashes, and with kill -9."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
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
    Context,
    FailFast,
    FixedRetry,
    MemoryCheckpointStore,
    NoRetry,
    RetryOnError,
    SkipAndContinue,
    Stop,
    Window,
    WorkflowCancelledError,
)
from cano.recovery.checkpoint import RowKind
from cano.testing import Crashed, FaultyStore
from tests.streams import Probe, machine, numbers, run, scattered

KINDS = st.sampled_from(["ok", "ok", "ok", "bad", "flaky"])
POLICIES = st.one_of(st.just(FailFast()), st.just(SkipAndContinue()), st.builds(RetryOnError, st.integers(0, 2)))


class Sink:
    def __init__(self, pause: Any) -> None:
        self.items: list[int] = []
        self._pause = pause

    async def write(self, letter: Any) -> None:
        await self._pause()
        self.items.append(letter.item)


class Plain(Probe):
    pass


class Placed(Probe):
    def cursor_of(self, item: int) -> int:
        return item


class Watched(MemoryCheckpointStore):
    """Every cursor that became durable, and the decision with it."""

    def __init__(self, pause: Any) -> None:
        super().__init__()
        self.committed: list[tuple[int, str | None]] = []
        self._pause = pause

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        await self._pause()
        await super().append(workflow_id, row)
        if row.kind is RowKind.STEP_CURSOR:
            assert row.blob is not None
            self.committed.append((int(row.blob), row.next_state))


def world(kinds: list[str], seed: int, lively: bool) -> Any:
    """A random schedule of waits, and a `process` whose items do what `kinds` says; flaky ones fail once."""
    chance, failed = random.Random(seed), set()

    async def pause(*_: Any) -> None:
        kind = chance.random() if lively else 1.0
        if kind < 0.4:
            await asyncio.sleep(0)
        elif kind < 0.5:
            await asyncio.sleep(chance.random() * 0.003)

    async def process(item: int) -> None:
        await pause()
        kind = kinds[item]
        if kind == "bad" or (kind == "flaky" and item not in failed):
            failed.add(item)
            raise ValueError
        await pause()

    async def source(cursor: int | None) -> Any:
        for number in range(0 if cursor is None else cursor + 1, len(kinds)):
            await pause()
            yield number

    return pause, process, source


async def outcome(kinds: list[str], seed: int, width: int, options: dict[str, Any], stop_at: int | None, kind: Any) -> Any:
    """Everything that a stream of count windows does that one may see from outside."""
    pause, process, source = world(kinds, seed, width > 1)
    store, sink = Watched(pause), Sink(pause)

    async def flush(outputs: list[int]) -> Any:
        await pause()
        return Stop("stopped") if stop_at in outputs else None

    probe = kind(source, process=process, flush=flush, close=pause, max_in_flight=width, dead_letters=sink, **options)
    try:
        end = await asyncio.wait_for(run(probe, store), 20)
    except CanoError as error:
        end = type(error).__name__
    return end, probe.flushed, store.committed, sink.items, probe.closed


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kinds=st.lists(KINDS, max_size=14),
    seed=st.integers(0, 10**6),
    width=st.integers(2, 5),
    count=st.integers(1, 4),
    policy=POLICIES,
    retry=st.sampled_from([NoRetry(), FixedRetry(1, 0)]),
    stop_at=st.one_of(st.none(), st.integers(0, 13)),
    kind=st.sampled_from([Plain, Placed]),
)
def test_count_windows_are_the_same_with_one_item_at_a_time_and_with_several_in_flight(
    kinds: list[str], seed: int, width: int, count: int, policy: Any, retry: Any, stop_at: int | None, kind: Any
) -> None:
    options = {"window": Window(count=count), "on_item_error": policy, "item_retry": retry}

    async def both() -> list[Any]:
        return [await outcome(kinds, seed, w, options, stop_at, kind) for w in (1, width)]

    one, several = asyncio.run(both())
    assert several == one


def prefixes(kinds: list[str], policy: Any, retries: bool) -> tuple[list[int], list[int], int]:
    """What a sequential stream flushes and parks in the end, and the first item that it does not get past."""
    good: list[int] = []
    parked: list[int] = []
    errors = 0
    for number, kind in enumerate(kinds):
        if kind == "ok" or (kind == "flaky" and retries):
            errors = 0
            good.append(number)
            continue
        errors += 1
        if isinstance(policy, FailFast) or (isinstance(policy, RetryOnError) and errors > policy.max_errors):
            return good, parked, number
        parked.append(number)
    return good, parked, len(kinds)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kinds=st.lists(st.sampled_from(["ok", "ok", "bad", "flaky"]), min_size=1, max_size=14),
    seed=st.integers(0, 10**6),
    width=st.integers(2, 5),
    count=st.one_of(st.none(), st.integers(1, 4)),
    period=st.one_of(st.none(), st.just(0.001), st.just(0.003)),
    policy=st.sampled_from([FailFast(), SkipAndContinue()]),
    cancel_after=st.one_of(st.none(), st.integers(0, 80)),
    kind=st.sampled_from([Plain, Placed]),
)
def test_under_any_schedule_and_cancel_nothing_is_lost_repeated_or_committed_early(
    kinds: list[str], seed: int, width: int, count: int | None, period: float | None, policy: Any, cancel_after: Any, kind: Any
) -> None:
    if count is None and period is None:
        count = 2
    good, parked, last = prefixes(kinds, policy, retries=True)
    pause, process, source = world(kinds, seed, lively=True)
    sink, probes = Sink(pause), []

    class Checking(Watched):
        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            if row.kind is RowKind.STEP_CURSOR:
                assert row.blob is not None
                settled = {item for probe in probes for item in probe.items} | set(sink.items)
                assert set(range(int(row.blob) + 1)) <= settled, "a cursor passes an item that is neither flushed nor parked"
            await super().append(workflow_id, row)

    store = Checking(pause)

    def fresh() -> Probe:
        probe = kind(source, process=process, flush=pause, close=pause, window=Window(count=count, seconds=period))
        probe.max_in_flight, probe.on_item_error, probe.dead_letters = width, policy, sink
        probe.item_retry = FixedRetry(1, 0.0005)
        probes.append(probe)
        return probe

    async def main() -> None:
        token = CancellationToken()
        running = asyncio.create_task(run(fresh(), store, token=token))
        if cancel_after is not None:
            for _ in range(cancel_after):
                await asyncio.sleep(0)
            token.cancel()
        try:
            await asyncio.wait_for(running, 20)
        except WorkflowCancelledError:
            await machine(fresh(), store).orchestrate("work", workflow_id="r", if_exists="resume")

    try:
        asyncio.run(main())
        assert last == len(kinds)
    except CanoError:
        assert last < len(kinds)
    flushed = [item for probe in probes for item in probe.items]
    assert flushed == sorted(set(flushed))
    assert all(len(outputs) <= (count or 99) for probe in probes for outputs in probe.flushed)
    if last == len(kinds):
        assert flushed == good
        assert set(sink.items) == set(parked)
    else:
        assert set(flushed) <= set(good)


# -- a crash at every durable write -------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 11))
def test_a_crash_at_any_append_loses_nothing_and_totals_never_disagree_with_the_cursor(at: int, after: bool) -> None:
    class Checked(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            await super().append(workflow_id, row)
            if row.kind is RowKind.STEP_CURSOR:
                assert row.blob is not None
                number = int(row.blob)
                assert row.data == b'{"sum":%d,"mine":0}' % (number * (number + 1) // 2)

    class Summing(Probe):
        async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
            ctx.data["mine"] += item
            await scattered(item)
            return await super().process_item(ctx, item)

        async def flush_window(self, ctx: Context, outputs: list[int]) -> Any:
            ctx.data["sum"] += sum(outputs)
            return await super().flush_window(ctx, outputs)

        async def on_close(self, ctx: Context, reason: Any) -> str:
            final.append(dict(ctx.data))
            return await super().on_close(ctx, reason)

    final: list[Any] = []
    store, probes = FaultyStore(Checked(), crash_at=at, before=not after), []

    async def main() -> None:
        end = None
        while end is None:
            probes.append(Summing(numbers(1, 13), max_in_flight=4))
            try:
                end = await machine(probes[-1], store).orchestrate(
                    "work", workflow_id="r", data={"sum": 0, "mine": 0}, if_exists="resume"
                )
            except Crashed:
                pass

    asyncio.run(main())
    seen = [item for probe in probes for item in probe.items]
    assert sorted(set(seen)) == list(range(1, 14))
    assert len(seen) - 13 <= (0 if after else 2)
    assert final[-1] == {"sum": 91, "mine": 0}


# -- kill -9 ------------------------------------------------------------------------------------------------------------

CHILD = """
import asyncio, os, sys
from tests.streams import Probe, machine, numbers
from cano import SqliteCheckpointStore, Window

path, mode = sys.argv[1:]

async def process(item):
    if mode == "slow first" and item == 1:
        await asyncio.Event().wait()
    if mode == "slow first" and item == 2:
        print("ready", flush=True)
    if mode == "dies" and item == 3:
        os._exit(9)
    await asyncio.sleep(0.0001 * (item * 7 % 5))

def flush(outputs):
    print("flushed", *outputs, flush=True)

probe = Probe(numbers(1, 200), window=Window(count=5 if mode == "steady" else 1), process=process, flush=flush, max_in_flight=4)
flow = machine(probe, SqliteCheckpointStore(path))
print(asyncio.run(flow.orchestrate("work", workflow_id="r", if_exists="resume")), flush=True)
"""


def child(path: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(path), mode], stdout=subprocess.PIPE, text=True, env=os.environ)


def stored(path: Path) -> list[bytes]:
    connection = sqlite3.connect(path)
    rows = [blob for (blob,) in connection.execute("SELECT blob FROM cano_checkpoints WHERE kind = 'STEP_CURSOR'")]
    connection.close()
    return rows


def finish(path: Path) -> list[int]:
    """Resume to the end; the items flushed by that."""
    process = child(path, "steady")
    output, _ = process.communicate(timeout=30)
    *flushes, end = output.splitlines()
    assert end == "done"
    return [int(word) for line in flushes for word in line.split()[1:]]


def test_while_the_first_item_is_slow_no_cursor_is_stored_and_a_kill_delivers_it_again(tmp_path: Path) -> None:
    """BR-10."""
    path = tmp_path / "runs.db"
    with child(path, "slow first") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
        assert process.stdout.read() == ""
    assert stored(path) == []
    assert finish(path) == list(range(1, 201))


def test_a_process_that_dies_in_an_item_has_stored_no_cursor_at_or_beyond_it(tmp_path: Path) -> None:
    """BR-12."""
    path = tmp_path / "runs.db"
    process = child(path, "dies")
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 9
    flushed = [int(line.split()[1]) for line in output.splitlines()]
    assert flushed == list(range(1, len(flushed) + 1))
    cursor = int(stored(path)[0]) if stored(path) else 0
    assert cursor <= len(flushed) < 3
    assert finish(path) == list(range(cursor + 1, 201))


def test_a_process_killed_again_and_again_loses_nothing_and_replays_at_most_one_window_each_time(tmp_path: Path) -> None:
    chance, path = random.Random(11), tmp_path / "runs.db"
    flushed: list[int] = []
    kills = 0
    while True:
        process = child(path, "steady")
        assert process.stdout is not None
        patience = chance.randint(1, 15)
        for lines, line in enumerate(process.stdout, 1):
            if line.startswith("flushed"):
                flushed += map(int, line.split()[1:])
            if lines == patience:
                process.send_signal(signal.SIGKILL)
        process.stdout.close()
        if process.wait() == 0:
            break
        kills += 1
    assert kills >= 2
    assert sorted(set(flushed)) == list(range(1, 201))
    assert len(flushed) - 200 <= 5 * kills
