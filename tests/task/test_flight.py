"""Items in flight: with `max_in_flight` above 1 a stream does what it does with 1, only more at a time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import (
    CheckpointRow,
    CheckpointStoreError,
    MemoryCheckpointStore,
    RetryOnError,
    RunFencedError,
    SkipAndContinue,
    TaskExecutionError,
    Window,
)
from cano.recovery.checkpoint import RowKind
from tests.streams import Gates, Probe, cursors, failing, machine, numbers, run, turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


# -- errors -------------------------------------------------------------------------------------------------------------


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
