"""A block settles its own permit and no other, whoever leaves it, and never keeps a slot for ever."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from cano.errors import CircuitOpenError, ConfigurationError
from cano.resilience.breaker import BreakerState, CircuitBreaker

pytestmark = pytest.mark.asyncio

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


def on_trial(calls: int = 1) -> CircuitBreaker:
    """A breaker whose next call is a trial."""
    breaker = CircuitBreaker(1, 0, calls)
    breaker.acquire().failure()
    breaker.counts.failures = 0
    return breaker


def outcomes(breaker: CircuitBreaker) -> tuple[int, int]:
    return breaker.counts.successes, breaker.counts.failures


def free(breaker: CircuitBreaker) -> bool:
    """Whether a trial slot is free."""
    try:
        breaker.acquire().release()
    except CircuitOpenError:
        return False
    return True


async def pieces(breaker: CircuitBreaker, count: int = 3) -> AsyncGenerator[int, None]:
    async with breaker:
        for piece in range(count):
            yield piece


async def elsewhere(coroutine: Any) -> Any:
    return await asyncio.create_task(coroutine)


async def test_a_generator_that_is_read_to_its_end_is_a_success_whoever_reads() -> None:
    breaker = on_trial()
    stream = pieces(breaker, 1)

    async def read() -> list[int]:
        return [piece async for piece in stream]

    assert await elsewhere(anext(stream)) == 0
    assert not free(breaker)
    assert await elsewhere(read()) == []
    assert (breaker.state, outcomes(breaker)) == (CLOSED, (1, 0))


async def test_a_generator_that_its_reader_leaves_frees_its_slot() -> None:
    breaker = on_trial()
    async for _ in pieces(breaker):
        break
    gc.collect()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (breaker.state, free(breaker), outcomes(breaker)) == (HALF_OPEN, True, (0, 0))


async def test_a_generator_that_another_asyncio_task_closes_frees_its_slot() -> None:
    breaker = on_trial()
    stream = pieces(breaker)
    await anext(stream)
    assert not free(breaker)
    await elsewhere(stream.aclose())
    assert free(breaker)
    async with breaker:
        pass
    assert breaker.state is CLOSED


async def test_a_generator_whose_event_loop_is_gone_frees_its_slot() -> None:
    """Nobody runs its end: only its frame is thrown away."""
    breaker = on_trial()
    streams = [pieces(breaker)]

    def lose() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(anext(streams[0]))
        loop.close()

    await asyncio.to_thread(lose)
    assert not free(breaker)
    streams.clear()
    gc.collect()
    assert free(breaker)


async def test_a_block_that_garbage_collection_closes_takes_no_lock() -> None:
    """It may come in the middle of the breaker's own code."""
    breaker = on_trial()

    async def block() -> None:
        async with breaker:
            await asyncio.sleep(0)

    suspended = block()
    suspended.send(None)
    assert not free(breaker)

    def collect() -> None:
        with breaker._lock:
            suspended.close()

    collecting = threading.Thread(target=collect, daemon=True)
    collecting.start()
    await asyncio.to_thread(collecting.join, 5)
    assert not collecting.is_alive()
    assert free(breaker)


async def test_whoever_closes_a_generator_inside_a_block_keeps_the_own_permit() -> None:
    breaker = CircuitBreaker(1)
    stream = pieces(breaker)
    await anext(stream)

    async def other() -> str:
        async with breaker:
            await stream.aclose()
        return "fine"

    assert await elsewhere(other()) == "fine"
    assert (breaker.counts.acquired, outcomes(breaker)) == (2, (1, 0))


async def test_blocks_that_are_left_in_another_order_tell_their_own_permits() -> None:
    """One asyncio task: the first that was entered is left first, and it is the one that fails."""
    breaker = CircuitBreaker(2)
    first, second = pieces(breaker), pieces(breaker, 1)
    await anext(first)
    stale = await anext(second)
    breaker.acquire().failure()
    breaker.acquire().failure()
    assert (breaker.state, stale) == (OPEN, 0)
    with pytest.raises(KeyError):
        await first.athrow(KeyError())
    assert [piece async for piece in second] == []
    assert outcomes(breaker) == (1, 3)


