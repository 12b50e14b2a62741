"""A circuit breaker in `TaskConfig`: what is asked for leave, what counts against it, and what a refusal does to a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cano import (
    All,
    BatchTask,
    CancellationToken,
    CircuitBreaker,
    CircuitOpenError,
    CompensatableTask,
    ConfigurationError,
    Done,
    DoNotRetry,
    FixedRetry,
    More,
    NoRetry,
    Pending,
    PollTask,
    RateLimiter,
    Ready,
    RetryExhaustedError,
    RetryOnError,
    RouterTask,
    Split,
    SteppedTask,
    Task,
    TaskConfig,
    TaskExecutionError,
    TimerTask,
    Workflow,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowTimeoutError,
)
from cano.resilience.breaker import BreakerState
from cano.task.breaker import guarded
from cano.testing import RecordingObserver
from tests.streams import Probe, numbers

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Call(Task[str]):
    """Calls a function, and counts how often."""

    def __init__(self, call: Callable[[], Any], config: TaskConfig, name: str = "Call") -> None:
        self.call, self.config, self.name = call, config, name
        self.calls = 0

    async def run(self, ctx: Any) -> str:
        self.calls += 1
        result = self.call()
        if asyncio.iscoroutine(result):
            await result
        return "done"


def flow(task: Any, **options: Any) -> Workflow[str]:
    return Workflow[str](**options).register("work", task).add_exit_state("done")


def fail() -> None:
    raise OSError


def once(breaker: CircuitBreaker, **options: Any) -> TaskConfig:
    return TaskConfig(retry=NoRetry(), circuit_breaker=breaker, **options)


async def test_after_threshold_failures_the_body_is_not_called_and_the_refusal_is_told() -> None:
    breaker, refusals = CircuitBreaker(3, reset_timeout=60), RecordingObserver()
    task = Call(fail, once(breaker))
    machine = flow(task, observers=[refusals])
    for _ in range(3):
        with pytest.raises(TaskExecutionError):
            await machine.orchestrate("work")
    with pytest.raises(CircuitOpenError) as caught:
        await machine.orchestrate("work")
    assert (task.calls, [event.task for event in refusals.of("circuit_open")]) == (3, ["Call"])
    assert caught.value.state == "work"


async def test_an_open_breaker_ends_the_attempts_at_once_and_uses_none_of_them_up() -> None:
    breaker = CircuitBreaker(2, reset_timeout=60)
    task = Call(fail, TaskConfig(retry=FixedRetry(5, 0), circuit_breaker=breaker))
    with pytest.raises(CircuitOpenError):
        await flow(task).orchestrate("work")
    assert task.calls == 2
    with pytest.raises(CircuitOpenError):
        await flow(task).orchestrate("work")
    assert task.calls == 2


async def test_retries_that_succeed_keep_the_breaker_closed() -> None:
    breaker, failures = CircuitBreaker(3), [OSError(), OSError()]

    def call() -> None:
        if failures:
            raise failures.pop()

    task = Call(call, TaskConfig(retry=FixedRetry(5, 0), circuit_breaker=breaker))
    assert await flow(task).orchestrate("work") == "done"
    assert breaker.state is BreakerState.CLOSED
    assert (breaker.counts.successes, breaker.counts.failures) == (1, 2)


async def test_without_an_open_breaker_retries_are_exhausted_as_ever() -> None:
    task = Call(fail, TaskConfig(retry=FixedRetry(2, 0), circuit_breaker=CircuitBreaker(10)))
    with pytest.raises(RetryExhaustedError):
        await flow(task).orchestrate("work")
    assert task.calls == 3


async def test_a_timed_out_attempt_counts_as_a_failure() -> None:
    breaker = CircuitBreaker(2, reset_timeout=60)
    config = TaskConfig(retry=FixedRetry(9, 0), circuit_breaker=breaker, attempt_timeout=0.01)
    task = Call(lambda: asyncio.sleep(60), config)
    with pytest.raises(CircuitOpenError):
        await flow(task).orchestrate("work")
    assert (task.calls, breaker.counts.failures) == (2, 2)


async def test_two_workflows_share_a_breaker() -> None:
    breaker = CircuitBreaker(1, reset_timeout=60)
    sick, well = Call(fail, once(breaker)), Call(lambda: None, once(breaker))
    with pytest.raises(TaskExecutionError):
        await flow(sick).orchestrate("work")
    with pytest.raises(CircuitOpenError):
        await flow(well).orchestrate("work")
    assert well.calls == 0


async def test_a_breaker_closes_again_after_a_trial_that_succeeds() -> None:
    breaker, sick = CircuitBreaker(1, reset_timeout=0.02), [True]
    task = Call(lambda: fail() if sick[0] else None, once(breaker))
    with pytest.raises(TaskExecutionError):
        await flow(task).orchestrate("work")
    sick[0] = False
    while breaker.retry_after > 0:
        await asyncio.sleep(0.001)
    assert await flow(task).orchestrate("work") == "done"
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.parametrize("how", ["token", "task", "total timeout", "abort", "swallowed"])
async def test_a_cancel_of_the_caller_is_neutral(how: str) -> None:
    """BR-94."""
    breaker = CircuitBreaker(1, half_open_max_calls=1)

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if how == "swallowed":
                raise OSError from None
            raise

    for _ in range(20):
        token, task = CancellationToken(), Call(hang, once(breaker))
        machine = flow(task, total_timeout=0.01 if how == "total timeout" else None)
        running = asyncio.create_task(machine.orchestrate("work", token=token))
        while not task.calls:
            await asyncio.sleep(0)
        if how == "task":
            running.cancel()
        elif how == "abort":
            token.abort()
        elif how != "total timeout":
            token.cancel()
        with pytest.raises((WorkflowCancelledError, asyncio.CancelledError, WorkflowTimeoutError)):
            await running
    assert breaker.state is BreakerState.CLOSED
    assert (breaker.counts.failures, breaker.counts.successes) == (0, 0)


async def test_an_inner_run_that_was_stopped_by_its_own_token_is_neutral() -> None:
    breaker, token = CircuitBreaker(1), CancellationToken()
    token.cancel()
    inner = flow(Call(lambda: None, TaskConfig()))
    outer = flow(Call(lambda: inner.orchestrate("work", token=token), once(breaker)))
    with pytest.raises(TaskExecutionError):
        await outer.orchestrate("work")
    assert breaker.counts.failures == 0


async def test_a_crash_is_neutral_and_gives_its_trial_back() -> None:
    breaker = CircuitBreaker(1)

    def crash() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await flow(Call(crash, once(breaker))).orchestrate("work")
    assert breaker.counts.failures == 0


async def test_a_leaked_cancelled_error_and_do_not_retry_count() -> None:
    breaker = CircuitBreaker(10)

    def leak() -> None:
        raise asyncio.CancelledError

    def give_up() -> None:
        raise DoNotRetry

    for call in (leak, give_up):
        with pytest.raises(TaskExecutionError):
            await flow(Call(call, TaskConfig(circuit_breaker=breaker))).orchestrate("work")
    assert breaker.counts.failures == 2


async def test_a_cancel_from_before_the_run_excuses_no_failure() -> None:
    """The asyncio task has swallowed it."""
    breaker = CircuitBreaker(2, reset_timeout=60)

    async def failing() -> None:
        raise ConnectionError

    async def worker() -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.sleep(0)
        with pytest.raises(TaskExecutionError):
            await flow(Call(fail, once(breaker))).orchestrate("work")
        with pytest.raises(ConnectionError):
            await guarded(breaker, failing)
        assert breaker.state is BreakerState.OPEN
        assert current.cancelling() == 1

    await asyncio.create_task(worker())


@pytest.mark.parametrize("inner", ["block", "function"])
async def test_a_breaker_that_guards_a_task_and_a_call_in_it_closes_again(inner: str) -> None:
    breaker = CircuitBreaker(1, reset_timeout=0)
    breaker.acquire().failure()

    @breaker
    async def function() -> None:
        pass

    async def call() -> None:
        if inner == "function":
            await function()
            return
        async with breaker:
            assert breaker.state is BreakerState.HALF_OPEN

    assert await flow(Call(call, once(breaker))).orchestrate("work") == "done"
    assert breaker.state is BreakerState.CLOSED


async def test_a_refusal_says_when_a_trial_will_be_admitted() -> None:
    breaker = CircuitBreaker(1, reset_timeout=60)
    breaker.acquire().failure()
    with pytest.raises(CircuitOpenError) as caught:
        await flow(Call(fail, once(breaker))).orchestrate("work")
    assert 59 < caught.value.retry_after <= 60


async def test_of_fifty_runs_at_the_instant_the_cool_down_ends_one_calls() -> None:
    """BR-92."""
    breaker, gate, sick = CircuitBreaker(1, reset_timeout=0.02), asyncio.Event(), [True]

    async def call() -> None:
        if sick[0]:
            raise OSError
        await gate.wait()

    task = Call(call, once(breaker))
    with pytest.raises(TaskExecutionError):
        await flow(task).orchestrate("work")
    sick[0] = False
    while breaker.retry_after > 0:
        await asyncio.sleep(0.001)
    running = [asyncio.create_task(flow(task).orchestrate("work")) for _ in range(50)]
    while sum(run.done() for run in running) < 49:
        await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*running, return_exceptions=True)
    assert task.calls == 2
    assert results.count("done") == 1
    assert sum(isinstance(result, CircuitOpenError) for result in results) == 49


# -- every model --------------------------------------------------------------------------------------------------------


async def test_a_branch_asks_its_own_breaker_and_its_refusal_counts_in_the_join() -> None:
    breaker, refusals = CircuitBreaker(1, reset_timeout=60), RecordingObserver()
    breaker.acquire().failure()
    task = Call(lambda: None, once(breaker))
    machine = Workflow[str](observers=[refusals]).register("work", Split([task], join=All(), then="done"))
    with pytest.raises(WorkflowError):
        await machine.add_exit_state("done").orchestrate("work")
    assert (task.calls, [event.task for event in refusals.of("circuit_open")]) == (0, ["Call[0]"])


async def test_each_step_asks() -> None:
    breaker = CircuitBreaker(5)

    class Steps(SteppedTask[str, int]):
        config = once(breaker)

        async def step(self, ctx: Any, cursor: int | None) -> Any:
            return Done("done") if cursor == 3 else More((cursor or 0) + 1)

    assert await flow(Steps()).orchestrate("work") == "done"
    assert breaker.counts.acquired == breaker.counts.successes == 4


async def test_each_poll_asks_and_holds_no_leave_while_it_waits() -> None:
    breaker, asked, refusals = CircuitBreaker(2, reset_timeout=60), [0], RecordingObserver()

    class Poll(PollTask[str]):
        config = once(breaker)
        on_poll_error = RetryOnError(9)

        async def poll(self, ctx: Any) -> Any:
            asked[0] += 1
            if asked[0] == 1:
                return Pending(0)
            if asked[0] < 5:
                raise OSError
            return Ready("done")

    with pytest.raises(CircuitOpenError):
        await flow(Poll(), observers=[refusals]).orchestrate("work")
    assert (asked[0], breaker.counts.acquired, [event.task for event in refusals.of("circuit_open")]) == (3, 3, ["Poll"])


async def test_a_timer_asks_before_wait_and_after_wait_and_holds_no_leave_between_them() -> None:
    breaker, waiting = CircuitBreaker(1, reset_timeout=0.0, half_open_max_calls=1), asyncio.Event()
    breaker.acquire().failure()

    class Timer(TimerTask[str]):
        config = once(breaker)

        async def wait(self, ctx: Any) -> float:
            asyncio.get_running_loop().call_later(0.02, waiting.set)
            return 0.05

        async def after_wait(self, ctx: Any) -> str:
            return "done"

    running = asyncio.create_task(flow(Timer()).orchestrate("work"))
    await waiting.wait()
    breaker.acquire().success()
    assert await running == "done"
    assert breaker.counts.acquired == 4


async def test_a_batch_a_router_and_a_compensatable_step_ask_for_each_attempt_and_compensate_does_not() -> None:
    breaker = CircuitBreaker(9)

    class Batch(BatchTask[str, int, int]):
        config = once(breaker)

        async def load(self, ctx: Any) -> list[int]:
            return [1, 2, 3]

        async def process_item(self, ctx: Any, item: int) -> int:
            return item

        async def finish(self, ctx: Any, outcomes: Any) -> str:
            return "route"

    class Route(RouterTask[str]):
        config = once(breaker)

        async def route(self, ctx: Any) -> str:
            return "book"

    class Book(CompensatableTask[str, int]):
        config = once(breaker)

        async def run(self, ctx: Any) -> tuple[str, int]:
            return "fail", 1

        async def compensate(self, ctx: Any, output: int) -> None:
            assert breaker.counts.acquired == 3

    machine = flow(Batch()).register("route", Route()).register("book", Book())
    machine.register("fail", Call(fail, TaskConfig(retry=NoRetry())))
    with pytest.raises(TaskExecutionError, match="Call"):
        await machine.orchestrate("work")
    assert breaker.counts.acquired == breaker.counts.successes == 3


async def test_a_stream_with_a_breaker_in_its_config_is_refused_when_it_is_registered() -> None:
    with pytest.raises(ConfigurationError, match="use it in process_item"):
        flow(Probe(numbers(1, 3), config=TaskConfig(circuit_breaker=CircuitBreaker())))


@pytest.mark.parametrize("wrong", [3, CircuitBreaker, RateLimiter(1), object()])
async def test_what_is_no_breaker_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="circuit_breaker must be"):
        TaskConfig(circuit_breaker=wrong)


async def test_the_attempts_of_nested_retries_follow_the_breaker() -> None:
    """BR-90."""
    breaker = CircuitBreaker(2, reset_timeout=60)
    config = TaskConfig(retry=FixedRetry(3, 0), circuit_breaker=breaker)
    task = Call(fail, config)
    machine = Workflow[str]().register("work", Split([task], join=All(), then="done")).add_exit_state("done")
    for _ in range(3):
        with pytest.raises(WorkflowError):
            await machine.orchestrate("work")
    assert task.calls == 2
