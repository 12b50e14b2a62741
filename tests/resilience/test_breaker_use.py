"""A circuit breaker round a block, round a function, and shared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from cano import CancellationToken, Workflow
from cano.errors import CircuitOpenError, ConfigurationError, WorkflowCancelledError
from cano.resilience.breaker import BreakerState, CircuitBreaker
from cano.resources import Resources

pytestmark = pytest.mark.asyncio

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def outcomes(breaker: CircuitBreaker) -> tuple[int, int]:
    return breaker.counts.successes, breaker.counts.failures


def on_trial(calls: int = 1) -> CircuitBreaker:
    """A breaker whose next call is a trial."""
    breaker = CircuitBreaker(1, 0, calls)
    breaker.acquire().failure()
    breaker.counts.failures = 0
    return breaker


async def failing(breaker: CircuitBreaker, error: BaseException) -> None:
    async with breaker:
        raise error


async def test_a_block_that_ends_well_is_a_success_and_an_exception_a_failure() -> None:
    breaker = CircuitBreaker(2)
    async with breaker as entered:
        assert entered is breaker
    with pytest.raises(KeyError):
        await failing(breaker, KeyError())
    assert outcomes(breaker) == (1, 1)
    with pytest.raises(ExceptionGroup):
        await failing(breaker, ExceptionGroup("several", [KeyError()]))
    assert breaker.state is OPEN
    with pytest.raises(CircuitOpenError):
        await failing(breaker, AssertionError("is not run"))
    assert outcomes(breaker) == (1, 2), "a refused call counts for nothing"


async def test_cancelled_calls_count_for_nothing(nothing_left: None) -> None:
    """BR-94."""
    breaker = CircuitBreaker(3)

    async def call() -> None:
        async with breaker:
            await asyncio.sleep(3600)

    calls = [asyncio.create_task(call()) for _ in range(20)]
    await asyncio.sleep(0)
    for one in calls:
        one.cancel()
    await asyncio.wait(calls)
    assert all(one.cancelled() for one in calls)
    assert breaker.state is CLOSED
    assert (breaker.counts.acquired, outcomes(breaker)) == (20, (0, 0))


async def test_an_exception_that_comes_of_a_cancel_counts_for_nothing() -> None:
    breaker = CircuitBreaker(1)

    async def call() -> None:
        async with breaker:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                raise ConnectionError from None

    one = asyncio.create_task(call())
    await asyncio.sleep(0)
    one.cancel()
    with pytest.raises(ConnectionError):
        await one
    assert (breaker.state, outcomes(breaker)) == (CLOSED, (0, 0))


async def test_a_cancelled_error_that_nobody_asked_for_is_a_failure() -> None:
    breaker = CircuitBreaker(1)
    with pytest.raises(asyncio.CancelledError):
        await failing(breaker, asyncio.CancelledError())
    assert breaker.state is OPEN


async def test_a_workflow_that_was_cancelled_inside_the_block_counts_for_nothing() -> None:
    """BR-94."""
    breaker = CircuitBreaker(1)
    workflow = Workflow[str]().add_exit_state("done")
    token = CancellationToken()

    @workflow.register("stop")
    async def stop(ctx: Any) -> str:
        token.cancel()
        await asyncio.sleep(3600)
        return "done"

    with pytest.raises(WorkflowCancelledError):
        async with breaker:
            await workflow.orchestrate("stop", token=token)
    assert (breaker.state, outcomes(breaker)) == (CLOSED, (0, 0))


@pytest.mark.parametrize("error", [SystemExit(), KeyboardInterrupt(), GeneratorExit(), BaseExceptionGroup("", [SystemExit()])])
async def test_what_is_no_exception_counts_for_nothing(error: BaseException) -> None:
    breaker = CircuitBreaker(1)
    with pytest.raises(type(error)):
        await failing(breaker, error)
    assert (breaker.state, outcomes(breaker)) == (CLOSED, (0, 0))


async def test_a_timeout_inside_the_block_is_a_failure_and_one_around_it_is_the_callers_cancel() -> None:
    breaker = CircuitBreaker(2)
    with pytest.raises(TimeoutError):
        async with breaker, asyncio.timeout(0):
            await asyncio.sleep(3600)
    assert outcomes(breaker) == (0, 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0), breaker:
            await asyncio.sleep(3600)
    assert outcomes(breaker) == (0, 1)


async def test_the_instant_the_cool_down_ends_one_of_fifty_calls_is_let_through() -> None:
    """BR-92."""
    breaker = on_trial()
    probe, invoked = asyncio.Event(), 0

    async def call() -> None:
        nonlocal invoked
        async with breaker:
            invoked += 1
            await probe.wait()

    calls = [asyncio.create_task(call()) for _ in range(50)]
    done, _ = await asyncio.wait(calls, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 49:
        done, _ = await asyncio.wait(calls, timeout=0.01)
    assert (invoked, len(done)) == (1, 49)
    assert all(isinstance(one.exception(), CircuitOpenError) for one in done)
    probe.set()
    await asyncio.wait(calls)
    assert breaker.state is CLOSED


async def test_calls_of_two_asyncio_tasks_at_once_are_told_apart_whatever_the_order() -> None:
    """The one that fails is the trial; the stale one ends well in between, and may not be taken for it."""
    breaker = CircuitBreaker(1, 0)
    entered, leave = asyncio.Event(), asyncio.Event()

    async def stale() -> None:
        async with breaker:
            entered.set()
            await leave.wait()

    first = asyncio.create_task(stale())
    await entered.wait()
    breaker.acquire().failure()
    with pytest.raises(KeyError):
        async with breaker:
            assert breaker.state is HALF_OPEN
            leave.set()
            await first
            assert breaker.state is HALF_OPEN
            raise KeyError
    assert breaker.state is OPEN


async def test_a_child_task_in_the_block_has_a_permit_of_its_own() -> None:
    breaker = CircuitBreaker(5)
    async with breaker:
        results = await asyncio.gather(*(failing(breaker, KeyError()) for _ in range(3)), return_exceptions=True)
        assert outcomes(breaker) == (0, 3)
    assert outcomes(breaker) == (1, 3)
    assert [type(result) for result in results] == [KeyError] * 3


async def test_nested_use_in_one_asyncio_task_counts_every_call() -> None:
    breaker = CircuitBreaker(5)
    async with breaker:
        async with breaker:
            assert breaker.counts.acquired == 2
        with pytest.raises(KeyError):
            await failing(breaker, KeyError())
    assert outcomes(breaker) == (2, 1)


async def test_nested_calls_are_part_of_a_trial_and_the_outermost_decides() -> None:
    breaker = on_trial()
    async with breaker:
        async with breaker, breaker:
            assert breaker.state is HALF_OPEN
        assert breaker.state is HALF_OPEN
        with pytest.raises(CircuitOpenError):
            await asyncio.create_task(failing(breaker, AssertionError("is not run")))
    assert breaker.state is CLOSED


async def test_a_nested_call_that_fails_fails_the_trial() -> None:
    breaker = on_trial()
    async with breaker:
        with pytest.raises(KeyError):
            await failing(breaker, KeyError())
        assert breaker.state is OPEN
    assert breaker.state is OPEN, "the permit around it is of an earlier epoch"


async def test_a_cancelled_nested_call_leaves_the_trial_its_slot() -> None:
    breaker = on_trial()
    async with breaker:
        with pytest.raises(GeneratorExit):
            await failing(breaker, GeneratorExit())
        with pytest.raises(CircuitOpenError):
            breaker.acquire()
    assert breaker.state is CLOSED


async def test_a_decorated_async_function_keeps_its_name_its_result_and_its_type() -> None:
    breaker = CircuitBreaker(2)

    @breaker
    async def divide(dividend: int, *, by: int) -> float:
        """Divide."""
        return dividend / by

    result: float = await divide(3, by=2)
    assert (result, divide.__name__, divide.__doc__) == (1.5, "divide", "Divide.")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await divide(1, by=0)
    with pytest.raises(CircuitOpenError):
        await divide(3, by=2)
    assert outcomes(breaker) == (1, 2)


async def test_a_decorated_plain_function_works_with_and_without_an_event_loop() -> None:
    breaker = CircuitBreaker(2)

    @breaker
    def call(error: BaseException | None) -> str:
        if error is not None:
            raise error
        return "fine"

    assert call(None) == "fine"
    assert await asyncio.to_thread(call, None) == "fine"
    with pytest.raises(KeyError):
        await asyncio.to_thread(call, KeyError())
    with pytest.raises(SystemExit):
        call(SystemExit())
    assert outcomes(breaker) == (2, 1)
    with pytest.raises(KeyError):
        call(KeyError())
    with pytest.raises(CircuitOpenError):
        call(None)


async def test_functions_with_one_breaker_may_call_each_other_in_a_trial() -> None:
    breaker = on_trial()

    @breaker
    async def outer() -> str:
        return await inner()

    @breaker
    async def inner() -> str:
        return plain()

    @breaker
    def plain() -> str:
        return "fine"

    assert await outer() == "fine"
    assert breaker.state is CLOSED


async def test_generators_and_what_is_no_function_are_not_decorated() -> None:
    async def stream() -> AsyncIterator[int]:
        yield 1

    def plain() -> Iterator[int]:
        yield 1

    what: Any
    for what in (stream, plain, 3):
        with pytest.raises(ConfigurationError, match="no generators"):
            CircuitBreaker()(what)


async def test_a_breaker_among_resources_is_left_as_it_is() -> None:
    breaker = CircuitBreaker()
    async with Resources(breaker=breaker) as resources:
        assert resources["breaker"] is breaker
        assert breaker.counts.acquired == 0
    assert outcomes(breaker) == (0, 0)


async def test_opened_by_one_caller_it_refuses_another() -> None:
    breaker = CircuitBreaker(1)
    with pytest.raises(KeyError):
        await failing(breaker, KeyError())
    with pytest.raises(CircuitOpenError):
        await asyncio.create_task(failing(breaker, AssertionError("is not run")))
