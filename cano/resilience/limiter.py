"""RateLimiter and WindowedRateLimiter: no more calls than a dependency allows."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from cano.clock import Duration, now
from cano.errors import ConfigurationError, RateLimitedError
from cano.resilience.amounts import MOST_CALLS, cost_of, whole
from cano.resilience.bucket import Bucket
from cano.resilience.counts import LimiterCounts
from cano.resilience.gate import LOCK, LOST, SHORTEST, Charge, Debit, Gate, Refusal, admit, put_right, wait_in_line
from cano.resilience.meter import Meter, Usage
from cano.resilience.reservation import Reservation
from cano.resilience.steady import SteadyTime
from cano.resilience.windowed import FixedWindow
from cano.resources import Resource

P = ParamSpec("P")
R = TypeVar("R")


class Limiter(Resource, ABC):
    """What all rate limiters share: `async with`, the decorator, and how a request is put to its gates.

    Among `resources` a limiter is left as it is: it needs no set-up and no teardown.
    """

    def __init__(self, counts: LimiterCounts) -> None:
        self.counts = counts

    @abstractmethod
    async def acquire(self) -> None:
        """Wait until one call is admitted."""

    async def __aenter__(self) -> Self:
        """Wait until one call is admitted. Leaving the block gives nothing back."""
        await self.acquire()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        """Decorate an async function: each call waits until it is admitted.

        Raises:
            ConfigurationError: it is no async function.
        """
        if not inspect.iscoroutinefunction(function):
            raise ConfigurationError("a rate limiter decorates async functions only: a plain one could not wait")

        @functools.wraps(function)
        async def limited(*args: P.args, **kwargs: P.kwargs) -> R:
            await self.acquire()
            return await function(*args, **kwargs)

        return limited

    def _admitted(self, charges: Sequence[Charge]) -> None:
        """Count an admitted request. With the lock held."""
        for charge in charges:
            charge.gate.counts.admit(charge.cost)

    def _refused(self, refusal: Refusal, *, waits: bool) -> None:
        """Count a refused one. With the lock held."""
        counts = refusal.charge.gate.counts
        counts.waited += waits
        counts.rejected += not waits

    def _waited(self, charge: Charge, seconds: float) -> None:
        """Count the wait of an admitted one that had to wait for `charge`. With the lock held."""
        charge.gate.counts.wait(seconds)

    def _try(self, charges: Sequence[Charge]) -> list[Debit] | Refusal:
        with LOCK:
            outcome = admit(charges)
            if isinstance(outcome, Refusal):
                self._refused(outcome, waits=False)
            else:
                self._admitted(charges)
            return outcome

    def _require(self, charges: Sequence[Charge]) -> None:
        outcome = self._try(charges)
        if isinstance(outcome, Refusal):
            tier, retry_after = outcome.charge.tier, max(SHORTEST, outcome.wait)
            of_tier = "" if tier is None else f" of tier {tier!r}"
            raise RateLimitedError(
                f"the rate limit{of_tier} is used up; try again in {retry_after:.3f} s", tier=tier, retry_after=retry_after
            )

    def _reserve(self, charges: Sequence[Charge]) -> Reservation | None:
        outcome = self._try(charges)
        return None if isinstance(outcome, Refusal) else Reservation(outcome)

    async def _wait(self, charges: Sequence[Charge]) -> None:
        with LOCK:
            outcome = admit(charges)
            if not isinstance(outcome, Refusal):
                self._admitted(charges)
                return
            self._refused(outcome, waits=True)
            since = now()
            waiter = wait_in_line(charges, outcome)
        try:
            await waiter.future
        except GeneratorExit:  # garbage collection, which may come while the lock is held
            LOST.append(waiter.give_up)
            waiter.gate.wake_all()
            raise
        except BaseException:
            with LOCK:
                put_right()
                waiter.give_up()
            raise
        with LOCK:
            self._admitted(charges)
            self._waited(outcome.charge, max(0.0, now() - since))


class MeteredLimiter(Limiter):
    """A rate limiter with one meter: the verbs of `RateLimiter` and `WindowedRateLimiter`.

    `cost` is how many units a request takes: an int, 0 for none. Every verb raises ConfigurationError at once, and takes
    nothing, if it is negative or above the capacity. Requests are served in the order in which they came: one that does
    not wait is refused while others do. One object may serve many tasks, workflows, threads and event loops.
    """

    def __init__(self, meter: Meter, time: SteadyTime) -> None:
        self._gate = Gate(meter, time)
        super().__init__(self._gate.counts)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.available} of {self.capacity} available>"

    def _charges(self, cost: int) -> Sequence[Charge]:
        return (Charge(self._gate, cost, None),) if cost_of(cost, self.capacity) else ()

    @property
    def capacity(self) -> int:
        """The largest cost there can be."""
        return self._gate.meter.capacity

    @property
    def available(self) -> int:
        """How many units are there now. Those who wait may have a right to them."""
        with LOCK:
            put_right()
            return self._gate.meter.available(self._gate.time.now())

    def try_acquire(self, cost: int = 1) -> bool:
        """Take units if that is possible now."""
        return not isinstance(self._try(self._charges(cost)), Refusal)

    def require(self, cost: int = 1) -> None:
        """Take units now.

        Raises:
            RateLimitedError: there are not enough, or others wait for them; `retry_after` says when to try again.
        """
        self._require(self._charges(cost))

    async def acquire(self, cost: int = 1) -> None:
        """Take units, and wait for them in line if need be. Does not give the event loop a turn if there is no need.

        Cancellation: the place in line is given up and nothing is taken, whatever the moment; the next is served at once.
        """
        await self._wait(self._charges(cost))

    def try_reserve(self, cost: int = 1) -> Reservation | None:
        """Take units if that is possible now, and be able to give them back: see `Reservation`."""
        return self._reserve(self._charges(cost))

    def time_until(self, cost: int = 1) -> float:
        """Seconds until units could be had, after those who wait, at the earliest; 0 if now."""
        cost_of(cost, self.capacity)
        with LOCK:
            put_right()
            return self._gate.time_until(cost)

    def snapshot(self) -> Usage:
        """How much is used now."""
        with LOCK:
            put_right()
            meter, time = self._gate.meter, self._gate.time.now()
            resets_in = meter.resets_in(time)
            resets_at = None if resets_in is None else now() + resets_in
            return Usage(meter.capacity - meter.available(time), meter.capacity, meter.time_until(1, time), resets_at)


class RateLimiter(MeteredLimiter):
    """A token bucket: `tokens` come back in each `period`, continuously, and up to its capacity may be taken at once.

    tokens:     how many come back in a period
    period:     in seconds or as a timedelta
    max_tokens: how many it holds; None for `tokens`
    burst:      how many more it holds

    It starts full.

    Raises:
        ConfigurationError: an argument is of the wrong type or makes no sense.
    """

    def __init__(self, tokens: int, period: Duration = 1.0, *, max_tokens: int | None = None, burst: int = 0) -> None:
        time = SteadyTime()
        super().__init__(Bucket(tokens, period, max_tokens, burst, time.now()), time)

    @classmethod
    def per_second(cls, tokens: int) -> Self:
        """So many in a second."""
        return cls(tokens, 1.0)


class WindowedRateLimiter(MeteredLimiter):
    """A fixed window: up to `limit` units, all of which come back at once when the window is over.

    limit:  how many units
    window: how long, in seconds or as a timedelta

    A window opens when the first unit is taken, and after its end the next opens in the same way.

    Raises:
        ConfigurationError: an argument is of the wrong type or makes no sense.
    """

    def __init__(self, limit: int, window: Duration) -> None:
        super().__init__(FixedWindow(limit, window), SteadyTime())

    @classmethod
    def per_hours(cls, limit: int, hours: int = 1) -> Self:
        """So many in some hours."""
        return cls(limit, whole(hours, "hours", least=1, most=MOST_CALLS) * 3600.0)

    @classmethod
    def per_days(cls, limit: int, days: int = 1) -> Self:
        """So many in some days of 24 hours."""
        return cls(limit, whole(days, "days", least=1, most=MOST_CALLS) * 86400.0)
