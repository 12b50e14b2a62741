"""Retries: how long to wait between attempts (which never awaits), and the attempt loop (which is the only one)."""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from cano.brake import Brake, Halted
from cano.cancel import leaked
from cano.clock import Duration, seconds
from cano.context import Context
from cano.errors import (
    AttemptTimeoutError,
    CanoError,
    CircuitOpenError,
    ConfigurationError,
    CursorError,
    ResourceNotFoundError,
    ResourceTypeMismatchError,
    RetryExhaustedError,
    TaskExecutionError,
)
from cano.task.breaker import Breaker, guarded
from cano.task.failure import hook_failure
from cano.task.watchdog import TimeoutExpired, Watchdog

T = TypeVar("T")

LONGEST = 365 * 86400.0
"""The longest delay there is, in seconds: an infinite `max_delay` means this."""

LEAST = 0.001
"""What jitter and a shrinking multiplier leave of a delay at least, in seconds, unless it was less from the start."""

_MOST = 1 << 53
_POINTLESS = (CircuitOpenError, ConfigurationError, CursorError, ResourceNotFoundError, ResourceTypeMismatchError)


class DoNotRetry(Exception):
    """Raise it, or raise something from it, to end the attempts although there are some left; in an asyncio.TaskGroup, too."""


@dataclass(frozen=True, slots=True)
class NoRetry:
    """One attempt."""

    def delay(self, failed: int) -> float | None:
        """How many seconds to wait after the `failed`-th attempt (1-based); None if there is no other attempt."""
        return None


@dataclass(frozen=True, slots=True)
class FixedRetry:
    """Up to `retries` more attempts, each after the same `delay` (seconds or timedelta).

    Raises:
        ConfigurationError: `retries` is no int of 0 or more, or the delay no duration.
    """

    retries: int
    wait: float

    def __init__(self, retries: int, delay: Duration) -> None:
        object.__setattr__(self, "retries", count(retries, "FixedRetry(retries=...)"))
        object.__setattr__(self, "wait", min(seconds(delay, "FixedRetry(delay=...)"), LONGEST))

    def __repr__(self) -> str:
        return f"FixedRetry(retries={self.retries}, delay={self.wait})"

    def delay(self, failed: int) -> float | None:
        """How many seconds to wait after the `failed`-th attempt (1-based); None if there is no other attempt."""
        return self.wait if failed <= self.retries else None


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Up to `max_retries` more attempts, the waits growing from `base_delay` by `multiplier` to `max_delay` (seconds or
    timedeltas).

    The wait after the n-th attempt is base_delay * multiplier ** (n - 1), capped at `max_delay`, spread by a uniform
    factor of 1 ± jitter, and capped again: finite, not negative and never above `max_delay`, for any n. A multiplier
    that is not finite or not positive counts as 1, a jitter outside of 0 to 1 as the nearer end, one that is not finite
    as 0. A base of 0 stays 0; a longer one never comes to less than a millisecond, if it was not less itself.

    Raises:
        ConfigurationError: `max_retries` is no int of 0 or more, or a delay no duration.
    """

    max_retries: int = 3
    base_delay: Duration = 0.1
    multiplier: float = 2.0
    max_delay: Duration = 30.0
    jitter: float = 0.1

    def __post_init__(self) -> None:
        count(self.max_retries, "ExponentialBackoff(max_retries=...)")
        seconds(self.base_delay, "ExponentialBackoff(base_delay=...)")
        seconds(self.max_delay, "ExponentialBackoff(max_delay=...)")
        for name in ("multiplier", "jitter"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigurationError(f"ExponentialBackoff({name}=...) must be a number, not a {type(value).__name__}")

    def delay(self, failed: int) -> float | None:
        """How many seconds to wait after the `failed`-th attempt (1-based); None if there is no other attempt."""
        if failed > self.max_retries:
            return None
        cap = min(seconds(self.max_delay, "max_delay"), LONGEST)
        base = min(seconds(self.base_delay, "base_delay"), cap)
        multiplier, jitter = _finite(self.multiplier), min(max(_finite(self.jitter, 0.0), 0.0), 1.0)
        try:
            grown = min(base * (multiplier if multiplier > 0 else 1.0) ** min(failed - 1, _MOST), cap) if base else 0.0
        except OverflowError:
            grown = cap
        return min(max(grown * (1 + jitter * random.uniform(-1, 1)), min(base, LEAST)), cap)


def _finite(value: float, otherwise: float = 1.0) -> float:
    """A number as a float, the largest there is if it is an int beyond that; `otherwise` if it is not finite."""
    try:
        return float(value) if math.isfinite(value) else otherwise
    except OverflowError:
        return math.copysign(sys.float_info.max, 1 if value > 0 else -1)


RetryPolicy = NoRetry | FixedRetry | ExponentialBackoff


def check_retry(retry: Any, what: str) -> None:
    """Raise ConfigurationError if this is no retry policy."""
    if not isinstance(retry, NoRetry | FixedRetry | ExponentialBackoff):
        raise ConfigurationError(
            f"{what} must be NoRetry(), FixedRetry(...) or ExponentialBackoff(...), not a {type(retry).__name__}"
        )


def count(value: Any, what: str) -> int:
    """Return a number of times.

    Raises:
        ConfigurationError: it is no int of 0 or more.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ConfigurationError(f"{what} must be an int of 0 or more")
    return value


@dataclass(frozen=True, slots=True)
class Rules:
    """How the attempts of one task are run: its config, with the defaults of its kind filled in."""

    retry: RetryPolicy
    retry_on: Callable[[BaseException], bool]
    attempt_timeout: float | None
    breaker: Breaker | None = None

    def final(self, error: BaseException) -> bool:
        """Whether this error ends the attempts, however many are left. What `retry_on` raises comes out."""
        return hopeless(error) or not self.retry_on(error)


