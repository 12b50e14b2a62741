"""Items in flight when the run is stopped, in every way and at every moment."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CancellationToken,
    CloseReason,
    FixedRetry,
    MemoryCheckpointStore,
    SkipAndContinue,
    Stop,
    TaskConfig,
    TaskExecutionError,
    Window,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)
from tests.streams import Gates, Probe, cursors, failing, machine, numbers, run, then_silence, turns, until

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

HOUR = Window(seconds=3600)
ENDS = {"token": WorkflowCancelledError, "cancel": asyncio.CancelledError, "timeout": WorkflowTimeoutError}


# -- one drain ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", ["token", "cancel", "timeout"])
@pytest.mark.parametrize("waits", ["in a read", "for room", "at the end"])
@pytest.mark.parametrize("window", [HOUR, Window(count=2), Window(count=100)])
async def test_a_stop_lets_what_is_in_flight_finish_and_commits_it(stop: str, waits: str, window: Window) -> None:
    """BR-31, BR-27: no item is interrupted, each window is flushed once, the cursor is the last item's."""
    store, token, gates = MemoryCheckpointStore(), CancellationToken(), Gates()
    source = then_silence(3) if waits == "in a read" else numbers(1, 3 if waits == "at the end" else 9)
    probe = Probe(source, process=gates, window=window, max_in_flight=3 if waits == "for room" else 5)
    flow = machine(probe, store, total_timeout=0.05 if stop == "timeout" else None)
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r", token=token))
    await until(lambda: gates.inside == {1, 2, 3})
    await turns(10)
    if stop == "token":
        token.cancel()
    elif stop == "cancel":
        running.cancel()
    else:
        await asyncio.sleep(0.06)
    await turns(10)
    assert gates.inside == {1, 2, 3}
    assert probe.closed == []
    for number in (3, 2, 1):
        gates.open(number)
        await turns(3)
    with pytest.raises(ENDS[stop]):
        await running
    assert probe.flushed == ([[1, 2], [3]] if window.count == 2 else [[1, 2, 3]])
    assert probe.closed == [CloseReason.CANCELLED]
    assert await cursors(store) == ["3"]
    again = Probe(numbers(1, 9), window=window, max_in_flight=3)
    assert await machine(again, store).resume_from("r") == "done"
    assert again.items == list(range(4, 10))


@pytest.mark.parametrize("place", ["process", "flush", "source", "timer"])
async def test_whatever_the_timing_a_cancel_is_never_missed(place: str) -> None:
    """BR-23: no item is pulled after it, and no more than were in flight are processed."""
    loop = asyncio.get_running_loop()
    for seed in range(60):
        chance, token, store = random.Random(seed), CancellationToken(), MemoryCheckpointStore()
        pulled_after = began_after = 0

        def strike(token: CancellationToken = token, chance: random.Random = chance) -> None:
            if chance.random() < 0.05:
                token.cancel()

        async def source(cursor: int | None, strike: Any = strike, chance: Any = chance, token: Any = token) -> Any:
            nonlocal pulled_after
            number = -1 if cursor is None else cursor
            while True:
                pulled_after += token.cancelled
                number += 1
                if place == "source":
                    strike()
                if chance.random() < 0.2:
                    await asyncio.sleep(0)
                yield number

        async def process(item: int, strike: Any = strike, token: Any = token, chance: Any = chance) -> None:
            nonlocal began_after
            began_after += token.cancelled
            if place == "process":
                strike()
            await turns(chance.randrange(4))

        probe = Probe(
            source,
            window=chance.choice([Window(count=3), Window(seconds=0.001), Window(count=5, seconds=0.002)]),
            process=process,
            flush=lambda outputs, strike=strike: strike() if place == "flush" else None,
            max_in_flight=3,
        )
        if place == "timer":
            loop.call_later(chance.random() * 0.01, token.cancel)
        with pytest.raises(WorkflowCancelledError):
            await asyncio.wait_for(run(probe, store, token=token), 10)
        assert pulled_after == 0
        assert began_after <= 3
        assert probe.items == sorted(probe.processed)
        assert await cursors(store) == ([str(probe.items[-1])] if probe.items else [])
        assert probe.closed == ([CloseReason.CANCELLED] if probe.opened else [])


