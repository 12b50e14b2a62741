"""Items in flight that fail: in the order of the source, under every policy; and what is no item's failure."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import (
    CheckpointRow,
    CheckpointStoreError,
    ConfigurationError,
    CursorError,
    FailFast,
    MemoryCheckpointStore,
    RetryOnError,
    RunFencedError,
    SkipAndContinue,
    StreamTask,
    TaskExecutionError,
    Window,
)
from cano.recovery.checkpoint import RowKind
from tests.streams import Gates, Probe, cursors, failing, machine, numbers, run, then_silence, turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


@pytest.mark.parametrize("policy", [SkipAndContinue(), RetryOnError(5)])
@pytest.mark.parametrize("at", [1, 4, 9, 12])
async def test_a_failing_flush_is_no_items_error_and_no_policy_swallows_it(policy: Any, at: int) -> None:
    def flush(outputs: list[int]) -> None:
        if at in outputs:
            raise ValueError("full")

    store = MemoryCheckpointStore()
    probe = Probe(numbers(1, 12), flush=flush, window=Window(count=1), on_item_error=policy, max_in_flight=3)
    with pytest.raises(TaskExecutionError, match="flush_window") as caught:
        await run(probe, store)
    assert str(caught.value.__cause__) == "full"
    assert probe.items == list(range(1, at))
    assert await cursors(store) == ([str(at - 1)] if at > 1 else [])


async def test_a_flush_that_fails_while_the_stream_waits_for_room_is_no_items_error() -> None:
    def flush(outputs: list[int]) -> None:
        raise ValueError("full")

    gates, store = Gates(), MemoryCheckpointStore()
    gates.open(1)
    probe = Probe(
        numbers(1, 9),
        process=gates,
        flush=flush,
        window=Window(seconds=0.01),
        on_item_error=SkipAndContinue(),
        max_in_flight=3,
    )
    with pytest.raises(TaskExecutionError, match="flush_window") as caught:
        await asyncio.wait_for(run(probe, store), 10)
    assert str(caught.value.__cause__) == "full"
    assert await cursors(store) == []


async def test_a_dead_letter_that_fails_while_the_stream_waits_for_room_fails_the_run() -> None:
    """BR-20."""

    class Sink:
        def __init__(self) -> None:
            self.letters: list[Any] = []

        async def write(self, letter: Any) -> None:
            self.letters.append(letter)
            if len(self.letters) == 1:
                raise OSError("full")

    async def process(item: int) -> None:
        await turns(10 * item)
        failing(2)(item)

    sink, store = Sink(), MemoryCheckpointStore()
    probe = Probe(
        numbers(1, 9),
        process=process,
        window=Window(count=1),
        on_item_error=SkipAndContinue(),
        dead_letters=sink,
        max_in_flight=2,
    )
    with pytest.raises(TaskExecutionError, match="dead letter") as caught:
        await run(probe, store)
    assert str(caught.value.__cause__) == "bad 2"
    assert [letter.item for letter in sink.letters] == [2]
    assert await cursors(store) == ["1"]


@pytest.mark.parametrize("error", [CheckpointStoreError("disk"), RunFencedError("other")])
async def test_a_failing_store_surfaces_as_itself(error: Exception) -> None:
    class Full(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            if row.kind is RowKind.STEP_CURSOR and row.sequence > 3:
                raise error
            await super().append(workflow_id, row)

    store = Full()
    probe = Probe(numbers(1, 20), window=Window(count=1), on_item_error=SkipAndContinue(), max_in_flight=3)
    with pytest.raises(type(error)):
        await run(probe, store)
    assert await cursors(store) == ["3"]


async def test_an_item_that_is_being_judged_is_passed_by_no_other() -> None:
    """The letter of item 1 takes its time; meanwhile 2 to 4 finish, and must neither be flushed nor be counted."""
    store, gates = MemoryCheckpointStore(), Gates()

    class Sink:
        async def write(self, letter: Any) -> None:
            gates.open(2, 3, 4)
            await turns(20)
            assert probe.flushed == []

    class Placed(Probe):
        def cursor_of(self, item: int) -> int:
            return item

    async def process(item: int) -> None:
        await gates(item)
        if item == 1:
            raise ValueError

    gates.open(1)
    probe = Placed(
        numbers(1, 4),
        process=process,
        window=Window(count=10),
        on_item_error=SkipAndContinue(),
        dead_letters=Sink(),
        max_in_flight=4,
    )
    committed: list[Any] = []

    async def close(reason: Any) -> None:
        committed.extend(await cursors(store))

    probe.hooks["close"] = close
    assert await run(probe, store) == "done"
    assert probe.flushed == [[2, 3, 4]]
    assert committed == ["4"]


@pytest.mark.parametrize("bad", [(1,), (4,), (6, 7), (9,)])
async def test_fail_fast_takes_the_first_error_in_the_order_of_the_source(bad: tuple[int, ...]) -> None:
    """BR-08, BR-09: later ones finish first, and what came before is kept or comes again."""

    async def process(item: int) -> None:
        await turns(20 - item)
        failing(*bad)(item)

    store = MemoryCheckpointStore()
    probe = Probe(numbers(1, 9), process=process, max_in_flight=4)
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe, store)
    first, full = bad[0], (bad[0] - 1) // 2
    assert str(caught.value.__cause__) == f"bad {first}"
    assert probe.flushed == [[2 * n + 1, 2 * n + 2] for n in range(full)]
    assert await cursors(store) == ([str(2 * full)] if full else [])
    assert probe.closed == []
    again = Probe(numbers(1, 9), max_in_flight=4)
    assert await machine(again, store).resume_from("r") == "done"
    assert probe.items + again.items == list(range(1, 10))


@pytest.mark.parametrize(
    ("budget", "bad", "survives"),
    [(2, (2, 3), True), (1, (2, 3), False), (0, (2,), False), (2, (2, 3, 5, 6), True), (2, (4, 5, 6), False)],
)
async def test_errors_in_a_row_are_counted_in_the_order_of_the_source(budget: int, bad: Any, survives: bool) -> None:
    async def process(item: int) -> None:
        if item not in bad:
            await turns(20)  # every error is there before any success
        failing(*bad)(item)

    probe = Probe(numbers(1, 8), process=process, on_item_error=RetryOnError(budget), max_in_flight=8)
    if survives:
        assert await run(probe) == "done"
        assert probe.items == [number for number in range(1, 9) if number not in bad]
    else:
        with pytest.raises(TaskExecutionError):
            await run(probe)


async def test_a_skipped_item_is_not_delivered_again_once_a_later_cursor_is_committed() -> None:
    """BR-17."""
    store, token_fired = MemoryCheckpointStore(), asyncio.Event()
    probe = Probe(then_silence(6, token_fired), process=failing(3), on_item_error=SkipAndContinue(), max_in_flight=4)
    running = asyncio.create_task(run(probe, store))
    await token_fired.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert probe.items == [1, 2, 4, 5, 6]
    again = Probe(numbers(1, 6), max_in_flight=4)
    assert await machine(again, store).resume_from("r") == "done"
    assert again.processed == []


@pytest.mark.parametrize("result", [None, 5, (1,), (1, 2, 3), [1, 2], "ab"])
@pytest.mark.parametrize("policy", [FailFast(), SkipAndContinue()])
async def test_a_process_item_that_returns_no_pair_fails_the_run_whatever_the_policy(result: Any, policy: Any) -> None:
    class Wrong(Probe):
        async def process_item(self, ctx: Any, item: int) -> Any:
            return result

    with pytest.raises(TaskExecutionError, match=r"pair \(output, cursor\)"):
        await run(Wrong(numbers(1, 3), on_item_error=policy, max_in_flight=4))


@pytest.mark.parametrize("policy", [FailFast(), SkipAndContinue()])
async def test_a_cursor_that_cannot_be_stored_is_refused_before_the_flush_whatever_the_policy(policy: Any) -> None:
    """BR-58."""

    class Untyped(StreamTask):  # type: ignore[type-arg]  # so it is meant
        max_in_flight = 4
        on_item_error = policy
        flushed: list[Any] = []

        async def open(self, ctx: Any, cursor: Any) -> Any:
            for number in range(1, 9):
                yield number

        async def process_item(self, ctx: Any, item: int) -> Any:
            return item, object() if item == 3 else item

        async def flush_window(self, ctx: Any, outputs: Any) -> None:
            self.flushed += outputs

        async def on_close(self, ctx: Any, reason: Any) -> str:
            return "done"

    untyped = Untyped()
    with pytest.raises(CursorError, match="object"):
        await run(untyped)
    assert untyped.flushed == [1, 2]
    typed = Probe(numbers(1, 5), process=lambda item: (item, object()), on_item_error=policy, max_in_flight=4)
    with pytest.raises(CursorError, match="object"):
        await run(typed)
    assert typed.flushed == []


async def test_a_cursor_that_changes_later_is_stored_as_it_was_returned() -> None:
    store = MemoryCheckpointStore()
    position = {"line": 0}

    class Shared(StreamTask):  # type: ignore[type-arg]  # so it is meant
        max_in_flight = 2
        window = Window(count=100)

        async def open(self, ctx: Any, cursor: Any) -> Any:
            yield 1
            await turns(20)
            position["line"] = 99

        async def process_item(self, ctx: Any, item: int) -> Any:
            position["line"] = item
            return item, position

        async def flush_window(self, ctx: Any, outputs: Any) -> None:
            pass

        async def on_close(self, ctx: Any, reason: Any) -> str:
            seen.extend(await cursors(store))
            return "done"

    seen: list[Any] = []
    assert await run(Shared(), store) == "done"
    assert seen == ['{"line":1}']


@pytest.mark.parametrize("width", [0, -1, True, 1.5, None, "4"])
async def test_a_width_that_is_no_number_of_items_is_refused(width: Any) -> None:
    with pytest.raises(ConfigurationError, match="max_in_flight"):
        await run(Probe(numbers(1, 3), max_in_flight=width))
