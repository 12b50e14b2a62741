"""What the attempt loop asks of a circuit breaker. The breakers themselves are in `cano.resilience`, which tasks know nothing
of.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar, runtime_checkable

from cano.brake import Halted
from cano.cancel import cancellations
from cano.errors import ConfigurationError, WorkflowCancelledError

T = TypeVar("T")

_NEUTRAL = (Halted, WorkflowCancelledError)


class Permit(Protocol):
    """Leave for one call, to be settled once."""

    def success(self) -> None:
        """The call succeeded."""
        ...

    def failure(self) -> None:
        """The call failed."""
        ...

    def release(self) -> None:
        """The call says nothing about what was called, as when the caller was cancelled."""
        ...


@runtime_checkable
class Breaker(Protocol):
    """Decides whether a call may be made."""

    def acquire(self) -> Permit:
        """Leave for one call.

        Raises:
            CircuitOpenError: it may not.
        """
        ...


def checked_breaker(breaker: object) -> None:
    """Raise ConfigurationError if this is no circuit breaker: a class, say, or a rate limiter, whose `acquire` waits."""
    if isinstance(breaker, type) or not isinstance(breaker, Breaker) or inspect.iscoroutinefunction(breaker.acquire):
        raise ConfigurationError(f"circuit_breaker must be a CircuitBreaker(...), not a {type(breaker).__name__}")


async def guarded(breaker: Breaker, call: Callable[[], Awaitable[T]]) -> T:
    """Make a call if the breaker lets it. Every way out settles the permit; a cancellation of the caller is no failure,
    whatever the call made of it. One that was there before the call, and that somebody has swallowed, excuses nothing.

    Raises:
        CircuitOpenError: the call was not made.
    """
    before = cancellations()
    permit: Permit = getattr(breaker, "board", breaker.acquire)()  # ours knows which calls are a part of this one
    try:
        result = await call()
    except BaseException as error:
        blames = isinstance(error, asyncio.CancelledError | Exception) and not isinstance(error, _NEUTRAL)
        if blames and cancellations() <= before:
            permit.failure()
        else:
            permit.release()
        raise
    permit.success()
    return result
