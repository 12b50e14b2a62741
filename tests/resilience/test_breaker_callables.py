"""A circuit breaker round whatever can be called: it judges how the work ends, and not how it begins."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from cano.errors import CircuitOpenError, ConfigurationError
from cano.resilience.breaker import BreakerState, CircuitBreaker

pytestmark = pytest.mark.asyncio


class Client:
    """Fails when it is called."""

    async def __call__(self, error: BaseException | None = None) -> str:
        return await self.ask(error)

    async def ask(self, error: BaseException | None = None) -> str:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return "fine"


class Answer:
    """Can be awaited, and is no coroutine."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def __await__(self) -> Any:
        return Client()(self.error).__await__()


def later(error: BaseException | None = None) -> asyncio.Future[str]:
    return asyncio.ensure_future(Client()(error))


CALLED: list[Callable[..., Any]] = [
    Client(),
    Client().ask,
    functools.partial(Client()),
    functools.partial(functools.partial(Client().ask)),
    lambda error=None: Client()(error),
    later,
    Answer,
]


@pytest.mark.parametrize("called", CALLED, ids=range(len(CALLED)))
async def test_what_is_awaited_counts_by_its_end(called: Callable[..., Any]) -> None:
    breaker = CircuitBreaker(2)
    guarded = breaker(called)
    assert await guarded() == "fine"
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await guarded(ConnectionError())
    assert breaker.state is BreakerState.OPEN
    assert (breaker.counts.successes, breaker.counts.failures) == (1, 2)
    with pytest.raises(CircuitOpenError):
        await guarded()


async def test_what_is_returned_to_be_awaited_holds_its_trial_until_then() -> None:
    breaker = CircuitBreaker(1, 0)
    breaker.acquire().failure()
    guarded = breaker(lambda: Client()())
    answer = guarded()
    with pytest.raises(CircuitOpenError):  # another call of the same asyncio task, which is no part of the first
        guarded()
    assert await asyncio.create_task(answer) == "fine"
    assert breaker.state is BreakerState.CLOSED


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
async def test_what_is_returned_and_never_awaited_counts_for_nothing() -> None:
    breaker = CircuitBreaker(1, 0)
    breaker.acquire().failure()
    breaker(lambda: Client()())()
    gc.collect()
    async with breaker:
        pass
    assert (breaker.state, breaker.counts.successes) == (BreakerState.CLOSED, 1)


async def test_within_a_call_whose_awaitable_is_awaited_other_calls_are_part_of_its_trial() -> None:
    breaker = CircuitBreaker(1, 0)
    breaker.acquire().failure()

    async def outer() -> str:
        async with breaker:
            return "fine"

    assert await breaker(lambda: outer())() == "fine"
    assert breaker.state is BreakerState.CLOSED


class Stream:
    async def __call__(self) -> AsyncIterator[int]:
        yield 1


class PlainStream:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize("wrong", [Stream(), functools.partial(Stream()), PlainStream()], ids=["async", "partial", "plain"])
async def test_objects_whose_calls_are_generators_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="no generators"):
        CircuitBreaker()(wrong)
