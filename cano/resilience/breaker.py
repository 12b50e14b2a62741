"""CircuitBreaker: stop calling what keeps failing, and try again carefully after a while."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import weakref
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, cast

from cano.clock import Duration, seconds
from cano.errors import CircuitOpenError, ConfigurationError, WorkflowCancelledError
from cano.resilience.amounts import MOST_CALLS, name_of, whole
from cano.resilience.counts import BreakerCounts
from cano.resilience.steady import SteadyTime
from cano.resources import Resource

P = ParamSpec("P")
R = TypeVar("R")


class BreakerState(StrEnum):
    """CLOSED lets calls through, OPEN refuses them, HALF_OPEN lets a few through on trial."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Permit:
    """Leave to make one call, whose outcome is then told to it.

    Only the first outcome counts. One told after the breaker has changed its state since is ignored. A permit that is
    garbage-collected without an outcome is released.
    """

    __slots__ = ("__weakref__", "_breaker", "_epoch", "_passenger", "_settled")

    def __init__(self, breaker: CircuitBreaker, epoch: int, passenger: bool) -> None:
        self._breaker = breaker
        self._epoch = epoch
        self._passenger = passenger
        self._settled = False

    def success(self) -> None:
        """The call went well."""
        self._breaker._settle(self, True)

    def failure(self) -> None:
        """The call failed, and the dependency is to blame."""
        self._breaker._settle(self, False)

    def release(self) -> None:
        """Nobody knows: the call was given up, and counts for nothing. A trial makes room for another."""
        self._breaker._settle(self, None)

    def __del__(self) -> None:
        # May run in the middle of anything, even of the breaker's own code with its lock held: so it takes no lock.
        if not self._settled:
            self._settled = True
            if not self._passenger:
                self._breaker._abandoned.append(self._epoch)