async def test_cancels_at_every_instant_leave_nothing_half_done() -> None:
    async def source(cursor: int | None) -> Any:
        for number in range(1 if cursor is None else cursor + 1, 8):
            await asyncio.sleep(0)
            yield number

    async def step(argument: Any) -> None:
        await turns(argument % 3 if isinstance(argument, int) else 1)

    for cancels in (1, 2):
        for instant in range(50):
            store = MemoryCheckpointStore()
            probe = Probe(source, window=Window(count=3, seconds=0.001), process=step, flush=step, close=step, max_in_flight=3)
            running = asyncio.create_task(run(probe, store))
            await turns(instant)
            for _ in range(cancels):
                running.cancel()
                await turns(1)
            try:
                assert await running == "done"
                continue
            except asyncio.CancelledError:
                pass
            committed = await cursors(store)
            last = int(committed[-1] or 0) if committed else 0
            again = Probe(source, window=Window(count=3), max_in_flight=3)
            if not await store.list_runs():
                continue
            assert await machine(again, store).resume_from("r") == "done"
            kept = [item for item in probe.items if item <= last]
            assert kept + again.items == list(range(1, 8))
            if cancels == 1:
                assert probe.items == kept


async def test_a_stop_from_the_drains_flushes_is_ignored() -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()

    async def process(item: int) -> None:
        token.cancel()
        await turns(5)

    probe = Probe(numbers(1, 9), process=process, flush=lambda outputs: Stop("stopped"), max_in_flight=3)
    with pytest.raises(WorkflowCancelledError):
        await run(probe, store, token=token)
    assert probe.closed == [CloseReason.CANCELLED]
    assert probe.flushed == [[1, 2], [3]]
    assert [row.next_state for row in await store.load_run("r")] == [None, None]


async def test_a_stop_decided_before_the_cancel_was_seen_is_kept_for_the_resume() -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()
    probe = Probe(numbers(1, 9), flush=lambda outputs: token.cancel() or Stop("stopped"), max_in_flight=3)
    with pytest.raises(WorkflowCancelledError):
        await run(probe, store, token=token)
    assert probe.closed == []
    again = Probe(numbers(1, 9), max_in_flight=3)
    assert await machine(again, store).resume_from("r") == "stopped"
    assert again.opened == []


@pytest.mark.parametrize("window", [Window(count=2), Window(count=9)])
async def test_a_flush_that_fails_in_a_drain_commits_nothing_still_closes_and_surfaces(window: Window) -> None:
    def flush(outputs: list[int]) -> None:
        raise ValueError("full")

    async def process(item: int) -> None:
        token.cancel()
        await turns(5)

    token, store = CancellationToken(), MemoryCheckpointStore()
    probe = Probe(numbers(1, 9), process=process, flush=flush, window=window, on_item_error=SkipAndContinue(), max_in_flight=3)
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe, store, token=token)
    assert str(caught.value.__cause__) == "full"
    assert probe.closed == [CloseReason.CANCELLED]
    assert await cursors(store) == []


async def test_an_item_that_fails_in_a_drain_fails_the_run_as_without_one() -> None:
    async def process(item: int) -> None:
        token.cancel()
        await turns(5)
        failing(2)(item)

    token, store = CancellationToken(), MemoryCheckpointStore()
    probe = Probe(numbers(1, 9), process=process, window=Window(count=1), max_in_flight=3)
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe, store, token=token)
    assert str(caught.value.__cause__) == "bad 2"
    assert probe.flushed == [[1]]
    assert probe.closed == []
    assert await cursors(store) == ["1"]
    token = CancellationToken()
    skipping = Probe(numbers(1, 9), process=process, window=Window(count=1), on_item_error=SkipAndContinue(), max_in_flight=3)
    with pytest.raises(WorkflowCancelledError):
        await machine(skipping, store).resume_from("r", token=token)
    assert skipping.items == [3, 4]


