"""`cursor_of`: a dropped item advances the cursor, so that a bad stretch is not read again for ever."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cano import (
    CancellationToken,
    CheckpointRow,
    CloseReason,
    Context,
    CursorError,
    MemoryCheckpointStore,
    RetryOnError,
    SkipAndContinue,
    SqliteCheckpointStore,
    StreamTask,
    TaskExecutionError,
    Window,
    WorkflowCancelledError,
)
from cano.recovery.checkpoint import RowKind
from cano.testing import Crashed, FaultyStore, RecordingObserver
from tests.streams import Probe, cursors, failing, machine, numbers, run, scattered, then_silence, turns, until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

ONE_AND_FOUR = pytest.mark.parametrize("width", [1, 4])
SKIP = SkipAndContinue()


class Placed(Probe):
    """`asked` are the items whose cursor was asked for."""

    def cursor_of(self, item: int) -> int:
        self.__dict__.setdefault("asked", []).append(item)
        return item


class Committed(MemoryCheckpointStore):
    """Every cursor that became durable, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.cursors: list[int] = []

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        await super().append(workflow_id, row)
        if row.kind is RowKind.STEP_CURSOR:
            assert row.blob is not None
            self.cursors.append(int(row.blob))


def placed(source: Any, *bad: int, **attributes: Any) -> Placed:
    async def process(item: int) -> None:
        await scattered(item)
        failing(*bad)(item)

    return Placed(source, **{"process": process, "on_item_error": SKIP, **attributes})


# -- what is committed, and when ----------------------------------------------------------------------------------------


@ONE_AND_FOUR
async def test_a_dropped_item_advances_the_cursor_and_without_the_hook_it_does_not(width: int) -> None:
    store = Committed()
    assert await run(placed(numbers(1, 4), 2, 4, window=Window(count=1), max_in_flight=width), store) == "done"
    assert store.cursors == [1, 2, 3, 4]
    plain, store = Probe(numbers(1, 4), process=failing(2, 4), on_item_error=SKIP, window=Window(count=1)), Committed()
    plain.max_in_flight = width
    assert await run(plain, store) == "done"
    assert store.cursors == [1, 3]


@ONE_AND_FOUR
async def test_only_dropped_items_are_asked_for_their_cursor(width: int) -> None:
    probe = placed(numbers(1, 6), 2, 5, on_item_error=RetryOnError(1), max_in_flight=width)
    assert await run(probe) == "done"
    assert probe.asked == [2, 5]
    failing_fast = placed(numbers(1, 6), 2, 3, on_item_error=RetryOnError(1), max_in_flight=width)
    with pytest.raises(TaskExecutionError):
        await run(failing_fast)
    assert failing_fast.asked == [2]


@ONE_AND_FOUR
async def test_a_bad_stretch_is_committed_in_windows_of_its_own_and_nothing_is_flushed_for_it(width: int) -> None:
    store, seen = Committed(), RecordingObserver()
    probe = placed(numbers(1, 11), *range(3, 11), window=Window(count=2), max_in_flight=width)
    assert await run(probe, store, observers=[seen]) == "done"
    assert probe.flushed == [[1, 2], [11]]
    assert store.cursors == [2, 4, 6, 8, 10, 11]
    assert [event.count for event in seen.of("window")] == [2, 1]


@ONE_AND_FOUR
async def test_a_long_bad_tail_is_not_read_again_by_a_resume(width: int) -> None:
    store, reached = Committed(), asyncio.Event()
    probe = placed(then_silence(100, reached), *range(4, 101), window=Window(count=10), max_in_flight=width)
    flow = machine(probe, store, drain_timeout=0)
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r"))
    await reached.wait()
    await until(lambda: store.cursors[-1:] == [93])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    again = placed(numbers(1, 100), *range(4, 101), max_in_flight=width)
    assert await machine(again, store).resume_from("r") == "done"
    assert again.opened[0] >= 93
    assert probe.flushed == [[1, 2, 3]]
    assert again.flushed == []


@ONE_AND_FOUR
async def test_a_time_window_of_nothing_but_dropped_items_is_committed_on_time_with_a_silent_source(width: int) -> None:
    """BR-104."""
    loop = asyncio.get_running_loop()
    store, reached = Committed(), asyncio.Event()
    probe = placed(then_silence(3, reached), 1, 2, 3, window=Window(seconds=0.05), max_in_flight=width)
    running = asyncio.create_task(run(probe, store))
    await reached.wait()
    began = loop.time()
    await until(lambda: store.cursors == [3])
    assert loop.time() - began < 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert probe.flushed == []
    assert store.cursors == [3]


