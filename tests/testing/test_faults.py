"""Stores, sources and clocks that go wrong when they are told to, and only then."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cano import (
    CheckpointRow,
    CheckpointStoreError,
    ConfigurationError,
    MemoryCheckpointStore,
    RowKind,
    SqliteCheckpointStore,
    StreamTask,
    Window,
    Workflow,
    clock,
)
from cano.recovery.store import Claiming, Transactional
from cano.testing import (
    Crash,
    Crashed,
    Fail,
    FaultyStore,
    ManualClock,
    Pause,
    RecordingObserver,
    ScriptedSource,
    checkpoint_store_contract,
)
from tests.sagas import Plain, Unclaimed, raises

pytestmark = pytest.mark.asyncio


def entry(sequence: int) -> CheckpointRow:
    return CheckpointRow(sequence, RowKind.STATE_ENTRY, "STATE", "task")


async def fill(store: Any, count: int) -> None:
    for sequence in range(count):
        await store.append("r", entry(sequence))


async def count(store: Any) -> int:
    return len(await store.load_run("r"))


class Read(StreamTask[str, tuple[int, str], str, int]):
    window = Window(count=2)

    def __init__(self, source: ScriptedSource[str], sink: list[str]) -> None:
        self.source, self.sink = source, sink

    def open(self, ctx: Any, cursor: int | None) -> Any:
        return self.source.after(cursor)

    async def process_item(self, ctx: Any, item: tuple[int, str]) -> tuple[str, int]:
        number, value = item
        return value, number

    async def flush_window(self, ctx: Any, outputs: list[str]) -> None:
        self.sink.extend(outputs)

    async def on_close(self, ctx: Any, reason: Any) -> str:
        return "done"


def reading(source: ScriptedSource[str], sink: list[str], store: Any, *observers: Any) -> Workflow[str]:
    flow = Workflow[str](checkpoint_store=store, observers=observers)
    return flow.register("read", Read(source, sink)).add_exit_state("done")


# -- FaultyStore ---------------------------------------------------------------------------------------------------------


async def test_without_a_fault_it_is_as_good_as_the_store_behind_it(tmp_path: Path) -> None:
    await checkpoint_store_contract(lambda: FaultyStore(MemoryCheckpointStore()))
    await checkpoint_store_contract(lambda: FaultyStore(SqliteCheckpointStore(tmp_path / "runs.db")))


async def test_it_offers_what_the_store_behind_it_offers(tmp_path: Path) -> None:
    sqlite = FaultyStore(SqliteCheckpointStore(tmp_path / "runs.db"))
    memory = FaultyStore(MemoryCheckpointStore())
    bare = FaultyStore(Unclaimed())
    offered = [(isinstance(store, Claiming), isinstance(store, Transactional)) for store in (sqlite, memory, bare)]
    assert offered == [(True, True), (True, False), (False, False)]
    await fill(memory, 1)
    assert await memory.list_runs() == ["r"]
    assert not hasattr(memory, "nonsense")


@pytest.mark.parametrize("at", [0, -1, True, 1.5])
async def test_an_append_is_named_by_a_number_from_1(at: Any) -> None:
    for name in ("fail_at", "stall_at", "crash_at"):
        with pytest.raises(ConfigurationError, match=name):
            FaultyStore(MemoryCheckpointStore(), **{name: at})


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"store": 5}, "not before a int"),
        ({"store": MemoryCheckpointStore}, "not before a type"),
        ({"error": 5}, "error must be an Exception"),
        ({"error": OSError}, "error must be an Exception"),
        ({"error": KeyboardInterrupt()}, "a death is crash_at"),
        ({"before": "after"}, "before must be True or False"),
        ({"fail_at": 2, "crash_at": 2}, "must be different appends"),
        ({"fail_at": 1, "stall_at": 3, "crash_at": 3}, "must be different appends"),
    ],
)
async def test_what_could_not_happen_is_refused(arguments: dict[str, Any], cause: str) -> None:
    with pytest.raises(ConfigurationError, match=cause):
        FaultyStore(**{"store": MemoryCheckpointStore(), "fail_at": 1, **arguments})


@pytest.mark.parametrize("before", [True, False])
async def test_append_n_fails_once_before_or_after_its_row_is_there(before: bool) -> None:
    store = FaultyStore(MemoryCheckpointStore(), fail_at=3, before=before)
    with pytest.raises(OSError, match="broken"):
        await fill(store, 5)
    assert (store.appends, await count(store)) == (3, 2 if before else 3)
    await store.append("r", entry(await count(store)))
    other = FaultyStore(MemoryCheckpointStore(), fail_at=1, error=KeyError("x"))
    with pytest.raises(KeyError):
        await fill(other, 1)


@pytest.mark.parametrize("before", [True, False])
async def test_append_n_is_a_crash_before_or_after_its_row_is_there(before: bool) -> None:
    store = FaultyStore(MemoryCheckpointStore(), crash_at=2, before=before)
    with pytest.raises(Crashed):
        await fill(store, 5)
    assert await count(store) == (1 if before else 2)


@pytest.mark.parametrize("before", [True, False])
async def test_append_n_stalls_until_it_is_released(before: bool) -> None:
    store = FaultyStore(MemoryCheckpointStore(), stall_at=2, before=before)
    store.release()
    filling = asyncio.create_task(fill(store, 4))
    while not store.stalled:
        await asyncio.sleep(0)
    for _ in range(10):
        await asyncio.sleep(0)
    assert await count(store) == (1 if before else 2)
    store.release()
    await filling
    assert (await count(store), store.stalled) == (4, False)


@pytest.mark.parametrize("before", [True, False])
async def test_a_stalled_append_that_is_cancelled_is_whole_or_nothing(before: bool) -> None:
    store = FaultyStore(MemoryCheckpointStore(), stall_at=1, before=before)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await fill(store, 1)
    assert (await count(store), store.stalled) == (0 if before else 1, False)


@pytest.mark.parametrize("before", [True, False])
async def test_appends_of_a_transaction_count_and_after_means_after_its_commit(tmp_path: Path, before: bool) -> None:
    async with SqliteCheckpointStore(tmp_path / "runs.db") as sqlite:
        store = FaultyStore(sqlite, crash_at=2, before=before)
        await fill(store, 1)
        with pytest.raises(Crashed):
            async with store.transaction("r") as transaction:
                await transaction.connection.execute("CREATE TABLE t (x)")
                await transaction.append(entry(1))
        assert await count(store) == (1 if before else 2)


async def test_a_run_whose_log_fails_fails_and_can_be_resumed() -> None:
    source, sink = ScriptedSource("abcdef"), []
    store = FaultyStore(MemoryCheckpointStore(), fail_at=3)
    with pytest.raises(CheckpointStoreError):
        await reading(source, sink, store).orchestrate("read", workflow_id="r")
    assert sink == ["a", "b", "c", "d"]
    assert await reading(source, sink, store).resume_from("r") == "done"
    assert sink == ["a", "b", "c", "d", "c", "d", "e", "f"]


# -- ScriptedSource ------------------------------------------------------------------------------------------------------


async def test_a_pause_cannot_be_negative() -> None:
    with pytest.raises(ConfigurationError, match="must not be negative$"):
        Pause(-1)


@pytest.mark.parametrize("script", [5, None, [1, Crash], [Fail], (Pause, 1)])
async def test_what_is_no_script_is_refused(script: Any) -> None:
    with pytest.raises(ConfigurationError, match="a script "):
        ScriptedSource(script)


@pytest.mark.parametrize(
    "arguments", [(5,), (OSError,), (KeyboardInterrupt(),), (OSError(), 0), (OSError(), True), (OSError(), 1.5)]
)
async def test_a_failure_is_an_exception_some_times(arguments: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^Fail\("):
        Fail(*arguments)


async def test_a_script_gives_items_with_their_numbers_from_any_cursor_on() -> None:
    source = ScriptedSource(["a", Pause(0), "b", "c"])
    assert [pair async for pair in source.after(None)] == [(1, "a"), (2, "b"), (3, "c")]
    assert [pair async for pair in source.after(0)] == [(1, "a"), (2, "b"), (3, "c")]
    assert [pair async for pair in source.after(2)] == [(3, "c")]
    assert [pair async for pair in source.after(3)] == []
    assert (source.reads, source.cursors, source.closed) == ([["a", "b", "c"]] * 2 + [["c"], []], [None, 0, 2, 3], 4)
    assert source.items == ["a", "b", "c"]
    for cursor in (-1, 4, True, 1.0, "1"):
        with pytest.raises(ConfigurationError, match="0 to 3"):
            source.after(cursor)  # type: ignore[arg-type]  # that is the point of some


async def test_a_crash_happens_once_and_a_failure_as_often_as_it_says() -> None:
    source = ScriptedSource([1, Crash(), 2, Fail(OSError("x"), times=2), 3])
    seen: list[Any] = []
    for _ in range(4):
        try:
            seen += [item async for _, item in source.after(None)]
        except (Crashed, OSError) as error:
            seen.append(type(error))
    assert seen == [Crashed, OSError, OSError, 1, 2, 3]
    assert source.reads == [[1], [1, 2], [1, 2], [1, 2, 3]]


async def test_what_lies_before_the_cursor_does_not_happen() -> None:
    source = ScriptedSource([Fail(OSError()), 1, Pause(10**6), 2, Crash(), 3])
    with pytest.raises(Crashed):
        async for _ in source.after(2):
            pass
    assert [item async for _, item in source.after(2)] == [3]


async def test_a_crash_in_the_source_is_a_crash_of_the_run_and_a_resume_loses_nothing() -> None:
    source, sink, store = ScriptedSource(["a", "b", "c", Crash(), "d", Fail(ValueError()), "e"]), [], MemoryCheckpointStore()
    with pytest.raises(Crashed):
        await reading(source, sink, store).orchestrate("read", workflow_id="r")
    assert sink == ["a", "b"]
    with pytest.raises(Exception, match="ValueError"):
        await reading(source, sink, store).resume_from("r")
    assert await reading(source, sink, store).resume_from("r") == "done"
    assert sink == ["a", "b", "c", "d", "e"]
    assert (source.cursors, source.closed) == ([None, 2, 4], 3)


# -- RecordingObserver ---------------------------------------------------------------------------------------------------


async def test_it_keeps_every_event_in_order() -> None:
    seen = RecordingObserver()
    await reading(ScriptedSource("abc"), [], MemoryCheckpointStore(), seen).orchestrate("read", workflow_id="r")
    assert seen.names == [
        *("run_start", "state_enter", "checkpoint", "task_start", "checkpoint", "window", "checkpoint", "window"),
        *("task_success", "state_enter", "checkpoint", "run_end"),
    ]
    assert seen.path == ["read", "done"]
    seen.assert_path("read", "done")
    assert [event.count for event in seen.of("window")] == [2, 1]
    assert [event.outcome for event in seen.of("run_end")] == ["completed"]
    assert {event.workflow_id for event in seen.events} == {"r"}
    taken = seen.take()
    assert (len(taken), seen.events, seen.path) == (12, [], [])


async def test_a_path_that_is_another_and_an_event_that_there_is_not_are_errors() -> None:
    seen = RecordingObserver()
    seen.assert_path()
    with pytest.raises(AssertionError, match="entered were none, not read > done"):
        seen.assert_path("read", "done")
    with pytest.raises(ValueError, match=r"no event 'windows'; there are .*window"):
        seen.of("windows")


async def test_it_knows_the_failures_and_retries_of_a_task_too() -> None:
    seen = RecordingObserver()
    flow = Workflow[str](observers=[seen]).register("a", Plain([], "A", "done", raises(KeyError()))).add_exit_state("done")
    with pytest.raises(Exception, match="KeyError"):
        await flow.orchestrate("a")
    assert len(seen.of("task_failure")) == 1
    assert [event.outcome for event in seen.of("run_end")] == ["failed"]


# -- ManualClock ---------------------------------------------------------------------------------------------------------


async def test_a_manual_clock_stands_still_until_it_is_advanced() -> None:
    with ManualClock(start=datetime(2030, 1, 1, tzinfo=UTC)) as manual:
        assert (clock.now(), clock.wall()) == (0, datetime(2030, 1, 1, tzinfo=UTC))
        manual.advance(90)
        manual.advance(timedelta(minutes=1))
        assert clock.now() == manual.now == 150
        assert clock.wall() == manual.wall == datetime(2030, 1, 1, 0, 2, 30, tzinfo=UTC)
        for wrong in (-1, float("nan"), float("inf"), -float("inf"), 10**400, "1", None):
            with pytest.raises(ConfigurationError) as refused:
                manual.advance(wrong)  # type: ignore[arg-type]  # that is the point
            assert "no limit" not in str(refused.value)
        assert manual.now == 150
    assert abs(clock.wall() - datetime.now(UTC)) < timedelta(seconds=30)
    assert abs(clock.now() - time.monotonic()) < 30
    with pytest.raises(ConfigurationError, match="time zone"):
        ManualClock(start=datetime(2030, 1, 1))