# -- with retries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", ["in a read", "for room", "at the end"])
async def test_a_stop_ends_every_wait_between_attempts_but_no_item_that_runs(waits: str) -> None:
    """BR-25: item 2 is between two attempts; 1 counts, 3 runs to its end although it has to come again."""
    store, token, gates, ran = MemoryCheckpointStore(), CancellationToken(), Gates(), []

    async def process(item: int) -> None:
        if item == 2:
            raise ValueError
        await gates(item)
        ran.append(item)

    source = then_silence(3) if waits == "in a read" else numbers(1, 3 if waits == "at the end" else 9)
    probe = Probe(
        source,
        process=process,
        window=HOUR,
        item_retry=FixedRetry(3, 3600),
        on_item_error=SkipAndContinue(),
        max_in_flight=3 if waits == "for room" else 5,
    )
    running = asyncio.create_task(run(probe, store, token=token))
    await until(lambda: gates.inside == {1, 3} and probe.processed.count(2) == 1)
    gates.open(1)
    await turns(10)
    token.cancel()
    await turns(20)
    more = [4] if waits == "for room" else []  # item 1 had made room for it
    assert gates.inside == {3, *more}
    assert probe.closed == []
    gates.open(3, *more)
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(running, 5)
    assert ran == [1, 3, *more]
    assert probe.flushed == [[1]]
    assert probe.closed == [CloseReason.CANCELLED]
    assert await cursors(store) == ["1"]
    again = Probe(numbers(1, 9), max_in_flight=3)
    assert await machine(again, store).resume_from("r") == "done"
    assert again.items == list(range(2, 10))


async def test_an_item_that_fails_after_the_stop_is_not_tried_again_although_a_flush_still_goes_on() -> None:
    store, token, gates, flushing, go_on = MemoryCheckpointStore(), CancellationToken(), Gates(), asyncio.Event(), asyncio.Event()

    async def process(item: int) -> None:
        await gates(item)
        failing(2)(item)

    async def flush(outputs: list[int]) -> None:
        flushing.set()
        await go_on.wait()

    probe = Probe(
        then_silence(2), process=process, flush=flush, window=Window(count=1), item_retry=FixedRetry(9, 0), max_in_flight=3
    )
    gates.open(1)
    running = asyncio.create_task(run(probe, store, token=token))
    await flushing.wait()
    token.cancel()
    gates.open(2)
    await turns(30)
    assert probe.processed == [1, 2]
    go_on.set()
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(running, 5)
    assert probe.processed == [1, 2]
    assert await cursors(store) == ["1"]


# -- aborted drains -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["process", "flush", "close"])
@pytest.mark.parametrize("way", ["drain_timeout", "second cancel"])
async def test_an_aborted_drain_interrupts_anything_and_leaves_nothing_behind(hook: str, way: str) -> None:
    """BR-41."""
    store, inside = MemoryCheckpointStore(), asyncio.Event()

    async def hang(argument: Any) -> None:
        inside.set()
        await asyncio.Event().wait()

    window = Window(count=1) if hook == "flush" else HOUR
    probe = Probe(then_silence(2), window=window, max_in_flight=3, **{hook: hang})
    flow = machine(probe, store, drain_timeout=0.05 if way == "drain_timeout" else None)
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r"))
    if hook == "close":
        await until(lambda: len(probe.processed) == 2)
        await turns(10)
    else:
        await inside.wait()
    running.cancel()
    if way == "second cancel":
        await turns(10)
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5)
    assert await cursors(store) == (["2"] if hook == "close" else [])
    assert await machine(Probe(numbers(1, 3), max_in_flight=3), store).resume_from("r") == "done"


async def test_an_abort_is_passed_on_to_an_item_that_resists_it_once() -> None:
    async def process(item: int) -> None:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    token = CancellationToken()
    probe = Probe(then_silence(2), process=process, max_in_flight=3)
    running = asyncio.create_task(run(probe, token=token, drain_timeout=0.02))
    await until(lambda: len(probe.processed) == 2)
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(running, 10)


