"""Dead letters: a dropped item is durably set aside before any cursor may pass it, or the run fails."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CancellationToken,
    CheckpointRow,
    CloseReason,
    ConfigurationError,
    Context,
    CursorError,
    DeadLetter,
    FailFast,
    FixedRetry,
    MemoryCheckpointStore,
    RetryOnError,
    SkipAndContinue,
    SqliteCheckpointStore,
    Stop,
    TaskConfig,
    TaskExecutionError,
    Window,
    WorkflowCancelledError,
    WorkflowObserver,
)
from cano.recovery.checkpoint import RowKind
from cano.recovery.letters import SqliteDeadLetterSink
from cano.task.items import PARKED_AT_LEAST
from cano.testing import Crashed, RecordingObserver
from tests.streams import Probe, cursors, failing, machine, numbers, run, scattered, then_silence, turns, until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

ONE_AND_FOUR = pytest.mark.parametrize("width", [1, 4])
SKIP = SkipAndContinue()


class Sink:
    """Keeps letters in memory; `before` and `after` may step in around each."""

    def __init__(self, before: Any = None, after: Any = None) -> None:
        self.letters: list[DeadLetter] = []
        self.before, self.after = before, after

    @property
    def items(self) -> list[Any]:
        return [letter.item for letter in self.letters]

    async def write(self, letter: DeadLetter) -> None:
        await asyncio.sleep(0)
        if self.before is not None and (waiting := self.before(letter)) is not None:
            await waiting
        self.letters.append(letter)
        if self.after is not None:
            self.after(letter)


def dropped(seen: RecordingObserver) -> list[tuple[str, bool]]:
    """Of each item that an observer was told of: why it was dropped, and whether as a dead letter."""
    return [(event.error_type, event.dead_lettered) for event in seen.of("item_dropped")]


class Placed(Probe):
    """Its dropped items advance the cursor."""

    def cursor_of(self, item: int) -> int:
        return item


# -- what is written ----------------------------------------------------------------------------------------------------


@ONE_AND_FOUR
async def test_a_dropped_item_is_written_with_its_reason_and_told_to_the_observers(width: int) -> None:
    sink, seen = Sink(), RecordingObserver()
    probe = Placed(numbers(1, 6), process=failing(2, 5), on_item_error=SKIP, dead_letters=sink, max_in_flight=width)
    assert await run(probe, MemoryCheckpointStore(), observers=[seen]) == "done"
    assert probe.items == [1, 3, 4, 6]
    assert sink.items == [2, 5]
    letter = sink.letters[0]
    assert (letter.workflow_id, letter.state, letter.task, letter.cursor) == ("r", "work", "Placed", 2)
    assert (letter.error_type, str(letter.error)) == ("ValueError", "bad 2")
    assert (letter.encode_item(), letter.encode_cursor()) == (b"2", b"2")
    assert "bad" not in repr(letter)
    assert dropped(seen) == [("ValueError", True)] * 2


@ONE_AND_FOUR
async def test_without_a_sink_the_observers_are_told_so_and_without_cursor_of_there_is_no_cursor(width: int) -> None:
    sink, seen = Sink(), RecordingObserver()
    for letters in (None, sink):
        probe = Probe(numbers(1, 2), process=failing(1), on_item_error=SKIP, dead_letters=letters, max_in_flight=width)
        assert await run(probe, observers=[seen]) == "done"
    assert dropped(seen) == [
        ("ValueError", False),
        ("ValueError", True),
    ]
    assert (sink.letters[0].cursor, sink.letters[0].encode_cursor()) == (None, None)


@ONE_AND_FOUR
@pytest.mark.parametrize(("policy", "written"), [(FailFast(), []), (RetryOnError(0), []), (RetryOnError(2), [1, 2])])
async def test_an_item_that_fails_the_run_is_no_dead_letter(width: int, policy: Any, written: list[int]) -> None:
    sink = Sink()
    probe = Probe(numbers(1, 9), process=failing(1, 2, 3), on_item_error=policy, dead_letters=sink, max_in_flight=width)
    with pytest.raises(TaskExecutionError):
        await run(probe)
    assert sink.items == written


@ONE_AND_FOUR
async def test_a_letter_is_written_once_the_attempts_are_used_up_and_has_the_last_failure(width: int) -> None:
    calls: list[int] = []

    def process(item: int) -> None:
        calls.append(item)
        raise ValueError(str(len(calls)))

    sink = Sink()
    probe = Probe(
        numbers(1, 1), process=process, on_item_error=SKIP, item_retry=FixedRetry(2, 0), dead_letters=sink, max_in_flight=width
    )
    assert await run(probe) == "done"
    assert [str(letter.error) for letter in sink.letters] == ["3"]


@ONE_AND_FOUR
async def test_an_item_that_takes_too_long_is_a_letter_of_that_kind(width: int, tmp_path: Path) -> None:
    async def process(item: int) -> None:
        if item == 2:
            await asyncio.Event().wait()

    async with SqliteDeadLetterSink(tmp_path / "letters.db") as sink:
        probe = Placed(
            numbers(1, 3),
            process=process,
            on_item_error=SKIP,
            config=TaskConfig(attempt_timeout=0.01),
            dead_letters=sink,
            max_in_flight=width,
        )
        assert await run(probe, MemoryCheckpointStore()) == "done"
        (letter,) = await sink.letters()
    assert (letter.category, letter.error_type) == ("timeout", AttemptTimeoutError.__name__)
    assert (letter.item, letter.cursor, letter.workflow_id, letter.state) == (b"2", b"2", "r", "work")


@ONE_AND_FOUR
async def test_letters_are_written_in_the_order_of_the_source(width: int) -> None:
    async def process(item: int) -> None:
        await scattered(item)
        failing(2, 3, 5, 7, 8)(item)

    sink = Sink()
    assert await run(Probe(numbers(1, 9), process=process, on_item_error=SKIP, dead_letters=sink, max_in_flight=width)) == "done"
    assert sink.items == [2, 3, 5, 7, 8]


async def test_no_value_is_in_any_log_line_event_or_message(tmp_path: Path, caplog: Any) -> None:
    """BR-78."""
    caplog.set_level(logging.DEBUG)

    class Secretive(Placed):
        async def process_item(self, ctx: Context, item: Any) -> Any:
            raise KeyError("s3cr3t-error")

        def cursor_of(self, item: Any) -> Any:
            return 53973

    class Failing:
        async def write(self, letter: DeadLetter) -> None:
            raise OSError("s3cr3t-sink")

    events: list[Any] = []
    seen = WorkflowObserver()
    seen.on_item_dropped = events.append  # type: ignore[method-assign]  # this observer is not shared

    def source(cursor: Any) -> Any:
        return [53973]

    async with SqliteDeadLetterSink(tmp_path / "letters.db") as sink:
        assert await run(Secretive(source, on_item_error=SKIP, dead_letters=sink), observers=[seen]) == "done"
    with pytest.raises(TaskExecutionError) as caught:
        await run(Secretive(source, on_item_error=SKIP, dead_letters=Failing()))
    for text in (caplog.text, repr(events), str(caught.value), repr(caught.value)):
        assert "s3cr3t" not in text
        assert "53973" not in text


async def test_what_has_no_async_write_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="dead_letters"):
        await run(Probe(numbers(1, 2), dead_letters=object()))


# -- before any cursor --------------------------------------------------------------------------------------------------


@ONE_AND_FOUR
@pytest.mark.parametrize("placed", [False, True])
async def test_a_failing_sink_stops_the_commit_and_surfaces_with_the_items_error_as_cause(width: int, placed: bool) -> None:
    """BR-20."""

    def refuse(letter: DeadLetter) -> None:
        raise OSError("full")

    store = MemoryCheckpointStore()
    kind = Placed if placed else Probe
    probe = kind(numbers(1, 9), process=failing(4), on_item_error=SKIP, dead_letters=Sink(refuse), max_in_flight=width)
    with pytest.raises(TaskExecutionError, match=r"dead letter \(OSError\)") as caught:
        await run(probe, store)
    assert str(caught.value.__cause__) == "bad 4"
    assert probe.flushed == [[1, 2]]
    assert probe.closed == []
    assert await cursors(store) == ["2"]
    sink = Sink()
    again = kind(numbers(1, 9), process=failing(4), on_item_error=SKIP, dead_letters=sink, max_in_flight=width)
    assert await machine(again, store).resume_from("r") == "done"
    assert sink.items == [4]
    assert again.items == [3, 5, 6, 7, 8, 9]


@ONE_AND_FOUR
@pytest.mark.parametrize("error", [asyncio.CancelledError(), TimeoutError(), StopAsyncIteration()])
async def test_what_a_sink_leaks_is_a_failure_of_the_sink(width: int, error: BaseException) -> None:
    def refuse(letter: DeadLetter) -> None:
        raise error

    store = MemoryCheckpointStore()
    probe = Placed(numbers(1, 4), process=failing(1), on_item_error=SKIP, dead_letters=Sink(refuse), max_in_flight=width)
    with pytest.raises(TaskExecutionError, match="dead letter") as caught:
        await run(probe, store)
    assert str(caught.value.__cause__) == "bad 1"
    assert await cursors(store) == []


@ONE_AND_FOUR
async def test_an_item_that_cannot_be_stored_fails_the_run_and_is_passed_by_no_cursor(width: int, tmp_path: Path) -> None:
    class Odd(Probe):
        def cursor_of(self, item: Any) -> int:
            return 5

    def source(cursor: Any) -> Any:
        return [1, object(), 3]

    def process(item: Any) -> None:
        if item != 1:
            raise ValueError("odd")

    store = MemoryCheckpointStore()
    async with SqliteDeadLetterSink(tmp_path / "letters.db") as sink:
        probe = Odd(source, process=process, window=Window(count=1), on_item_error=SKIP, dead_letters=sink, max_in_flight=width)
        with pytest.raises(TaskExecutionError, match=r"dead letter \(CursorError\)") as caught:
            await run(probe, store)
        assert str(caught.value.__cause__) == "odd"
        assert await sink.letters() == []
    assert await cursors(store) == ["1"]


@ONE_AND_FOUR
@pytest.mark.parametrize("placed", [False, True])
@pytest.mark.parametrize("at", range(1, 8))
@pytest.mark.parametrize("where", ["before the append", "after the append", "before the letter", "after the letter"])
async def test_a_crash_anywhere_loses_no_dropped_item(width: int, placed: bool, at: int, where: str) -> None:
    """Whatever a durable cursor has passed is either flushed or durably a letter."""
    bad = (2, 3, 6, 7, 8, 11)
    left = at

    def strike(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crashed

    class Store(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            if where == "before the append":
                strike()
            if row.kind is RowKind.STEP_CURSOR:
                assert row.blob is not None
                passed = set(range(1, int(row.blob) + 1))
                flushed = {item for probe in probes for item in probe.items} | {item for p in probes for item in p.now}
                assert passed <= flushed | set(sink.items)
            await super().append(workflow_id, row)
            if where == "after the append":
                strike()

    class Noting(Probe):
        now: list[int] = []

        async def flush_window(self, ctx: Context, outputs: list[int]) -> Any:
            self.now = outputs
            return await super().flush_window(ctx, outputs)

    class NotingPlaced(Noting):
        def cursor_of(self, item: int) -> int:
            return item

    sink = Sink(before=strike if where == "before the letter" else None, after=strike if where == "after the letter" else None)
    store, probes = Store(), []

    async def process(item: int) -> None:
        await scattered(item)
        failing(*bad)(item)

    end = None
    while end is None:
        probes.append(
            (NotingPlaced if placed else Noting)(
                numbers(1, 12), process=process, on_item_error=SKIP, dead_letters=sink, max_in_flight=width
            )
        )
        try:
            end = await machine(probes[-1], store).orchestrate("work", workflow_id="r", if_exists="resume")
        except Crashed:
            pass
    assert set(sink.items) == set(bad)
    assert {item for probe in probes for item in probe.items} == set(range(1, 13)) - set(bad)
    assert len(probes) <= 2


@ONE_AND_FOUR
async def test_the_sink_may_share_the_file_of_a_transactional_store(width: int, tmp_path: Path) -> None:
    path = tmp_path / "all.db"
    store = SqliteCheckpointStore(path)
    async with SqliteDeadLetterSink(path) as sink:
        probe = Placed(
            numbers(1, 12),
            process=failing(1, 4, 5, 12),
            on_item_error=SKIP,
            dead_letters=sink,
            transactional=True,
            max_in_flight=width,
        )
        assert await asyncio.wait_for(run(probe, store), 20) == "done"
        assert [letter.item for letter in await sink.letters()] == [b"1", b"4", b"5", b"12"]
    assert probe.items == [2, 3, 6, 7, 8, 9, 10, 11]
    await store.close()


# -- too many -----------------------------------------------------------------------------------------------------------


@ONE_AND_FOUR
@pytest.mark.parametrize("placed", [False, True])
async def test_a_run_that_parks_most_of_its_items_fails(width: int, placed: bool) -> None:
    sink, store = Sink(), MemoryCheckpointStore()

    def process(item: int) -> None:
        if item > 20:
            raise ValueError("mapping gone")

    probe = (Placed if placed else Probe)(
        numbers(1, 1000), process=process, window=Window(count=10), on_item_error=SKIP, dead_letters=sink, max_in_flight=width
    )
    with pytest.raises(TaskExecutionError, match="parks most of its items") as caught:
        await run(probe, store)
    assert str(caught.value.__cause__) == "mapping gone"
    assert len(sink.letters) == PARKED_AT_LEAST
    last = int((await cursors(store))[-1] or 0)
    assert last < 21 + PARKED_AT_LEAST


@ONE_AND_FOUR
@pytest.mark.parametrize("window", [Window(count=300), Window(seconds=60)])
async def test_with_cursor_of_every_resume_of_a_run_that_parks_most_of_its_items_goes_on_behind_them(
    width: int, window: Window
) -> None:
    """However large the window is: a long bad stretch is passed in the end, and no letter is written twice."""
    sink, store = Sink(), MemoryCheckpointStore()

    def process(item: int) -> None:
        if 5 < item <= 350:
            raise ValueError

    probe = Placed(numbers(1, 500), process=process, window=window, on_item_error=SKIP, dead_letters=sink, max_in_flight=width)
    flow, failures = machine(probe, store), 0
    while True:
        try:
            assert await flow.orchestrate("work", workflow_id="r", if_exists="resume") == "done"
            break
        except TaskExecutionError:
            failures += 1
    assert failures == 3
    assert [letter.item for letter in sink.letters] == list(range(6, 351))
    assert probe.items == [*range(1, 6), *range(351, 501)]


@ONE_AND_FOUR
async def test_a_stop_of_the_flush_that_a_flood_of_letters_brings_wins(width: int) -> None:
    store = MemoryCheckpointStore()

    def process(item: int) -> None:
        if item > 5:
            raise ValueError

    probe = Placed(
        numbers(1, 500),
        process=process,
        flush=lambda outputs: Stop("stopped"),
        window=Window(count=300),
        on_item_error=SKIP,
        dead_letters=Sink(),
        max_in_flight=width,
    )
    assert await run(probe, store) == "stopped"
    assert probe.closed == []


@ONE_AND_FOUR
async def test_few_letters_or_a_minority_of_them_do_no_harm(width: int) -> None:
    few = Probe(
        numbers(1, PARKED_AT_LEAST - 1),
        process=failing(*range(1, 500)),
        on_item_error=SKIP,
        dead_letters=Sink(),
        max_in_flight=width,
    )
    assert await run(few) == "done"
    minority = Probe(
        numbers(1, 1000), process=failing(*range(2, 1000, 2)), on_item_error=SKIP, dead_letters=Sink(), max_in_flight=width
    )
    assert await run(minority) == "done"
    without_a_sink = Probe(numbers(1, 500), process=failing(*range(1, 500)), on_item_error=SKIP, max_in_flight=width)
    assert await run(without_a_sink) == "done"


# -- stops --------------------------------------------------------------------------------------------------------------


@ONE_AND_FOUR
@pytest.mark.parametrize("stop", ["token", "cancel"])
async def test_a_letter_that_is_being_written_when_the_stop_comes_is_written_and_counts(width: int, stop: str) -> None:
    token, store, writing, go_on = CancellationToken(), MemoryCheckpointStore(), asyncio.Event(), asyncio.Event()

    def hold(letter: DeadLetter) -> Any:
        writing.set()
        return go_on.wait()

    sink = Sink(hold)
    probe = Placed(
        then_silence(3), process=failing(3), on_item_error=SKIP, window=Window(count=9), dead_letters=sink, max_in_flight=width
    )
    running = asyncio.create_task(run(probe, store, token=token))
    await writing.wait()
    if stop == "token":
        token.cancel()
    else:
        running.cancel()
    await turns(10)
    assert not running.done()
    go_on.set()
    with pytest.raises(WorkflowCancelledError if stop == "token" else asyncio.CancelledError):
        await asyncio.wait_for(running, 5)
    assert sink.items == [3]
    assert probe.flushed == [[1, 2]]
    assert probe.closed == [CloseReason.CANCELLED]
    assert await cursors(store) == ["3"]


@ONE_AND_FOUR
@pytest.mark.parametrize("way", ["drain_timeout", "second cancel"])
async def test_a_sink_that_hangs_is_cut_with_the_drain_and_nothing_passes_its_item(width: int, way: str) -> None:
    writing, store = asyncio.Event(), MemoryCheckpointStore()

    def hang(letter: DeadLetter) -> Any:
        writing.set()
        return asyncio.Event().wait()

    probe = Placed(
        then_silence(4),
        process=failing(3),
        on_item_error=SKIP,
        window=Window(count=2),
        dead_letters=Sink(hang),
        max_in_flight=width,
    )
    flow = machine(probe, store, drain_timeout=0.05 if way == "drain_timeout" else None)
    token = CancellationToken()
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r", token=token))
    await writing.wait()
    await until(lambda: probe.items == [1, 2])
    if way == "drain_timeout":
        token.cancel()
    else:
        running.cancel()
        await turns(5)
        running.cancel()
    with pytest.raises(WorkflowCancelledError if way == "drain_timeout" else asyncio.CancelledError):
        await asyncio.wait_for(running, 5)
    assert await cursors(store) == ["2"]
    assert probe.closed == []
    again, sink = Placed(numbers(1, 4), process=failing(3), on_item_error=SKIP, max_in_flight=width), Sink()
    again.dead_letters = sink
    assert await machine(again, store).resume_from("r") == "done"
    assert (again.items, sink.items) == ([4], [3])


@ONE_AND_FOUR
async def test_a_sink_that_fails_in_a_drain_fails_the_run_and_nothing_is_committed(width: int) -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()

    async def refuse() -> None:
        token.cancel()
        await turns(5)
        raise OSError

    probe = Placed(then_silence(2), process=failing(2), on_item_error=SKIP, window=Window(count=9), max_in_flight=width)
    probe.dead_letters = Sink(lambda letter: refuse())
    with pytest.raises(TaskExecutionError, match="dead letter"):
        await asyncio.wait_for(run(probe, store, token=token), 5)
    assert probe.flushed == []
    assert probe.closed == []
    assert await cursors(store) == []


@ONE_AND_FOUR
async def test_cancels_at_every_instant_leave_every_item_flushed_or_parked(width: int) -> None:
    for instant in range(50):
        token, store, sink = CancellationToken(), MemoryCheckpointStore(), Sink()
        options = {"process": failing(1, 4, 5), "on_item_error": SKIP, "dead_letters": sink, "max_in_flight": width}
        probe = Placed(numbers(1, 7), **options)
        running = asyncio.create_task(run(probe, store, token=token))
        await turns(instant)
        token.cancel()
        rest = Placed(numbers(1, 7), **options)
        try:
            assert await asyncio.wait_for(running, 10) == "done"
        except WorkflowCancelledError:
            assert await machine(rest, store).orchestrate("work", workflow_id="r", if_exists="resume") == "done"
        assert probe.items + rest.items == [2, 3, 6, 7]
        assert sink.items == [1, 4, 5]


async def test_a_letter_refuses_a_value_of_another_type_than_declared() -> None:
    sink = Sink()

    def source(cursor: Any) -> Any:
        return ["text"]

    def process(item: Any) -> None:
        raise ValueError

    assert await run(Probe(source, process=process, on_item_error=SKIP, dead_letters=sink)) == "done"
    with pytest.raises(CursorError, match="an item of Probe"):
        sink.letters[0].encode_item()