@ONE_AND_FOUR
async def test_a_time_window_on_an_always_ready_source_of_bad_items_is_committed_again_and_again(width: int) -> None:
    loop = asyncio.get_running_loop()
    store, end = Committed(), loop.time() + 0.2

    async def source(cursor: int | None) -> Any:
        number = 0
        while loop.time() < end:
            number += 1
            yield number

    class Bad(Placed):
        async def process_item(self, ctx: Context, item: int) -> Any:
            raise ValueError

    assert await run(Bad(source, on_item_error=SKIP, window=Window(seconds=0.02), max_in_flight=width), store) == "done"
    assert 3 <= len(store.cursors) <= 12


@ONE_AND_FOUR
@pytest.mark.parametrize("bad", [(4, 5), (5,), (1, 2, 3, 4, 5), (1,)])
async def test_what_is_left_at_exhaustion_is_committed_before_on_close(width: int, bad: tuple[int, ...]) -> None:
    store = Committed()
    seen: list[int] = []
    probe = placed(numbers(1, 5), *bad, window=Window(count=100), max_in_flight=width)
    probe.hooks["close"] = lambda reason: seen.extend(store.cursors)
    assert await run(probe, store) == "done"
    assert seen == [5]
    good = [item for item in range(1, 6) if item not in bad]
    assert probe.flushed == ([good] if good else [])


@ONE_AND_FOUR
@pytest.mark.parametrize("bad", [(4, 5), (1, 2, 3, 4, 5)])
async def test_what_is_in_hand_in_a_drain_is_committed_although_nothing_is_flushed(width: int, bad: tuple[int, ...]) -> None:
    store, token, reached = Committed(), CancellationToken(), asyncio.Event()
    probe = placed(then_silence(5, reached), *bad, window=Window(count=100), max_in_flight=width)
    running = asyncio.create_task(run(probe, store, token=token))
    await reached.wait()
    await turns(20)
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    assert store.cursors == [5]
    assert probe.closed == [CloseReason.CANCELLED]
    assert probe.flushed == ([[1, 2, 3]] if len(bad) == 2 else [])


@ONE_AND_FOUR
@pytest.mark.parametrize("bad", [(1,), (2,), (3,), (1, 3), (2, 3), (1, 2), (2, 4, 6), (1, 2, 3, 5, 6)])
@pytest.mark.parametrize("count", [1, 2, 3])
async def test_the_cursor_follows_the_source_through_outputs_and_dropped_items(
    width: int, bad: tuple[int, ...], count: int
) -> None:
    """Committed when there are `count` outputs, or `count` dropped items; always with the last item's cursor."""
    expected, outputs, dropped = [], 0, 0
    for item in range(1, 7):
        outputs, dropped = (outputs, dropped + 1) if item in bad else (outputs + 1, dropped)
        if outputs == count or dropped == count:
            expected.append(item)
            outputs = dropped = 0
    if outputs or dropped:
        expected.append(6)
    store = Committed()
    probe = placed(numbers(1, 6), *bad, window=Window(count=count), max_in_flight=width)
    assert await run(probe, store) == "done"
    assert store.cursors == expected
    assert probe.items == [item for item in range(1, 7) if item not in bad]
    assert all(probe.flushed)


@ONE_AND_FOUR
async def test_an_item_that_fails_the_run_is_passed_by_no_cursor(width: int) -> None:
    store = Committed()
    probe = placed(numbers(1, 9), 3, 4, on_item_error=RetryOnError(1), window=Window(count=1), max_in_flight=width)
    with pytest.raises(TaskExecutionError):
        await run(probe, store)
    assert store.cursors == [1, 2, 3]
    again = placed(numbers(1, 9), max_in_flight=width)
    assert await machine(again, store).resume_from("r") == "done"
    assert again.items == [4, 5, 6, 7, 8, 9]


@ONE_AND_FOUR
async def test_the_data_is_stored_with_a_cursor_that_passes_dropped_items(width: int) -> None:
    class Counting(Placed):
        async def flush_window(self, ctx: Context, outputs: list[int]) -> None:
            ids.append(ctx.window_id)
            ctx.data["flushed"] += len(outputs)

    ids: list[Any] = []
    store, reached = Committed(), asyncio.Event()
    probe = Counting(then_silence(6, reached), process=failing(2, 3, 4, 5), on_item_error=SKIP, window=Window(count=1))
    probe.max_in_flight = width
    running = asyncio.create_task(machine(probe, store).orchestrate("work", workflow_id="r", data={"flushed": 0}))
    await until(lambda: store.cursors[-1:] == [6])
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await store.load_run("r"))[-1].data == b'{"flushed":2}'
    assert len(set(ids)) == 2


