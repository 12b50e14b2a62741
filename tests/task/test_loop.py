"""The windowed loop: what is flushed, in what order, and how a stream ends."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CancellationToken,
    CloseReason,
    ConfigurationError,
    CursorError,
    FailFast,
    MemoryCheckpointStore,
    RetryOnError,
    SkipAndContinue,
    Stop,
    StreamTask,
    TaskConfig,
    TaskExecutionError,
    Window,
    WorkflowCancelledError,
    WorkflowError,
)
from tests.streams import Probe, cursors, machine, numbers, run, then_silence

pytestmark = pytest.mark.asyncio


# -- count windows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 7, 50, 1000])
@pytest.mark.parametrize("last", [0, 1, 6, 7, 50])
async def test_count_windows_hold_every_item_once_in_order_and_only_the_last_is_short(count: int, last: int) -> None:
    probe = Probe(numbers(1, last), window=Window(count=count))
    assert await run(probe) == "done"
    assert probe.items == list(range(1, last + 1))
    assert all(len(window) == count for window in probe.flushed[:-1])
    assert all(probe.flushed)
    assert probe.closed == [CloseReason.EXHAUSTED]


async def test_a_stop_ends_the_stream_without_on_close_and_with_the_source_closed() -> None:
    log: list[str] = []

    async def source(cursor: int | None) -> Any:
        try:
            for number in range(100):
                yield number
        finally:
            log.append("closed")

    probe = Probe(source, flush=lambda outputs: Stop("stopped"))
    assert await run(probe) == "stopped"
    assert probe.flushed == [[0, 1]]
    assert probe.closed == []
    assert log == ["closed"]


async def test_a_stop_from_the_last_short_window_wins_over_on_close() -> None:
    probe = Probe(numbers(1, 3), flush=lambda outputs: Stop("stopped") if len(outputs) == 1 else None)
    assert await run(probe) == "stopped"
    assert probe.closed == []


async def test_the_source_is_closed_before_the_next_state_runs() -> None:
    """BR-04."""
    log: list[str] = []

    async def source(cursor: int | None) -> Any:
        try:
            for number in range(10):
                yield number
        finally:
            await asyncio.sleep(0)
            log.append("closed")

    async def after(ctx: Any) -> str:
        log.append("next")
        return "done"

    flow = machine(Probe(source, flush=lambda outputs: Stop("after"))).register("after", after)
    assert await flow.orchestrate("work") == "done"
    assert log == ["closed", "next"]


async def test_one_asyncio_task_opens_reads_processes_and_closes() -> None:
    seen: set[int] = set()

    def note() -> None:
        seen.add(id(asyncio.current_task()))

    async def source(cursor: int | None) -> Any:
        try:
            async with asyncio.timeout(None):
                for number in range(20):
                    note()
                    await asyncio.sleep(0.001)
                    yield number
        finally:
            note()

    token = CancellationToken()
    probe = Probe(source, window=Window(seconds=0.003), process=lambda item: note() or (token.cancel() if item == 15 else None))
    with pytest.raises(WorkflowCancelledError):
        await run(probe, token=token)
    assert len(seen) == 1


@pytest.mark.parametrize("kind", ["list", "generator", "async generator", "coroutine of a list", "iterator without aclose"])
async def test_any_kind_of_iterable_is_a_source(kind: str) -> None:
    class Bare:
        def __init__(self) -> None:
            self.left = [3, 2, 1]

        def __aiter__(self) -> Bare:
            return self

        async def __anext__(self) -> int:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop()

    async def later(cursor: int | None) -> list[int]:
        await asyncio.sleep(0)
        return [1, 2, 3]

    sources: dict[str, Any] = {
        "list": lambda cursor: [1, 2, 3],
        "generator": lambda cursor: (number for number in (1, 2, 3)),
        "async generator": numbers(1, 3),
        "coroutine of a list": later,
        "iterator without aclose": lambda cursor: Bare(),
    }
    probe = Probe(sources[kind])
    assert await run(probe) == "done"
    assert probe.items == [1, 2, 3]


async def test_a_plain_generator_is_closed_on_a_stop() -> None:
    log: list[str] = []

    def source(cursor: int | None) -> Any:
        try:
            yield from range(10)
        finally:
            log.append("closed")

    await run(Probe(source, flush=lambda outputs: Stop("stopped")))
    assert log == ["closed"]


async def test_hooks_may_be_plain_functions() -> None:
    flushed: list[list[int]] = []

    class Plain(StreamTask[str, int, int, int]):
        window = Window(count=2)

        def open(self, ctx: Any, cursor: int | None) -> Any:
            return range(5)

        def process_item(self, ctx: Any, item: int) -> tuple[int, int]:
            return item * 10, item

        def flush_window(self, ctx: Any, outputs: list[int]) -> None:
            flushed.append(outputs)

        def on_close(self, ctx: Any, reason: CloseReason) -> str:
            return "done"

    assert await run(Plain()) == "done"
    assert flushed == [[0, 10], [20, 30], [40]]


async def test_the_outputs_of_a_window_are_the_hooks_to_keep() -> None:
    probe = Probe(numbers(1, 6), flush=lambda outputs: None)
    await run(probe)
    assert probe.flushed == [[1, 2], [3, 4], [5, 6]]


# -- time windows -------------------------------------------------------------------------------------------------------


async def test_a_time_window_closes_on_time_with_a_silent_source_and_the_read_survives() -> None:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[int] = asyncio.Queue()
    flushes: list[tuple[float, list[int]]] = []
    began = loop.time()

    async def source(cursor: int | None) -> Any:
        while (item := await queue.get()) >= 0:
            yield item

    probe = Probe(
        source, window=Window(seconds=0.1), flush=lambda outputs: flushes.append((loop.time() - began, list(outputs))) or None
    )
    for number in (1, 2, 3):
        queue.put_nowait(number)
    loop.call_later(0.35, queue.put_nowait, 4)
    loop.call_later(0.45, queue.put_nowait, -1)
    assert await run(probe) == "done"
    assert [outputs for _, outputs in flushes] == [[1, 2, 3], [4]]
    assert 0.09 <= flushes[0][0] <= 0.16
    assert 0.38 <= flushes[1][0] <= 0.46


async def test_empty_time_windows_are_not_flushed_and_the_deadline_stays_on_its_grid() -> None:
    loop = asyncio.get_running_loop()

    async def source(cursor: int | None) -> Any:
        for at, number in ((0.09, 1), (0.18, 2), (0.27, 3), (0.36, 4)):
            await asyncio.sleep(max(0.0, began + at - loop.time()))
            yield number

    began = loop.time()
    probe = Probe(source, window=Window(seconds=0.15))
    await run(probe)
    assert probe.flushed == [[1], [2, 3], [4]]


async def test_no_item_is_lost_or_repeated_when_reads_and_deadlines_race() -> None:
    """BR-01."""
    for seed in range(25):
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def feed(queue: asyncio.Queue[int], seed: int) -> None:
            for number in range(60):
                await asyncio.sleep(((number * 7919 + seed * 104729) % 30) / 10000)
                queue.put_nowait(number)
            queue.put_nowait(-1)

        async def source(cursor: int | None, queue: asyncio.Queue[int] = queue) -> Any:
            while (item := await queue.get()) >= 0:
                yield item

        probe = Probe(source, window=Window(seconds=0.001))
        feeder = asyncio.create_task(feed(queue, seed))
        assert await run(probe) == "done"
        await feeder
        assert probe.items == list(range(60))


async def test_a_time_window_on_an_always_ready_source_closes_on_time() -> None:
    spans: list[float] = []
    mark = time.monotonic()

    def flush(outputs: list[int]) -> None:
        nonlocal mark
        now = time.monotonic()
        spans.append(now - mark)
        mark = now

    async def source(cursor: int | None) -> Any:
        until = time.monotonic() + 0.2
        number = 0
        while time.monotonic() < until:
            number += 1
            yield number

    await run(Probe(source, window=Window(seconds=0.02), flush=flush))
    assert 7 <= len(spans) <= 11


async def test_whichever_comes_first_closes_a_window_of_both_kinds() -> None:
    gate = asyncio.Event()

    async def source(cursor: int | None) -> Any:
        for number in range(1, 6):
            yield number
        await asyncio.wait_for(gate.wait(), 5)

    probe = Probe(
        source, window=Window(count=2, seconds=timedelta(milliseconds=30)), flush=lambda o: gate.set() if o == [5] else None
    )
    assert await run(probe) == "done"
    assert probe.flushed == [[1, 2], [3, 4], [5]]


async def test_a_stop_from_a_flush_beside_a_read_interrupts_that_read() -> None:
    probe = Probe(then_silence(1), window=Window(seconds=0.01), flush=lambda outputs: Stop("stopped"))
    assert await run(probe) == "stopped"
    assert probe.closed == []


async def test_a_failure_of_a_flush_beside_a_read_interrupts_that_read() -> None:
    def flush(outputs: list[int]) -> None:
        raise ValueError

    store = MemoryCheckpointStore()
    with pytest.raises(TaskExecutionError) as caught:
        await run(Probe(then_silence(1), window=Window(seconds=0.01), flush=flush), store)
    assert isinstance(caught.value.__cause__, ValueError)
    assert await cursors(store) == []


async def test_an_item_that_arrives_during_a_flush_beside_the_read_waits_for_its_commit() -> None:
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
            for _ in range(20):
                await asyncio.sleep(0)
            order.append("flushed")

    queue.put_nowait(1)
    store = MemoryCheckpointStore()
    probe = Probe(source, window=Window(seconds=0.01), flush=flush, process=lambda item: order.append(f"item {item}"))
    assert await run(probe, store) == "done"
    assert order == ["item 1", "flush [1]", "flushed", "item 2", "flush [2]"]


async def test_window_floors_let_degenerate_windows_run() -> None:
    for window in (Window(count=0), Window(count=-5), Window(seconds=0), Window(seconds=-1)):
        probe = Probe(numbers(1, 5), window=window)
        assert await asyncio.wait_for(run(probe), 5) == "done"
        assert probe.items == [1, 2, 3, 4, 5]


# -- fairness -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("work", [0.0, 0.0004, 0.003])
@pytest.mark.parametrize("fails", [False, True])
async def test_an_always_ready_source_lets_other_tasks_run(work: float, fails: bool) -> None:
    loop = asyncio.get_running_loop()
    gaps: list[float] = []
    until = loop.time() + 0.25

    async def ticker() -> None:
        last = loop.time()
        while True:
            await asyncio.sleep(0)
            now = loop.time()
            gaps.append(now - last)
            last = now

    async def source(cursor: int | None) -> Any:
        number = 0
        while loop.time() < until:
            number += 1
            yield number

    def process(item: int) -> None:
        end = loop.time() + work
        while loop.time() < end:
            pass
        if fails:
            raise ValueError

    other = asyncio.create_task(ticker())
    await run(Probe(source, window=Window(count=100000), process=process, on_item_error=SkipAndContinue()))
    other.cancel()
    assert len(gaps) >= 8
    assert sorted(gaps)[-4] < 0.05


# -- item errors --------------------------------------------------------------------------------------------------------


def failing(*bad: int) -> Any:
    def process(item: int) -> None:
        if item in bad:
            raise ValueError(f"bad {item}")

    return process


async def test_fail_fast_discards_the_buffer_commits_nothing_more_and_delivers_the_item_again() -> None:
    """BR-08, BR-09."""
    store = MemoryCheckpointStore()
    probe = Probe(numbers(1, 9), process=failing(6))
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe, store)
    assert str(caught.value.__cause__) == "bad 6"
    assert probe.flushed == [[1, 2], [3, 4]]
    assert probe.closed == []
    assert await cursors(store) == ["4"]
    again = Probe(numbers(1, 9))
    assert await machine(again, store).resume_from("r") == "done"
    assert again.opened == [4]
    assert again.processed == [5, 6, 7, 8, 9]


async def test_skip_and_continue_drops_the_item_and_never_commits_its_cursor() -> None:
    store = MemoryCheckpointStore()
    probe = Probe(numbers(1, 4), window=Window(count=1), process=failing(2, 4), on_item_error=SkipAndContinue())
    committed: list[list[str | None]] = []
    probe.hooks["close"] = lambda reason: None

    async def watch(reason: CloseReason) -> None:
        committed.append(await cursors(store))

    probe.hooks["close"] = watch
    assert await run(probe, store) == "done"
    assert probe.items == [1, 3]
    assert committed == [["3"]]


@pytest.mark.parametrize(
    ("budget", "bad", "survives"),
    [(2, (2, 3), True), (1, (2, 3), False), (0, (2,), False), (2, (2, 3, 5, 6), True), (2, (4, 5, 6), False)],
)
async def test_retry_on_error_tolerates_that_many_in_a_row_across_windows(
    budget: int, bad: tuple[int, ...], survives: bool
) -> None:
    probe = Probe(numbers(1, 8), process=failing(*bad), on_item_error=RetryOnError(budget))
    if survives:
        assert await run(probe) == "done"
        assert probe.items == [number for number in range(1, 9) if number not in bad]
    else:
        with pytest.raises(TaskExecutionError):
            await run(probe)


async def test_an_error_of_the_source_is_swallowed_by_no_policy() -> None:
    """BR-15."""

    async def source(cursor: int | None) -> Any:
        yield 1
        yield 2
        raise LookupError("gone")

    store = MemoryCheckpointStore()
    probe = Probe(source, window=Window(count=10), on_item_error=SkipAndContinue())
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe, store)
    assert isinstance(caught.value.__cause__, LookupError)
    assert probe.opened == [None]
    assert probe.flushed == []
    assert await cursors(store) == []


@pytest.mark.parametrize("result", [None, 5, (1,), (1, 2, 3), [1, 2], "ab"])
@pytest.mark.parametrize("policy", [FailFast(), SkipAndContinue()])
async def test_a_process_item_that_returns_no_pair_fails_the_run_whatever_the_policy(result: Any, policy: Any) -> None:
    class Wrong(Probe):
        async def process_item(self, ctx: Any, item: int) -> Any:
            return result

    with pytest.raises(TaskExecutionError, match=r"pair \(output, cursor\)"):
        await run(Wrong(numbers(1, 3), on_item_error=policy))


async def test_an_error_of_ours_that_a_hook_raises_stands_for_itself() -> None:
    class Needy(Probe):
        async def process_item(self, ctx: Any, item: int) -> Any:
            return ctx.get("nothing"), item

    with pytest.raises(Exception, match="no resource 'nothing'") as caught:
        await run(Needy(numbers(1, 3)))
    assert caught.value.category == "resource_not_found"
    assert caught.value.state == "work"


@pytest.mark.parametrize(
    "error", [TimeoutError("db"), asyncio.CancelledError("leaked"), StopIteration("x"), StopAsyncIteration("x")]
)
@pytest.mark.parametrize("hook", ["process", "flush", "close"])
async def test_what_a_hook_leaks_is_an_ordinary_failure_of_that_hook(error: BaseException, hook: str) -> None:
    """BR-29."""

    class Leaky(Probe):
        async def _step_in(self, name: str, *arguments: Any) -> Any:
            if name == hook:
                if isinstance(error, StopIteration):
                    raise RuntimeError from error
                raise error

    with pytest.raises(TaskExecutionError) as caught:
        await run(Leaky(numbers(1, 3), config=TaskConfig(attempt_timeout=10)))
    assert caught.value.category == "task_execution"
    assert caught.value.__cause__ is error or caught.value.__cause__.__cause__ is error  # type: ignore[union-attr]  # a cause of ours has one


async def test_a_leaked_cancelled_error_is_not_skipped_by_a_policy() -> None:
    def process(item: int) -> None:
        if item == 2:
            raise asyncio.CancelledError

    with pytest.raises(TaskExecutionError):
        await run(Probe(numbers(1, 3), process=process, on_item_error=SkipAndContinue()))


async def test_a_leaked_cancelled_error_of_the_source_is_a_failure_too() -> None:
    async def source(cursor: int | None) -> Any:
        yield 1
        raise asyncio.CancelledError

    with pytest.raises(TaskExecutionError):
        await run(Probe(source))


# -- attempt timeouts ---------------------------------------------------------------------------------------------------


async def test_an_item_that_takes_too_long_is_an_ordinary_item_error() -> None:
    async def process(item: int) -> None:
        if item == 2:
            await asyncio.Event().wait()

    bound = TaskConfig(attempt_timeout=0.02)
    with pytest.raises(AttemptTimeoutError) as caught:
        await run(Probe(numbers(1, 4), process=process, config=bound))
    assert caught.value.category == "timeout"
    assert caught.value.__cause__ is None
    skipping = Probe(numbers(1, 4), process=process, config=bound, on_item_error=SkipAndContinue())
    assert await run(skipping) == "done"
    assert skipping.items == [1, 3, 4]


async def test_every_item_gets_the_whole_attempt_timeout() -> None:
    async def process(item: int) -> None:
        await asyncio.sleep(0.03)

    probe = Probe(numbers(1, 6), process=process, config=TaskConfig(attempt_timeout=0.1))
    assert await run(probe) == "done"


async def test_our_attempt_timeout_is_told_from_the_users_own() -> None:
    async def process(item: int) -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    with pytest.raises(TaskExecutionError) as caught:
        await run(Probe(numbers(1, 2), process=process, config=TaskConfig(attempt_timeout=10)))
    assert isinstance(caught.value.__cause__, TimeoutError)


async def test_an_item_that_swallows_its_timeout_and_returns_counts_as_done() -> None:
    async def process(item: int) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass

    probe = Probe(numbers(1, 2), process=process, config=TaskConfig(attempt_timeout=0.01))
    assert await run(probe) == "done"
    assert probe.items == [1, 2]


# -- contracts ----------------------------------------------------------------------------------------------------------


async def test_an_open_that_returns_no_iterable_is_a_configuration_error_that_names_the_remedy() -> None:
    for opened in (None, 5, object()):
        with pytest.raises(ConfigurationError, match="yield the items"):
            await run(Probe(lambda cursor, opened=opened: opened))


async def test_a_failing_open_fails_the_run_and_leaves_the_cursor() -> None:
    """BR-49."""
    store = MemoryCheckpointStore()
    with pytest.raises(TaskExecutionError):
        await run(Probe(numbers(1, 5), process=failing(4)), store)

    def expired(cursor: int | None) -> Any:
        raise LookupError

    with pytest.raises(TaskExecutionError) as caught:
        await machine(Probe(expired), store).resume_from("r")
    assert isinstance(caught.value.__cause__, LookupError)
    assert await cursors(store) == ["2"]


@pytest.mark.parametrize("stop", [Stop("nowhere"), Stop(None), "done", True, 3])
async def test_a_flush_that_returns_nonsense_fails_before_its_row(stop: Any) -> None:
    store = MemoryCheckpointStore()
    with pytest.raises((WorkflowError, TaskExecutionError)):
        await run(Probe(numbers(1, 5), flush=lambda outputs: stop), store)
    assert await cursors(store) == []


async def test_a_cursor_that_cannot_be_stored_is_refused_before_the_flush() -> None:
    """BR-58."""
    probe = Probe(numbers(1, 5), process=lambda item: (item, object()))
    with pytest.raises(CursorError, match="object"):
        await run(probe)
    assert probe.flushed == []


async def test_a_cursor_that_changes_later_is_stored_as_it_was_returned() -> None:
    store = MemoryCheckpointStore()
    position = {"line": 0}

    class Shared(StreamTask):  # type: ignore[type-arg]  # so it is meant
        window = Window(count=10)

        async def open(self, ctx: Any, cursor: Any) -> Any:
            for number in range(1, 4):
                position["line"] = number
                yield number
            position["line"] = 99
            await asyncio.Event().wait()

        async def process_item(self, ctx: Any, item: int) -> Any:
            return item, position

        async def flush_window(self, ctx: Any, outputs: Any) -> None:
            pass

        async def on_close(self, ctx: Any, reason: Any) -> str:
            return "done"

    token = CancellationToken()
    asyncio.get_running_loop().call_later(0.02, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await run(Shared(), store, token=token)
    assert await cursors(store) == ['{"line":3}']
