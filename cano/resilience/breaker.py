"""CircuitBreaker: stop calling what keeps failing, and try again carefully after a while."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, ParamSpec, Self, TypeVar, cast

from cano.clock import Duration, seconds
from cano.errors import CircuitOpenError, ConfigurationError
from cano.resilience.amounts import MOST_CALLS, name_of, whole
from cano.resilience.block import Exits, exit_of
from cano.resilience.counts import BreakerCounts
from cano.resilience.permit import Permit, owner
from cano.resilience.steady import SteadyTime
from cano.resources import Resource

P = ParamSpec("P")
R = TypeVar("R")


class BreakerState(StrEnum):
    """CLOSED lets calls through, OPEN refuses them, HALF_OPEN lets a few through on trial."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


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
    for is a failure. Within a trial, blocks and functions of the same asyncio task that use the breaker too are part of
    that trial. A block tells its own permit how it ended, in whatever asyncio task it is left, as that of an async
    generator may be.

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
        self._aboard: weakref.WeakKeyDictionary[Any, list[weakref.ref[Permit]]] = weakref.WeakKeyDictionary()
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
        """A permit to make one call, by whomever. Tell it the outcome.

        Raises:
            CircuitOpenError: the breaker is open, or half-open with all trials under way; `retry_after` says how long to
                wait.
        """
        with self._lock:
            return self._admit(owner(), rides=False)

    def board(self) -> Permit:
        """A permit for a call that this asyncio task makes itself, as `async with` takes one: until it is settled, what
        the task does with the breaker is part of that call. Raises like `acquire`. Engine use.
        """
        here = owner()
        with self._lock:
            permit = self._admit(here, rides=self._on_trial(here))
            self._note(here, permit)
            return permit

    def _admit(self, here: Any, *, rides: bool) -> Permit:
        self._collect()
        if self._state is BreakerState.OPEN:
            left = self._until - self._time.now()
            if left > 0:
                raise self._rejection("open: rejecting call", left)
            self._move(BreakerState.HALF_OPEN)
            rides = False
        rides = rides and self._state is BreakerState.HALF_OPEN
        if self._state is BreakerState.HALF_OPEN and not rides:
            if not self._has_room():
                raise self._rejection("half-open: trial slot exhausted")
            self._trials += 1
        self.counts.acquired += 1
        return Permit(self._settle, self._abandoned, self._epoch, rides, here)

    def _on_trial(self, here: Any) -> bool:
        """Whether a call of this owner that is going on belongs to the present epoch."""
        around = [ref() for ref in self._aboard.get(here, ())]
        return any(permit is not None and not permit._settled and permit._epoch == self._epoch for permit in around)

    def _note(self, here: Any, permit: Permit) -> None:
        around = [ref for ref in self._aboard.get(here, ()) if (other := ref()) is not None and not other._settled]
        self._aboard[here] = [*around, weakref.ref(permit)]

    def _rejection(self, why: str, left: float = 0.0) -> CircuitOpenError:
        self.counts.rejected += 1
        name = "" if self._name is None else f"{self._name} "
        return CircuitOpenError(f"circuit breaker {name}{why}", retry_after=left)

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
            for entered in list(self._entered):
                if isinstance(entered, asyncio.Task) and entered.done():  # it never left, and will not any more
                    del self._entered[entered]
            self._collect()
        return self._trials < self._max_calls

    def left_by_hand(self) -> Permit | None:
        """The permit of this asyncio task's last `__aenter__` that no block made. For `__aexit__`."""
        here = owner()
        with self._lock:
            permits = self._entered.get(here)
            permit = permits.pop() if permits else None
            if not permits:
                self._entered.pop(here, None)
            return permit

    async def __aenter__(self) -> Self:
        """Acquire a permit for the block.

        Raises:
            CircuitOpenError: see `acquire`.
        """
        exit_ = exit_of(self)
        permit = self.board()
        if exit_ is not None:
            exit_.permit = permit
        else:
            with self._lock:
                self._entered.setdefault(owner(), []).append(permit)
        return self

    __aexit__ = Exits()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate an async or a plain function, or any other object that is called: each call needs a permit. If a plain
        one returns an awaitable, the call gives a coroutine that awaits it, and ends with that.

        Raises:
            ConfigurationError: it is no function, or a generator, whose calls end before they have done anything.
        """
        if not callable(function) or _is(function, inspect.isgeneratorfunction) or _is(function, inspect.isasyncgenfunction):
            raise ConfigurationError("a circuit breaker decorates async and plain functions, and no generators")
        if _is(function, inspect.iscoroutinefunction):

            @functools.wraps(function)
            async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                async with self:
                    return await cast("Callable[P, Awaitable[Any]]", function)(*args, **kwargs)

            return cast("Callable[P, R]", guarded_async)

        @functools.wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
            permit = self.board()
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                permit.tell(error)
                raise
            if inspect.isawaitable(result):
                self._alight(permit)
                return cast("R", self._finish(permit, result))
            permit.success()
            return result

        return guarded

    def _alight(self, permit: Permit) -> None:
        """The call has yet to be made, by whoever awaits it: it is none of this owner."""
        here = owner()
        with self._lock:
            self._aboard[here] = [ref for ref in self._aboard.get(here, ()) if ref() is not permit]

    async def _finish(self, permit: Permit, result: Awaitable[Any]) -> Any:
        with self._lock:
            permit.belongs_to(owner())
            self._note(owner(), permit)
        try:
            value = await result
        except BaseException as error:
            permit.tell(error)
            raise
        permit.success()
        return value


def _is(function: Any, kind: Callable[[Any], bool]) -> bool:
    """Whether a function, or what a partial or another object calls, is of a kind."""
    while isinstance(function, functools.partial):
        function = function.func
    called = getattr(type(function), "__call__", None)  # noqa: B004  # of which kind it is
    return kind(function) or (not isinstance(function, type) and kind(called))