class CircuitBreaker(Resource):
    """Refuses calls to a dependency that keeps failing.

    failure_threshold:   so many failures in a row open it
    reset_timeout:       so long, in seconds or as a timedelta, it stays open; the next call after that is a trial
    half_open_max_calls: so many trials may be under way at once, and so many have to succeed until it closes. One that
                         fails opens it again
    name:                how error messages call it

    One object may serve many tasks, workflows, threads and event loops, at once or one after another. Use it as `async
    with breaker:`, as `@breaker` on an async or a plain function, as `TaskConfig(circuit_breaker=breaker)`, or by hand
    with `acquire`. In the first two a call that ends without an exception is a success and one that ends with an
    `Exception` is a failure. A call that the caller cancels, or that fails while it is being cancelled, counts for
    nothing; nor does a workflow that was cancelled by its token, nor a refused call. A CancelledError that nobody asked
    for is a failure. Within a trial, calls of
    the same asyncio task that use the breaker too are part of that trial. `async with` has to be left in the asyncio task
    that entered it.

    Among `resources` it is left as it is: it needs no set-up and no teardown.

    Raises:
        ConfigurationError: an argument is of the wrong type or makes no sense.
    """

    def __init__(
        self,
        failure_threshold: int = 5,
        reset_timeout: Duration = 30.0,
        half_open_max_calls: int = 1,
        *,
        name: str | None = None,
    ) -> None:
        self._threshold = whole(failure_threshold, "failure_threshold", least=1, most=MOST_CALLS)
        self._max_calls = whole(half_open_max_calls, "half_open_max_calls", least=1, most=MOST_CALLS)
        self._reset_timeout = seconds(reset_timeout, "reset_timeout")
        if self._reset_timeout == float("inf"):
            raise ConfigurationError("reset_timeout must be finite: nothing else closes an open breaker")
        self._name = None if name is None else name_of(name, "name")
        self.counts = BreakerCounts()
        self._lock = threading.Lock()
        self._time = SteadyTime()
        self._abandoned: deque[int] = deque()
        self._entered: weakref.WeakKeyDictionary[Any, list[Permit]] = weakref.WeakKeyDictionary()
        self._state = BreakerState.CLOSED
        self._epoch = 0
        self._failures = self._successes = self._trials = 0
        self._until = 0.0

    def __repr__(self) -> str:
        name = "" if self._name is None else f" {self._name}"
        until = f", for {self.retry_after:.3f} s" if self._state is BreakerState.OPEN else ""
        return f"<CircuitBreaker{name} {self._state}{until}>"

    @property
    def failure_threshold(self) -> int:
        """As given."""
        return self._threshold

    @property
    def reset_timeout(self) -> float:
        """As given, in seconds."""
        return self._reset_timeout

    @property
    def half_open_max_calls(self) -> int:
        """As given."""
        return self._max_calls

    @property
    def name(self) -> str | None:
        """As given."""
        return self._name

    @property
    def state(self) -> BreakerState:
        """The state that the last call left. Reading changes nothing: an open one becomes half-open with the next call."""
        return self._state

    @property
    def retry_after(self) -> float:
        """Seconds until an open breaker admits a trial; 0 if time does not stand in the way."""
        with self._lock:
            return max(0.0, self._until - self._time.now()) if self._state is BreakerState.OPEN else 0.0

    def acquire(self) -> Permit:
        """A permit to make one call. Tell it the outcome.

        Raises:
            CircuitOpenError: the breaker is open, or half-open with all trials under way.
        """
        return self._admit(passenger_of=None)

    def _admit(self, passenger_of: Permit | None) -> Permit:
        with self._lock:
            self._collect()
            if self._state is BreakerState.OPEN:
                if self._time.now() < self._until:
                    raise self._rejection("open: rejecting call")
                self._move(BreakerState.HALF_OPEN)
            aboard = False
            if self._state is BreakerState.HALF_OPEN:
                aboard = passenger_of is not None and passenger_of._epoch == self._epoch
                if not aboard and not self._has_room():
                    raise self._rejection("half-open: trial slot exhausted")
                self._trials += not aboard
            self.counts.acquired += 1
            return Permit(self, self._epoch, aboard)

    def _rejection(self, why: str) -> CircuitOpenError:
        self.counts.rejected += 1
        return CircuitOpenError(f"circuit breaker {why}" if self._name is None else f"circuit breaker {self._name} {why}")

    def _settle(self, permit: Permit, succeeded: bool | None) -> None:
        with self._lock:
            if permit._settled:
                return
            permit._settled = True
            if succeeded is not None:
                self.counts.successes += succeeded
                self.counts.failures += not succeeded
            if permit._epoch != self._epoch:
                return
            if self._state is BreakerState.HALF_OPEN:
                self._judge_trial(succeeded, permit._passenger)
            elif succeeded:
                self._failures = 0
            elif succeeded is False:
                self._failures += 1
                if self._failures >= self._threshold:
                    self._move(BreakerState.OPEN)

    def _judge_trial(self, succeeded: bool | None, passenger: bool) -> None:
        if succeeded is False:
            self._move(BreakerState.OPEN)
        elif not passenger:  # that the trial as a whole went well is for the permit that has the slot to say
            self._trials -= 1
            self._successes += succeeded is True
            if self._successes >= self._max_calls:
                self._move(BreakerState.CLOSED)

    def _move(self, state: BreakerState) -> None:
        move = f"{self._state}_to_{state}"
        setattr(self.counts, move, getattr(self.counts, move) + 1)
        self._state = state
        self._epoch += 1
        self._failures = self._successes = self._trials = 0
        if state is BreakerState.OPEN:
            self._until = self._time.now() + self._reset_timeout

    def _collect(self) -> None:
        """Free the trial slots of permits that were garbage-collected without an outcome."""
        while self._abandoned:
            if self._abandoned.popleft() == self._epoch and self._state is BreakerState.HALF_OPEN:
                self._trials -= 1

    def _has_room(self) -> bool:
        if self._trials >= self._max_calls:
            for owner in list(self._entered):
                if isinstance(owner, asyncio.Task) and owner.done():  # it never left its block, and will not any more
                    del self._entered[owner]
            self._collect()
        return self._trials < self._max_calls

    def _enter(self) -> None:
        owner = _owner()
        with self._lock:
            around = self._entered.get(owner)
        permit = self._admit(passenger_of=around[-1] if around else None)
        with self._lock:
            self._entered.setdefault(owner, []).append(permit)

    def _leave(self, error: BaseException | None) -> None:
        owner = _owner()
        with self._lock:
            permits = self._entered.get(owner)
            permit = permits.pop() if permits else None
            if not permits:
                self._entered.pop(owner, None)
        if permit is not None:
            _tell(permit, error)
        elif error is None:
            raise ConfigurationError("`async with` of a circuit breaker was left in another asyncio task than it was entered in")

    async def __aenter__(self) -> Self:
        """Acquire a permit for the block.

        Raises:
            CircuitOpenError: see `acquire`.
        """
        self._enter()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._leave(error)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate an async or a plain function: each call needs a permit.

        Raises:
            ConfigurationError: it is no function, or a generator, whose calls end before they have done anything.
        """
        if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError("a circuit breaker decorates async and plain functions, and no generators")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self:
                    return await function(*args, **kwargs)

            return cast("Callable[P, R]", guarded_async)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            self._enter()
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                self._leave(error)
                raise
            self._leave(None)
            return result

        return guarded


def _owner() -> Any:
    """Who holds what is entered now: the asyncio task, or outside of one the thread."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


def _tell(permit: Permit, error: BaseException | None) -> None:
    """Tell a permit how the call ended that raised `error`, or nothing."""
    owner = _owner()
    cancelled = isinstance(owner, asyncio.Task) and owner.cancelling() > 0
    if error is None:
        permit.success()
    elif cancelled or isinstance(error, WorkflowCancelledError) or not isinstance(error, Exception | asyncio.CancelledError):
        permit.release()
    else:
        permit.failure()