async def test_a_flush_beside_the_read_and_items_in_flight_are_all_ended_by_an_abort() -> None:
    log: list[str] = []

    async def slow(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await turns(3)
            log.append(name)

    async def process(item: int) -> None:
        if item > 1:
            await slow(f"item {item}")

    probe = Probe(then_silence(3), process=process, flush=lambda outputs: slow("flush"), window=Window(count=1), max_in_flight=4)
    running = asyncio.create_task(run(probe))
    await until(lambda: len(probe.processed) == 3)
    await turns(10)
    running.cancel()
    await turns(10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5)
    assert sorted(log) == ["flush", "item 2", "item 3"]


# -- attempt timeouts, leaks and crashes --------------------------------------------------------------------------------


async def test_every_item_in_flight_has_its_own_attempt_timeout() -> None:
    async def process(item: int) -> None:
        await asyncio.sleep(0.02)
        if item % 4 == 2:
            await asyncio.Event().wait()

    bound = TaskConfig(attempt_timeout=0.1)
    probe = Probe(numbers(1, 9), process=process, config=bound, on_item_error=SkipAndContinue(), max_in_flight=4)
    assert await run(probe) == "done"
    assert probe.items == [1, 3, 4, 5, 7, 8, 9]
    with pytest.raises(AttemptTimeoutError) as caught:
        await run(Probe(numbers(1, 9), process=process, config=bound, max_in_flight=4))
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("error", [TimeoutError("db"), asyncio.CancelledError("leaked"), StopAsyncIteration("x")])
async def test_what_an_item_leaks_is_an_ordinary_failure(error: BaseException) -> None:
    """BR-29."""

    def process(item: int) -> None:
        raise error

    for policy in ({}, {"on_item_error": SkipAndContinue()}):
        probe = Probe(numbers(1, 5), process=process, config=TaskConfig(attempt_timeout=10), max_in_flight=3, **policy)
        if policy and isinstance(error, Exception):
            assert await run(probe) == "done"
            continue
        with pytest.raises(TaskExecutionError) as caught:
            await run(probe)
        assert caught.value.category == "task_execution"
        assert caught.value.__cause__ is error or caught.value.__cause__.__cause__ is error  # type: ignore[union-attr]  # a cause of ours has one


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
@pytest.mark.parametrize("waits", ["in a read", "for room", "at the end", "in a drain"])
async def test_any_other_base_exception_of_an_item_passes_at_once_like_a_crash(error: BaseException, waits: str) -> None:
    """Although an item before it is not finished: nothing is committed any more, the source is closed."""
    store, gates, token, closed = MemoryCheckpointStore(), Gates(), CancellationToken(), []

    async def source(cursor: int | None) -> Any:
        try:
            for number in range(1, 3 if waits == "at the end" else 9):
                yield number
                if number == 2 and waits == "in a read":
                    await asyncio.Event().wait()
        finally:
            closed.append("closed")

    async def process(item: int) -> None:
        await gates(item)
        if item == 2:
            raise error

    async def drive() -> None:
        await until(lambda: 2 in gates.inside)
        await turns(10)
        if waits == "in a drain":
            token.cancel()
            await turns(10)
        gates.open(2)

    width = 2 if waits in ("for room", "in a drain") else 5
    probe = Probe(source, process=process, window=Window(count=1), on_item_error=SkipAndContinue(), max_in_flight=width)
    driver = asyncio.create_task(drive())
    with pytest.raises(type(error)):
        async with asyncio.timeout(5):
            await run(probe, store, token=token)
    await driver
    assert closed == ["closed"]
    assert probe.closed == []
    assert await cursors(store) == []


async def _lets_it_out() -> None:
    await asyncio.sleep(0)


async def _swallows_it() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(0)


async def _converts_it() -> None:
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        raise ValueError


async def _returns_before_it_comes() -> None: ...


async def _fails_before_it_comes() -> None:
    raise ValueError


@pytest.mark.parametrize("answer", [_lets_it_out, _swallows_it, _converts_it, _returns_before_it_comes, _fails_before_it_comes])
@pytest.mark.parametrize("source", [numbers(1, 9), then_silence(3), numbers(1, 3)], ids=["goes on", "waits", "ends"])
async def test_a_hook_that_cancels_the_asyncio_task_it_runs_in_ends_the_run_resumable(source: Any, answer: Any) -> None:
    async def process(item: int) -> None:
        if item == 3:
            asyncio.current_task().cancel()  # type: ignore[union-attr]  # it runs in one
            await answer()

    store = MemoryCheckpointStore()
    probe = Probe(source, process=process, on_item_error=SkipAndContinue(), max_in_flight=3)
    with pytest.raises(WorkflowCancelledError):
        async with asyncio.timeout(5):
            await run(probe, store, drain_timeout=0.5)
    assert await cursors(store) in ([], ["2"])
    assert await machine(Probe(numbers(1, 9), max_in_flight=3), store).resume_from("r") == "done"
