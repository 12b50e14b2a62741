"""Items in flight: with `max_in_flight` above 1 a stream does what it does with 1, only more at a time."""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cano import (
    All,
    CloseReason,
    Context,
    MemoryCheckpointStore,
    SkipAndContinue,
    Split,
    SqliteCheckpointStore,
    Stop,
    TaskExecutionError,
    Window,
)
from tests.streams import Gates, Probe, cursors, failing, machine, numbers, run, scattered, then_silence, turns, until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


# -- order --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("last", [0, 1, 6, 7, 50])
@pytest.mark.parametrize("width", [2, 4, 9])
async def test_count_windows_hold_every_item_once_in_the_order_of_the_source(count: int, last: int, width: int) -> None:
    probe = Probe(numbers(1, last), window=Window(count=count), process=scattered, max_in_flight=width)
    assert await run(probe) == "done"
    assert probe.items == list(range(1, last + 1))
    assert all(len(window) == count for window in probe.flushed[:-1])
    assert all(probe.flushed)
    assert probe.closed == [CloseReason.EXHAUSTED]


async def test_the_cursor_is_that_of_the_longest_finished_prefix() -> None:
    """BR-10, BR-12."""
    store, gates = MemoryCheckpointStore(), Gates()
    probe = Probe(then_silence(8), process=gates, window=Window(count=1), max_in_flight=4)
    running = asyncio.create_task(run(probe, store))
    gates.open(2, 3, 4)
    await until(lambda: gates.inside == {1})
    await turns(20)
    assert (probe.flushed, await cursors(store)) == ([], [])
    gates.open(1)
    await until(lambda: probe.items == [1, 2, 3, 4])
    gates.open(5, 7, 8)
    await until(lambda: gates.inside == {6})
    await until(lambda: probe.items == [1, 2, 3, 4, 5])
    await turns(20)
    assert await cursors(store) == ["5"]
    running.cancel()
    gates.open(6)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await cursors(store) == ["8"]


@pytest.mark.parametrize("width", [2, 4, 7])
async def test_as_many_items_as_allowed_are_in_process_at_once_and_never_more(width: int) -> None:
    inside: set[int] = set()
    most: list[int] = []

    async def process(item: int) -> None:
        inside.add(item)
        most.append(len(inside))
        await turns(3 + item % 3)
        inside.discard(item)

    probe = Probe(numbers(1, 60), process=process, max_in_flight=width)
    assert await run(probe) == "done"
    assert max(most) == width


async def test_workers_live_as_long_as_the_stream_and_no_asyncio_task_is_made_for_an_item() -> None:
    loop = asyncio.get_running_loop()
    made: list[int] = []
    workers: set[Any] = set()

    def factory(loop: Any, work: Any, **options: Any) -> Any:
        made.append(1)
        return asyncio.Task(work, loop=loop, **options)

    async def process(item: int) -> None:
        workers.add(asyncio.current_task())
        await asyncio.sleep(0)

    counts = []
    loop.set_task_factory(factory)
    for last in (10, 400):
        made.clear()
        assert await run(Probe(numbers(1, last), process=process, window=Window(count=1000), max_in_flight=4)) == "done"
        counts.append(len(made))
    loop.set_task_factory(None)
    assert counts[0] == counts[1]
    assert len(workers) == 8


@pytest.mark.parametrize("width", [2, 5])
async def test_what_was_pulled_and_is_not_processed_stays_within_the_width(width: int) -> None:
    """BR-119."""
    gates, pulled = Gates(), 0

    async def source(cursor: int | None) -> Any:
        nonlocal pulled
        for pulled in range(1, 100):
            yield pulled

    probe = Probe(source, process=gates, window=Window(count=1), max_in_flight=width)
    running = asyncio.create_task(run(probe))
    gates.open(*range(2, 100))
    await until(lambda: gates.inside == {1})
    await turns(50)
    assert pulled == width
    gates.open(1)
    assert await running == "done"
    assert len(probe.items) == 99


async def test_a_slow_flush_slows_the_source_and_no_window_holds_more_than_its_count() -> None:
    """BR-119."""
    pulled = 0

    async def source(cursor: int | None) -> Any:
        nonlocal pulled
        for pulled in range(1, 40):
            yield pulled

    async def flush(outputs: list[int]) -> None:
        ahead.append(pulled - outputs[-1])
        await turns(30)
        ahead.append(pulled - outputs[-1])

    ahead: list[int] = []
    probe = Probe(source, flush=flush, process=scattered, window=Window(count=3), max_in_flight=5)
    assert await run(probe) == "done"
    assert max(map(len, probe.flushed)) == 3
    assert max(ahead) <= 5 + 1


# -- windows ------------------------------------------------------------------------------------------------------------


