"""Retries of one item: they come before the policy, and leave nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CancellationToken,
    CanoError,
    CloseReason,
    Context,
    DoNotRetry,
    ExponentialBackoff,
    FailFast,
    FixedRetry,
    MemoryCheckpointStore,
    NoRetry,
    ResourceNotFoundError,
    RetryExhaustedError,
    RetryOnError,
    SkipAndContinue,
    TaskConfig,
    TaskExecutionError,
    Window,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)
from cano.testing import RecordingObserver
from tests.streams import Probe, cursors, machine, numbers, run, turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

ONE_AND_FOUR = pytest.mark.parametrize("width", [1, 4])
NOW = FixedRetry(2, 0)
LATER = FixedRetry(3, 3600)


class Flaky(Probe):
    """Items fail as often as `failures` says; `tries` are the attempts, as (item, ctx.attempt)."""

    def __init__(self, source: Any, failures: dict[int, int], error: Any = ValueError, **attributes: Any) -> None:
        self.failures, self.error, self.tries = dict(failures), error, []
        super().__init__(source, **{"item_retry": NOW, **attributes})

    tries: list[tuple[int, int]]

    async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
        self.tries.append((item, ctx.attempt))
        if self.failures.get(item, 0):
            self.failures[item] -= 1
            raise self.error(f"bad {item}")
        return await super().process_item(ctx, item)


# -- attempts before the policy -----------------------------------------------------------------------------------------


@ONE_AND_FOUR
@pytest.mark.parametrize("policy", [FailFast(), SkipAndContinue(), RetryOnError(0)])
async def test_an_item_that_succeeds_in_time_never_meets_the_policy(width: int, policy: Any) -> None:
    seen = RecordingObserver()
    probe = Flaky(numbers(1, 5), {2: 2, 4: 1}, on_item_error=policy, max_in_flight=width)
    assert await run(probe, observers=[seen]) == "done"
    assert probe.items == [1, 2, 3, 4, 5]
    assert [attempt for item, attempt in probe.tries if item == 2] == [1, 2, 3]
    assert [attempt for item, attempt in probe.tries if item == 4] == [1, 2]
    assert [attempt for item, attempt in probe.tries if item == 5] == [1]
    assert seen.of("item_dropped") == []


@ONE_AND_FOUR
@pytest.mark.parametrize(("budget", "survives"), [(1, False), (2, True)])
async def test_the_policy_sees_one_error_for_each_item_whatever_its_attempts(width: int, budget: int, survives: bool) -> None:
    seen = RecordingObserver()
    probe = Flaky(numbers(1, 6), {2: 3, 3: 3}, on_item_error=RetryOnError(budget), max_in_flight=width)
    if survives:
        assert await run(probe, observers=[seen]) == "done"
        assert probe.items == [1, 4, 5, 6]
        assert [event.error_type for event in seen.of("item_dropped")] == ["ValueError", "ValueError"]
    else:
        with pytest.raises(RetryExhaustedError):
            await run(probe, observers=[seen])
    assert [attempt for item, attempt in probe.tries if item in (2, 3)].count(3) == 2


@ONE_AND_FOUR
async def test_attempts_that_are_used_up_fail_the_run_with_their_number_and_the_last_failure(width: int) -> None:
    """BR-90: one item, and nothing but its attempts: the source is opened once."""
    store = MemoryCheckpointStore()
    probe = Flaky(numbers(1, 5), {3: 9}, max_in_flight=width, config=TaskConfig(retry=FixedRetry(5, 0)))
    with pytest.raises(RetryExhaustedError) as caught:
        await run(probe, store)
    assert (caught.value.attempts, caught.value.attempt, caught.value.category) == (3, 3, "retry_exhausted")
    assert str(caught.value.__cause__) == "bad 3"
    assert [item for item, _ in probe.tries].count(3) == 3
    assert probe.opened == [None]
    assert await cursors(store) == ["2"]
    again = Flaky(numbers(1, 5), {3: 1}, max_in_flight=width)
    assert await machine(again, store).resume_from("r") == "done"
    assert again.items == [3, 4, 5]


@ONE_AND_FOUR
async def test_the_attempt_counts_for_its_item_alone(width: int) -> None:
    seen: list[int] = []

    class Looking(Flaky):
        async def flush_window(self, ctx: Context, outputs: list[int]) -> None:
            seen.append(ctx.attempt)

        async def on_close(self, ctx: Context, reason: CloseReason) -> str:
            seen.append(ctx.attempt)
            return "done"

    probe = Looking(numbers(1, 2), {1: 1, 2: 9}, on_item_error=SkipAndContinue(), max_in_flight=width)
    assert await run(probe) == "done"
    assert seen == [1, 1]


@ONE_AND_FOUR
async def test_no_retry_is_the_default_and_one_attempt(width: int) -> None:
    probe = Flaky(numbers(1, 3), {2: 1}, item_retry=NoRetry(), max_in_flight=width)
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe)
    assert str(caught.value.__cause__) == "bad 2"
    assert [item for item, _ in probe.tries].count(2) == 1


@ONE_AND_FOUR
async def test_what_is_not_to_be_retried_goes_to_the_policy_at_once(width: int) -> None:
    config = TaskConfig(retry_on=LookupError)
    for error, attempts in ((ValueError, 1), (KeyError, 3), (DoNotRetry, 1)):
        probe = Flaky(
            numbers(1, 4), {2: 9}, error, on_item_error=SkipAndContinue(), config=config, item_retry=NOW, max_in_flight=width
        )
        assert await run(probe) == "done"
        assert probe.items == [1, 3, 4]
        assert [item for item, _ in probe.tries].count(2) == attempts


@ONE_AND_FOUR
async def test_an_error_raised_from_do_not_retry_ends_the_attempts_too(width: int) -> None:
    def process(item: int) -> None:
        calls.append(item)
        raise ValueError from DoNotRetry()

    calls: list[int] = []
    with pytest.raises(TaskExecutionError):
        await run(Probe(numbers(1, 1), process=process, item_retry=NOW, max_in_flight=width))
    assert calls == [1]


@ONE_AND_FOUR
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_no_base_exception_is_tried_again_whatever_the_predicate(width: int, error: Any) -> None:
    """BR-25."""
    config = TaskConfig(retry_on=lambda error: True)
    probe = Flaky(numbers(1, 4), {1: 9}, error, on_item_error=SkipAndContinue(), config=config, max_in_flight=width)
    with pytest.raises(error):
        await run(probe)
    assert [item for item, _ in probe.tries].count(1) == 1


@ONE_AND_FOUR
async def test_a_leaked_cancelled_error_is_neither_tried_again_nor_skipped(width: int) -> None:
    """BR-25."""
    config = TaskConfig(retry_on=lambda error: True)
    probe = Flaky(
        numbers(1, 4), {1: 9}, asyncio.CancelledError, on_item_error=SkipAndContinue(), config=config, max_in_flight=width
    )
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert [item for item, _ in probe.tries].count(1) == 1


@ONE_AND_FOUR
async def test_an_error_of_ours_is_what_the_item_failed_with(width: int) -> None:
    class Needy(Probe):
        async def process_item(self, ctx: Context, item: int) -> Any:
            try:
                raise KeyError
            except KeyError as error:
                raise ResourceNotFoundError("none") from error

    seen = RecordingObserver()
    probe = Needy(numbers(1, 2), item_retry=NOW, on_item_error=SkipAndContinue(), max_in_flight=width)
    assert await run(probe, observers=[seen]) == "done"
    assert [event.error_type for event in seen.of("item_dropped")] == ["ResourceNotFoundError"] * 2


@ONE_AND_FOUR
async def test_a_plain_function_is_tried_again_too(width: int) -> None:
    class Plain(Probe):
        tries = 0

        def process_item(self, ctx: Context, item: int) -> Any:
            self.tries += 1
            if self.tries % 2:
                raise ValueError
            return item, item

    probe = Plain(numbers(1, 3), item_retry=NOW, max_in_flight=width)
    assert await run(probe) == "done"
    assert probe.items == [1, 2, 3]


@ONE_AND_FOUR
async def test_a_result_that_is_no_pair_is_not_tried_again(width: int) -> None:
    class Wrong(Probe):
        calls = 0

        async def process_item(self, ctx: Context, item: int) -> Any:
            self.calls += 1
            return item

    probe = Wrong(numbers(1, 1), item_retry=NOW, on_item_error=SkipAndContinue(), max_in_flight=width)
    with pytest.raises(TaskExecutionError, match="pair"):
        await run(probe)
    assert probe.calls == 1


async def test_delays_between_attempts_are_those_of_the_policy() -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []

    def process(item: int) -> None:
        times.append(loop.time())
        raise ValueError

    retry = ExponentialBackoff(max_retries=2, base_delay=0.02, multiplier=3, jitter=0)
    with pytest.raises(RetryExhaustedError):
        await run(Probe(numbers(1, 1), process=process, item_retry=retry))
    first, second = times[1] - times[0], times[2] - times[1]
    assert 0.02 <= first < 0.05
    assert 0.06 <= second < 0.12


# -- data ---------------------------------------------------------------------------------------------------------------


class Counting(Probe):
    """Changes `ctx.data`, and fails after that."""

    failures = 2

    async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
        self.seen.append(list(ctx.data["items"]))
        ctx.data["items"].append(item)
        if item == 2 and self.failures:
            self.failures -= 1
            raise ValueError
        return item, item

    async def on_close(self, ctx: Context, reason: CloseReason) -> str:
        self.final = ctx.data
        return "done"

    seen: list[list[int]]
    final: Any = None


@ONE_AND_FOUR
async def test_changes_to_the_data_by_a_failed_attempt_are_discarded(width: int) -> None:
    probe = Counting(numbers(1, 3), item_retry=NOW, max_in_flight=width, window=Window(count=1))
    probe.seen = []
    assert await machine(probe).orchestrate("work", data={"items": []}) == "done"
    if width == 1:
        assert probe.seen == [[], [1], [1], [1], [1, 2]]
        assert probe.final == {"items": [1, 2, 3]}
    else:
        assert probe.seen == [[]] * 5
        assert probe.final == {"items": []}


async def test_the_changes_of_the_last_attempt_are_discarded_with_its_item() -> None:
    probe = Counting(numbers(1, 3), item_retry=NOW, on_item_error=SkipAndContinue())
    probe.seen, probe.failures = [], 3
    assert await machine(probe).orchestrate("work", data={"items": []}) == "done"
    assert probe.final == {"items": [1, 3]}


async def test_data_that_cannot_be_copied_fails_the_run_and_no_item() -> None:
    class Spoiling(Probe):
        async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
            ctx.data["what"] = object() if item == 1 else 0
            return await super().process_item(ctx, item)

        async def flush_window(self, ctx: Context, outputs: list[int]) -> None:
            ctx.data["what"] = 0
            await super().flush_window(ctx, outputs)

    seen = RecordingObserver()
    probe = Spoiling(numbers(1, 4), item_retry=NOW, on_item_error=SkipAndContinue())
    with pytest.raises(CanoError):
        await machine(probe, observers=[seen]).orchestrate("work", data={"what": 0})
    assert probe.processed == [1]
    assert seen.of("item_dropped") == []


# -- attempt timeouts ---------------------------------------------------------------------------------------------------


class Slow(Probe):
    """Item 2 outlives its timeout as often as `slow` says."""

    slow = 1
    answer: Any = None

    async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
        if item == 2 and self.slow:
            self.slow -= 1
            try:
                await asyncio.Event().wait()
            finally:
                if self.answer is not None:
                    raise self.answer
        return await super().process_item(ctx, item)


@ONE_AND_FOUR
async def test_every_attempt_gets_the_whole_timeout_and_its_expiry_is_tried_again(width: int) -> None:
    config = TaskConfig(attempt_timeout=0.02)
    probe = Slow(numbers(1, 4), item_retry=FixedRetry(2, 0.03), config=config, max_in_flight=width)
    probe.slow = 2
    assert await run(probe) == "done"
    assert probe.items == [1, 2, 3, 4]


@ONE_AND_FOUR
@pytest.mark.parametrize("retry_on", [Exception, LookupError])
async def test_a_timeout_in_the_end_is_the_cause_and_is_told_as_a_timeout(width: int, retry_on: Any) -> None:
    seen = RecordingObserver()
    config = TaskConfig(attempt_timeout=0.01, retry_on=retry_on)
    probe = Slow(numbers(1, 4), item_retry=NOW, config=config, max_in_flight=width)
    probe.slow = 9
    with pytest.raises(AttemptTimeoutError if retry_on is LookupError else RetryExhaustedError) as caught:
        await run(probe)
    if retry_on is Exception:
        assert isinstance(caught.value.__cause__, AttemptTimeoutError)
        assert caught.value.attempts == 3
    skipping = Slow(numbers(1, 4), item_retry=NOW, config=config, max_in_flight=width, on_item_error=SkipAndContinue())
    skipping.slow = 9
    assert await run(skipping, observers=[seen]) == "done"
    assert [event.error_type for event in seen.of("item_dropped")] == ["AttemptTimeoutError"]
    assert skipping.items == [1, 3, 4]


@ONE_AND_FOUR
async def test_a_timeout_that_the_hook_answers_with_an_error_is_still_a_timeout(width: int) -> None:
    seen = RecordingObserver()
    for retry in (NoRetry(), FixedRetry(0, 0)):
        config = TaskConfig(attempt_timeout=0.01)
        probe = Slow(numbers(1, 4), item_retry=retry, config=config, max_in_flight=width, on_item_error=SkipAndContinue())
        probe.answer = ValueError("cleanup")
        assert await run(probe, observers=[seen]) == "done"
        failing = Slow(numbers(1, 4), item_retry=retry, config=config, max_in_flight=width)
        failing.answer = ValueError("cleanup")
        with pytest.raises(AttemptTimeoutError) as caught:
            await run(failing)
        assert str(caught.value.__cause__) == "cleanup"
    assert [event.error_type for event in seen.of("item_dropped")] == ["AttemptTimeoutError"] * 2


@ONE_AND_FOUR
@pytest.mark.parametrize("retry", [NoRetry(), FixedRetry(0, 0)])
async def test_a_timeout_of_ours_that_the_hook_raises_is_not_the_streams_own(width: int, retry: Any) -> None:
    """BR-29."""

    def process(item: int) -> None:
        raise AttemptTimeoutError("of another run")

    probe = Probe(numbers(1, 3), process=process, item_retry=retry, config=TaskConfig(attempt_timeout=9), max_in_flight=width)
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe)
    assert str(caught.value.__cause__) == "of another run"


# -- stops --------------------------------------------------------------------------------------------------------------


@ONE_AND_FOUR
@pytest.mark.parametrize("stop", ["token", "cancel", "timeout"])
async def test_a_stop_ends_the_wait_between_attempts_and_leaves_the_item_for_a_resume(width: int, stop: str) -> None:
    """BR-25: at once; what is in hand is flushed; the item is neither dropped nor passed by a cursor."""
    loop = asyncio.get_running_loop()
    store, token, seen, failed = MemoryCheckpointStore(), CancellationToken(), RecordingObserver(), asyncio.Event()

    def process(item: int) -> None:
        if item == 4:
            failed.set()
            raise ValueError

    options = {
        "window": Window(count=100),
        "item_retry": LATER,
        "on_item_error": SkipAndContinue(),
        "max_in_flight": width,
    }
    probe = Probe(numbers(1, 20), process=process, **options)
    flow = machine(probe, store, observers=[seen], total_timeout=0.1 if stop == "timeout" else None)
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r", token=token))
    await failed.wait()
    await turns(20)
    began = loop.time()
    if stop == "token":
        token.cancel()
    elif stop == "cancel":
        running.cancel()
    ends = {"token": WorkflowCancelledError, "cancel": asyncio.CancelledError, "timeout": WorkflowTimeoutError}
    with pytest.raises(ends[stop]):
        await asyncio.wait_for(running, 10)
    assert loop.time() - began < 0.5
    assert probe.flushed == [[1, 2, 3]]
    assert await cursors(store) == ["3"]
    assert probe.closed == [CloseReason.CANCELLED]
    assert probe.processed.count(4) == 1
    assert seen.of("item_dropped") == []
    again = Probe(numbers(1, 20), **options)
    assert await machine(again, store).resume_from("r") == "done"
    assert again.items == list(range(4, 21))


@ONE_AND_FOUR
async def test_an_attempt_that_fails_after_the_cancel_is_the_last(width: int) -> None:
    token, store, calls = CancellationToken(), MemoryCheckpointStore(), []

    async def process(item: int) -> None:
        if item == 2:
            calls.append(item)
            token.cancel()
            await turns(3)
            raise ValueError

    probe = Probe(numbers(1, 9), process=process, item_retry=LATER, on_item_error=SkipAndContinue(), max_in_flight=width)
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(run(probe, store, token=token), 10)
    assert calls == [2]
    assert await cursors(store) == ["1"]


@ONE_AND_FOUR
async def test_an_attempt_that_runs_when_the_cancel_comes_is_not_interrupted_and_counts(width: int) -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()

    async def process(item: int) -> None:
        if item == 1 and probe.processed.count(1) == 1:
            raise ValueError
        if item == 1:
            token.cancel()
            await turns(5)

    probe = Probe(numbers(1, 1), process=process, item_retry=NOW, max_in_flight=width)
    with pytest.raises(WorkflowCancelledError):
        await run(probe, store, token=token)
    assert probe.items == [1]
    assert await cursors(store) == ["1"]


@ONE_AND_FOUR
@pytest.mark.parametrize("policy", [FailFast(), SkipAndContinue()])
async def test_cancels_at_every_instant_lose_no_item_between_its_attempts(width: int, policy: Any) -> None:
    for instant in range(60):
        token, store = CancellationToken(), MemoryCheckpointStore()
        probe = Flaky(numbers(1, 6), {2: 2, 3: 1, 6: 2}, window=Window(count=2), on_item_error=policy, max_in_flight=width)
        running = asyncio.create_task(run(probe, store, token=token))
        await turns(instant)
        token.cancel()
        try:
            assert await asyncio.wait_for(running, 10) == "done"
            again: list[int] = []
        except WorkflowCancelledError:
            rest = Flaky(numbers(1, 6), {}, window=Window(count=2), max_in_flight=width)
            await machine(rest, store).orchestrate("work", workflow_id="r", if_exists="resume")
            again = rest.items
        assert probe.items + again == [1, 2, 3, 4, 5, 6]