async def test_an_exit_stack_may_be_closed_in_another_asyncio_task() -> None:
    breaker = on_trial()
    stack = AsyncExitStack()
    await elsewhere(stack.enter_async_context(breaker))
    assert not free(breaker)
    await stack.aclose()
    assert (breaker.state, outcomes(breaker)) == (CLOSED, (1, 0))


async def test_an_exit_stack_that_is_thrown_away_frees_its_slot() -> None:
    breaker = on_trial()
    stacks = [AsyncExitStack()]
    await stacks[0].enter_async_context(breaker)
    stacks.clear()
    gc.collect()
    assert free(breaker)


async def test_two_breakers_in_one_statement_are_told_apart() -> None:
    one, other = CircuitBreaker(), CircuitBreaker()
    with pytest.raises(KeyError):
        async with one, AsyncExitStack() as stack:
            await stack.enter_async_context(other)
            async with other:
                pass
            raise KeyError
    assert (outcomes(one), outcomes(other)) == ((0, 1), (1, 1))


async def test_entered_and_left_by_hand_it_works_in_one_asyncio_task() -> None:
    breaker = CircuitBreaker()
    await breaker.__aenter__()
    async with breaker:
        await breaker.__aenter__()
        await breaker.__aexit__(None, None, None)
    await breaker.__aexit__(KeyError, KeyError(), None)
    assert outcomes(breaker) == (2, 1)
    with pytest.raises(ConfigurationError, match="has not entered it"):
        await breaker.__aexit__(None, None, None)
    assert outcomes(breaker) == (2, 1)


async def test_entered_by_hand_in_an_asyncio_task_that_is_gone_it_frees_its_slot() -> None:
    breaker = on_trial()
    await elsewhere(breaker.__aenter__())
    assert free(breaker)


async def test_looking_at_the_exit_enters_nothing() -> None:
    breaker = CircuitBreaker()
    seen = breaker.__aexit__
    async with breaker:
        assert hasattr(breaker, "__aexit__")
    assert outcomes(breaker) == (1, 0)
    with pytest.raises(ConfigurationError):
        await seen(None, None, None)


async def swallow() -> None:
    """Be cancelled, and go on."""
    current = asyncio.current_task()
    assert current is not None
    current.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(0)
    assert current.cancelling() == 1


@pytest.mark.parametrize("how", ["block", "async function", "plain function", "awaitable"])
async def test_a_cancel_from_before_the_call_excuses_no_failure(how: str) -> None:
    breaker = CircuitBreaker(3)

    async def call() -> None:
        raise ConnectionError

    def plain() -> None:
        raise ConnectionError

    async def once() -> None:
        match how:
            case "block":
                async with breaker:
                    await call()
            case "async function":
                await breaker(call)()
            case "plain function":
                breaker(plain)()
            case _:
                await breaker(lambda: call())()

    async def worker() -> None:
        await swallow()
        for _ in range(3):
            with pytest.raises(ConnectionError):
                await once()
        with pytest.raises(CircuitOpenError):
            await once()

    await elsewhere(worker())
    assert (breaker.state, outcomes(breaker)) == (OPEN, (0, 3))


async def test_a_cancel_during_the_call_counts_for_nothing_though_one_came_before() -> None:
    breaker = CircuitBreaker(1)
    inside = asyncio.Event()

    async def worker() -> None:
        await swallow()
        async with breaker:
            inside.set()
            await asyncio.sleep(3600)

    working = asyncio.create_task(worker())
    await inside.wait()
    working.cancel()
    await asyncio.wait([working])
    assert (breaker.state, outcomes(breaker)) == (CLOSED, (0, 0))