async def test_a_time_window_closes_on_time_again_and_again_while_one_read_waits() -> None:
    """BR-104: the source is silent, and items that were in flight go on filling windows."""
    gates, probe_closed = Gates(), asyncio.Event()

    async def source(cursor: int | None) -> Any:
        for number in range(1, 5):
            yield number
        await probe_closed.wait()

    probe = Probe(source, process=gates, window=Window(seconds=0.02), max_in_flight=8)
    running = asyncio.create_task(run(probe))
    for number in range(1, 5):
        gates.open(number)
        await until(lambda number=number: probe.items == list(range(1, number + 1)))
    assert probe.flushed == [[1], [2], [3], [4]]
    probe_closed.set()
    assert await running == "done"


async def test_a_full_count_window_is_flushed_beside_a_waiting_read() -> None:
    store, gates = MemoryCheckpointStore(), Gates()
    probe = Probe(then_silence(6), process=gates, max_in_flight=8)
    running = asyncio.create_task(run(probe, store))
    for first in (1, 3, 5):
        gates.open(first + 1)
        await turns()
        gates.open(first)
        await until(lambda first=first: probe.items == list(range(1, first + 2)))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await cursors(store) == ["6"]


async def test_a_time_window_closes_while_the_stream_waits_for_room() -> None:
    gates = Gates()
    probe = Probe(numbers(1, 9), process=gates, window=Window(seconds=0.02), max_in_flight=3)
    gates.open(1)
    running = asyncio.create_task(run(probe))
    await until(lambda: probe.flushed == [[1]])
    gates.open(2, 3)
    await until(lambda: probe.items == [1, 2, 3])
    gates.open(*range(4, 10))
    assert await running == "done"
    assert probe.items == list(range(1, 10))


async def test_a_time_window_closes_while_the_last_items_are_in_flight() -> None:
    gates = Gates()
    probe = Probe(numbers(1, 3), process=gates, window=Window(seconds=0.02), max_in_flight=8)
    gates.open(1)
    running = asyncio.create_task(run(probe))
    await until(lambda: probe.flushed == [[1]])
    gates.open(2, 3)
    assert await running == "done"
    assert probe.items == [1, 2, 3]


@pytest.mark.parametrize("window", [Window(seconds=0.001), Window(count=3, seconds=0.002), Window(count=2, seconds=5)])
async def test_no_item_is_lost_or_repeated_when_reads_items_and_deadlines_race(window: Window) -> None:
    """BR-01."""
    for seed in range(10):
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def feed(queue: asyncio.Queue[int], seed: int) -> None:
            for number in range(60):
                await asyncio.sleep(((number * 7919 + seed * 104729) % 30) / 10000)
                queue.put_nowait(number)
            queue.put_nowait(-1)

        async def source(cursor: int | None, queue: asyncio.Queue[int] = queue) -> Any:
            while (item := await queue.get()) >= 0:
                yield item

        probe = Probe(source, window=window, process=scattered, max_in_flight=4)
        feeder = asyncio.create_task(feed(queue, seed))
        assert await run(probe) == "done"
        await feeder
        assert probe.items == list(range(60))
        assert all(len(outputs) <= (window.count or 60) for outputs in probe.flushed)


async def test_an_item_that_comes_during_a_flush_beside_the_read_waits_for_its_commit() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    order: list[str] = []

    async def source(cursor: int | None) -> Any:
        while (item := await queue.get()) >= 0:
            yield item

    async def flush(outputs: list[int]) -> None:
        order.append(f"flush {outputs}")
        if outputs == [1]:
            queue.put_nowait(2)
            queue.put_nowait(-1)
            await turns(20)
            order.append("flushed")

    queue.put_nowait(1)
    probe = Probe(source, window=Window(count=1), flush=flush, process=lambda item: order.append(f"item {item}"), max_in_flight=4)
    assert await run(probe, MemoryCheckpointStore()) == "done"
    assert order == ["item 1", "flush [1]", "flushed", "item 2", "flush [2]"]


# -- how a stream ends --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", ["ends", "swallows", "raises", "cleans up"])
async def test_a_stop_is_committed_with_its_cursor_and_what_is_in_flight_is_cancelled_and_awaited(answer: str) -> None:
    log: list[str] = []

    async def source(cursor: int | None) -> Any:
        try:
            for number in range(1, 100):
                yield number
        finally:
            log.append("closed")

    async def process(item: int) -> None:
        if item <= 2:
            return
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await turns(5 if answer == "cleans up" else 0)
            log.append("cancelled")
            if answer == "raises":
                raise ValueError from None
            if answer != "swallows":
                raise

    class Kept(MemoryCheckpointStore):
        async def clear(self, workflow_id: str) -> None:
            pass

    store = Kept()
    probe = Probe(source, process=process, flush=lambda outputs: Stop("stopped"), max_in_flight=4)
    assert await asyncio.wait_for(run(probe, store), 5) == "stopped"
    assert probe.flushed == [[1, 2]]
    assert probe.closed == []
    assert set(log[:-1]) == {"cancelled"}
    assert log[-1] == "closed"
    row = (await store.load_run("r"))[1]
    assert (row.blob, row.next_state) == (b"2", "stopped")