@ONE_AND_FOUR
async def test_a_transactional_stream_commits_it_in_a_transaction_too(width: int, tmp_path: Path) -> None:
    store, token, reached = SqliteCheckpointStore(tmp_path / "runs.db"), CancellationToken(), asyncio.Event()
    probe = placed(then_silence(7, reached), 2, 3, 4, 5, 6, 7, transactional=True, max_in_flight=width)
    running = asyncio.create_task(run(probe, store, token=token))
    await reached.wait()
    await turns(20)
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    assert probe.flushed == [[1]]
    assert await cursors(store) == ["7"]
    await store.close()


# -- a hook that fails --------------------------------------------------------------------------------------------------


@ONE_AND_FOUR
@pytest.mark.parametrize("error", [LookupError("where"), asyncio.CancelledError(), TimeoutError()])
async def test_a_cursor_of_that_raises_fails_the_run_whatever_the_policy(width: int, error: BaseException) -> None:
    class Lost(Probe):
        def cursor_of(self, item: int) -> int:
            raise error

    store = Committed()
    probe = Lost(numbers(1, 5), process=failing(3), on_item_error=SKIP, window=Window(count=1), max_in_flight=width)
    with pytest.raises(TaskExecutionError, match="cursor_of of Lost") as caught:
        await run(probe, store)
    assert caught.value.__cause__ is error
    assert store.cursors == [1, 2]


@ONE_AND_FOUR
async def test_a_cursor_that_cannot_be_stored_is_refused_before_the_flush(width: int) -> None:
    class Wrong(Probe):
        def cursor_of(self, item: int) -> Any:
            return "three"

    store = Committed()
    probe = Wrong(numbers(1, 3), process=failing(3), on_item_error=SKIP, window=Window(count=4), max_in_flight=width)
    with pytest.raises(CursorError, match="str"):
        await run(probe, store)
    assert probe.flushed == []
    assert store.cursors == []


@ONE_AND_FOUR
async def test_a_cursor_of_none_leaves_the_cursor_where_it_is(width: int) -> None:
    class Unknown(Probe):
        def cursor_of(self, item: int) -> Any:
            return None

    store = Committed()
    probe = Unknown(numbers(1, 4), process=failing(2, 4), on_item_error=SKIP, window=Window(count=1), max_in_flight=width)
    assert await run(probe, store) == "done"
    assert store.cursors == [1, 3]


@ONE_AND_FOUR
async def test_a_cursor_that_changes_later_is_stored_as_it_was_given(width: int) -> None:
    place = {"line": 0}

    class Shared(StreamTask):  # type: ignore[type-arg]  # so it is meant
        max_in_flight = width
        on_item_error = SKIP
        window = Window(count=100)

        async def open(self, ctx: Any, cursor: Any) -> Any:
            yield 1
            yield 2
            await turns(20)
            place["line"] = 99

        def process_item(self, ctx: Any, item: int) -> Any:
            raise ValueError

        def cursor_of(self, item: int) -> Any:
            place["line"] = item
            return place

        async def flush_window(self, ctx: Any, outputs: Any) -> None:
            raise AssertionError

        async def on_close(self, ctx: Any, reason: Any) -> str:
            seen.extend(await cursors(store))
            return "done"

    seen: list[Any] = []
    store = MemoryCheckpointStore()
    assert await run(Shared(), store) == "done"
    assert seen == ['{"line":2}']


# -- crashes ------------------------------------------------------------------------------------------------------------


@ONE_AND_FOUR
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 9))
async def test_a_crash_at_any_append_loses_nothing_and_a_resume_goes_on_after_the_last_dropped_item(
    width: int, after: bool, at: int
) -> None:
    bad = (2, 3, 4, 5, 9, 10, 11)
    store = FaultyStore(Committed(), crash_at=at, before=not after)
    first = placed(numbers(1, 12), *bad, max_in_flight=width)
    second = placed(numbers(1, 12), *bad, max_in_flight=width)
    try:
        assert await run(first, store) == "done"
    except Crashed:
        committed = store.cursors[-1] if store.cursors else None
        assert await machine(second, store).orchestrate("work", workflow_id="r", if_exists="resume") == "done"
        assert second.opened in ([committed], [])  # the exit state's row was there already
        assert not second.processed or min(second.processed) > (committed or 0)
    seen = first.items + second.items
    assert set(seen) == set(range(1, 13)) - set(bad)
    assert len(seen) - 5 <= (0 if after else 2)
    assert store.cursors == sorted(store.cursors)