def hopeless(error: BaseException) -> bool:
    """Whether no attempt can mend an error, whatever `retry_on` says: it asks for none, a circuit breaker refuses them, it
    is about how the program is written, or it is no Exception, or ours for something that is none; or one of those is in a
    group of errors.
    """
    cause = error.__cause__
    if not isinstance(error, Exception) or isinstance(error, (DoNotRetry, *_POINTLESS)) or isinstance(cause, DoNotRetry):
        return True
    if isinstance(error, ExceptionGroup) and any(hopeless(member) for member in error.exceptions):
        return True
    return isinstance(error, CanoError) and cause is not None and not isinstance(cause, Exception)


class Guard(Protocol):
    """Who decides whether a wait may be interrupted, and whose a CancelledError is."""

    async def expose(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await an operation that may be interrupted."""
        ...

    async def pause(self, delay: float) -> None:
        """Wait between two attempts. Nothing is in hand, so a stop ends it at once."""
        ...

    def leaked(self) -> bool:
        """Whether a CancelledError that just surfaced was let out by user code."""
        ...


class Sheltered:
    """The guard of work that neither a cancel nor a total timeout interrupts: only an aborted drain does. They end the
    waits between attempts.
    """

    def __init__(self, brake: Brake) -> None:
        self.leaked: Callable[[], bool] = brake.leaked
        self.pause = brake.pause

    async def expose(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await it."""
        return await operation


class Member:
    """The guard of work in an asyncio task of its own, whose owner cancels it."""

    async def expose(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await it.

        Raises:
            CancelledError: the owner cancelled it, whatever error the operation made of that.
        """
        try:
            return await operation
        except Exception as error:
            if not self.leaked():
                raise asyncio.CancelledError from error
            raise

    async def pause(self, delay: float) -> None:
        """Wait."""
        await self.expose(asyncio.sleep(delay))

    def leaked(self) -> bool:
        """Whether nobody cancelled this asyncio task."""
        return leaked()


class AttemptHost(Protocol):
    """What the attempt loop needs of whoever runs it."""

    def restore(self) -> None:
        """Discard what a failed attempt did to `ctx.data`."""
        ...

    def retrying(self, attempt: int, delay: float, error: Exception) -> None:
        """Another attempt follows."""
        ...

    def refused(self) -> None:
        """A circuit breaker refused an attempt."""
        ...


async def run_attempts(
    body: Callable[[], Awaitable[T]],
    *,
    ctx: Context[Any],
    hook: str,
    rules: Rules,
    guard: Guard,
    host: AttemptHost,
) -> T:
    """Run a hook until an attempt succeeds, and return what that gave.

    Raises:
        RetryExhaustedError: there were several attempts and the last one failed too; what it raised is the cause.
        CanoError: the only attempt failed, or one failed in a way that is not retried.
        Halted: the run was stopped; attempts and waits end at once.
    """
    watchdog = None if rules.attempt_timeout is None else Watchdog(rules.attempt_timeout)
    failed = 0
    try:
        while True:
            ctx.attempt = failed + 1
            try:
                return await guard.expose(_attempt(body, watchdog, rules.breaker))
            except Halted:
                raise
            except (asyncio.CancelledError, Exception) as error:
                if isinstance(error, asyncio.CancelledError) and not guard.leaked():
                    raise
                failed += 1
                failure, cause = _failure(ctx.task, hook, rules, error)
                final = _final(ctx.task, rules, cause)
            delay = None if final else rules.retry.delay(failed)
            host.restore()
            if isinstance(failure, CircuitOpenError):
                host.refused()
            if delay is None:
                raise failure if final else _last(failure, cause, ctx.task, hook, failed)
            host.retrying(failed, delay, cause)  # type: ignore[arg-type]  # a delay means it is an Exception
            await guard.pause(delay)
    finally:
        if watchdog is not None:
            watchdog.release()


async def _attempt(body: Callable[[], Awaitable[T]], watchdog: Watchdog | None, breaker: Breaker | None) -> T:
    attempt = body if watchdog is None else lambda: watchdog.bound(body())
    return await attempt() if breaker is None else await guarded(breaker, attempt)


def _failure(task: str, hook: str, rules: Rules, error: BaseException) -> tuple[CanoError, BaseException]:
    """Our error for a failed attempt, and what the rules shall judge: the user's exception, or our timeout."""
    if isinstance(error, TimeoutExpired):
        failure = AttemptTimeoutError(f"{hook} of {task} took longer than its attempt_timeout of {rules.attempt_timeout} s")
        failure.__cause__ = None if isinstance(error.__cause__, asyncio.CancelledError) else error.__cause__
        return failure, failure
    return hook_failure(task, hook, error), error


def _final(task: str, rules: Rules, cause: BaseException) -> bool:
    try:
        return rules.final(cause)
    except Exception as error:
        raise hook_failure(task, "retry_on", error)


def _last(failure: CanoError, cause: BaseException, task: str, hook: str, attempts: int) -> CanoError:
    if attempts <= 1:
        return failure
    exhausted = RetryExhaustedError(
        f"{hook} of {task} failed {attempts} times, in the end with {type(cause).__name__}", attempts=attempts
    )
    exhausted.__cause__ = cause
    return exhausted


def raised_by(error: CanoError) -> BaseException:
    """What the hook raised behind an error of `run_attempts`, or our timeout."""
    ours = isinstance(error, RetryExhaustedError) or type(error) is TaskExecutionError
    return error.__cause__ if ours and error.__cause__ is not None else error