async def test_a_stop_from_a_window_flushed_for_room_or_at_the_end_counts_too() -> None:
    for last, stop in ((3, [3]), (40, [1, 2]), (2, [1, 2])):
        probe = Probe(
            numbers(1, last),
            process=scattered,
            flush=lambda outputs, stop=stop: Stop("stopped") if outputs == stop else None,
            max_in_flight=3,
        )
        assert await run(probe) == "stopped"
        assert probe.closed == []
        assert probe.flushed[-1] == stop
    gates = Gates()
    gates.open(1)
    waiting = Probe(
        numbers(1, 40), process=gates, window=Window(seconds=0.01), flush=lambda outputs: Stop("stopped"), max_in_flight=3
    )
    assert await asyncio.wait_for(run(waiting), 5) == "stopped"
    assert waiting.flushed == [[1]]


async def test_a_stop_beside_a_read_interrupts_that_read() -> None:
    probe = Probe(then_silence(2), flush=lambda outputs: Stop("stopped"), process=scattered, max_in_flight=4)
    assert await asyncio.wait_for(run(probe), 5) == "stopped"
    assert probe.closed == []


@pytest.mark.parametrize("last", [0, 1])
async def test_a_stream_that_ends_before_its_workers_have_begun_leaves_nothing_behind(last: int) -> None:
    probe = Probe(lambda cursor: range(last), max_in_flight=50)
    assert await run(probe) == "done"
    assert probe.items == list(range(last))


@pytest.mark.parametrize("width", [1, 4])
async def test_an_error_of_the_source_comes_after_the_items_before_it(width: int) -> None:
    """BR-15: no policy swallows it, and what came before it is not lost by it."""

    async def source(cursor: int | None) -> Any:
        for number in range(1, 6):
            yield number
        raise LookupError("gone")

    async def process(item: int) -> None:
        await turns(20 - item)
        failing(2)(item)

    store = MemoryCheckpointStore()
    probe = Probe(source, process=process, on_item_error=SkipAndContinue(), max_in_flight=width)
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe, store)
    assert isinstance(caught.value.__cause__, LookupError)
    assert probe.flushed == [[1, 3], [4, 5]]
    assert await cursors(store) == ["5"]
    assert probe.closed == []


@pytest.mark.parametrize("width", [1, 4])
async def test_a_flush_that_goes_on_beside_a_read_is_not_cut_when_that_read_fails(width: int) -> None:
    flushing = asyncio.Event()

    async def source(cursor: int | None) -> Any:
        yield 1
        await flushing.wait()
        raise LookupError("gone")

    async def flush(outputs: list[int]) -> None:
        flushing.set()
        await turns(10)

    store = MemoryCheckpointStore()
    probe = Probe(source, window=Window(seconds=0.01), flush=flush, max_in_flight=width)
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe, store)
    assert isinstance(caught.value.__cause__, LookupError)
    assert probe.flushed == [[1]]
    assert await cursors(store) == ["1"]


async def test_a_failing_item_before_a_failing_source_is_what_surfaces() -> None:
    async def source(cursor: int | None) -> Any:
        yield 1
        raise LookupError("gone")

    async def process(item: int) -> None:
        await turns(5)
        raise ValueError("bad")

    with pytest.raises(TaskExecutionError) as caught:
        await run(Probe(source, process=process, max_in_flight=4))
    assert str(caught.value.__cause__) == "bad"


# -- what the hooks see -------------------------------------------------------------------------------------------------

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="none")


async def test_every_hook_sees_the_callers_context_variables_and_two_runs_never_mix() -> None:
    """BR-131."""

    async def one(name: str) -> set[str]:
        seen: set[str] = set()

        async def hook(argument: Any) -> None:
            await asyncio.sleep(0)
            seen.add(VARIABLE.get())

        VARIABLE.set(name)
        await run(Probe(numbers(1, 20), process=hook, flush=hook, close=hook, max_in_flight=4))
        return seen

    assert await asyncio.gather(one("a"), one("b")) == [{"a"}, {"b"}]


async def test_an_item_works_on_a_copy_of_the_data_that_is_dropped_and_totals_are_kept_in_the_flush() -> None:
    final: list[Any] = []

    class Summing(Probe):
        async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
            assert ctx.data["mine"] == 0
            ctx.data["mine"] += 1
            await turns(item % 3)
            assert (ctx.window_id, ctx.transaction, ctx.attempt, ctx.state, ctx.task) == (None, None, 1, "work", "Summing")
            return item, item

        async def flush_window(self, ctx: Context, outputs: list[int]) -> None:
            assert ctx.window_id is not None
            ctx.data["sum"] += sum(outputs)

        async def on_close(self, ctx: Context, reason: CloseReason) -> str:
            final.append(ctx.data)
            return "done"

    flow = machine(Summing(numbers(1, 20), max_in_flight=4), MemoryCheckpointStore())
    assert await flow.orchestrate("work", workflow_id="r", data={"sum": 0, "mine": 0}) == "done"
    assert final == [{"sum": 210, "mine": 0}]


@pytest.mark.parametrize("width", [1, 4])
async def test_the_results_of_the_split_before_are_seen_by_items_in_flight(width: int) -> None:
    seen: list[Any] = []

    async def branch(ctx: Context) -> int:
        return 5

    class Looking(Probe):
        async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
            seen.append(ctx.branches)
            return item, item

    flow = machine(Looking(numbers(1, 3), max_in_flight=width)).register("fan", Split([branch], join=All(), then="work"))
    assert await flow.orchestrate("fan") == "done"
    assert len(seen) == 3
    assert None not in seen


async def test_data_that_cannot_be_copied_fails_the_run_instead_of_hanging() -> None:
    class Spoiling(Probe):
        async def open(self, ctx: Context, cursor: int | None) -> Any:
            ctx.data["what"] = object()
            for number in range(1, 9):
                yield number

    sink: list[Any] = []

    class Sink:
        async def write(self, letter: Any) -> None:
            sink.append(letter)

    probe = Spoiling(numbers(1, 9), on_item_error=SkipAndContinue(), dead_letters=Sink(), max_in_flight=4)
    with pytest.raises(TaskExecutionError):
        await asyncio.wait_for(machine(probe).orchestrate("work", data={"what": 0}), 5)
    assert (probe.processed, sink, probe.closed) == ([], [], [])


async def test_transactional_windows_take_what_was_in_flight(tmp_path: Path) -> None:
    path = tmp_path / "all.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE sink (number INTEGER)")

    class Writing(Probe):
        transactional = True

        async def flush_window(self, ctx: Context, outputs: list[int]) -> Any:
            for output in outputs:
                await ctx.transaction.execute("INSERT INTO sink VALUES (?)", (output,))
            return await super().flush_window(ctx, outputs)

    failed: list[int] = []

    def flush(outputs: list[int]) -> None:
        if outputs[0] not in failed:
            failed.append(outputs[0])
            raise ValueError

    store = SqliteCheckpointStore(path)
    end = None
    while end is None:
        probe = Writing(numbers(1, 9), process=scattered, flush=flush, max_in_flight=4)
        try:
            end = await machine(probe, store).orchestrate("work", workflow_id="r", if_exists="resume")
        except TaskExecutionError:
            pass
    assert failed == [1, 3, 5, 7, 9]
    assert connection.execute("SELECT number FROM sink ORDER BY rowid").fetchall() == [(n,) for n in range(1, 10)]
    connection.close()
    await store.close()


# -- fairness -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [2, 64])
@pytest.mark.parametrize("busy", ["item", "source"])
async def test_an_always_ready_source_lets_other_tasks_run_every_ten_milliseconds(width: int, busy: str) -> None:
    """Counted in pieces of work of 2 ms, of which no more than that fit in, whatever else the machine has to do."""
    loop = asyncio.get_running_loop()
    done = 0
    ticks: list[int] = []

    async def ticker() -> None:
        while True:
            ticks.append(done)
            await asyncio.sleep(0)

    def work() -> None:
        nonlocal done
        done += 1
        end = loop.time() + 0.002
        while loop.time() < end:
            pass

    async def source(cursor: int | None) -> Any:
        for number in range(130):
            if busy == "source":
                work()
            yield number

    other = asyncio.create_task(ticker())
    process = (lambda item: work()) if busy == "item" else None
    await run(Probe(source, window=Window(count=100000), process=process, max_in_flight=width))
    other.cancel()
    assert done == 130
    assert max(after - before for before, after in pairwise(ticks)) <= 7


async def test_a_time_window_on_an_always_ready_source_closes_on_time() -> None:
    spans: list[float] = []
    mark = time.monotonic()

    def flush(outputs: list[int]) -> None:
        nonlocal mark
        now = time.monotonic()
        spans.append(now - mark)
        mark = now

    async def source(cursor: int | None) -> Any:
        end = time.monotonic() + 0.2
        number = 0
        while time.monotonic() < end:
            number += 1
            yield number

    await run(Probe(source, window=Window(seconds=0.02), flush=flush, max_in_flight=4))
    assert 3 <= len(spans) <= 11
