"""ManualClock: time that passes when a test says so, for code that reads the clock without an event loop."""

from __future__ import annotations

import math
from contextlib import ExitStack
from datetime import datetime, timedelta
from types import TracebackType
from typing import Self

from cano import clock
from cano.clock import Duration, seconds
from cano.errors import ConfigurationError
from cano.testing.simulation import moment


class ManualClock:
    """A clock that stands still until it is advanced. While its block lasts, `cano.clock` tells its time in the whole
    process, and the wall clock goes on from `start`.

        with ManualClock() as time:
            breaker = CircuitBreaker(reset_timeout=30)
            ...
            time.advance(30)

    It advances nothing that an event loop waits for: for that there is `simulate`.
    """

    def __init__(self, *, start: datetime | None = None) -> None:
        self._start = moment(start)
        self._now = 0.0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(clock.replaced(now=lambda: self._now, wall=lambda: self.wall))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def now(self) -> float:
        """Seconds that were advanced so far."""
        return self._now

    @property
    def wall(self) -> datetime:
        """The moment of the calendar, in UTC."""
        return self._start + timedelta(seconds=self._now)

    def advance(self, duration: Duration) -> None:
        """Let seconds, or a timedelta, pass.

        Raises:
            ConfigurationError: it is negative, infinite, or no duration: time neither goes back nor comes to an end.
        """
        passed = seconds(duration, "a duration to advance by")
        if math.isinf(passed):
            raise ConfigurationError("a duration to advance by must be finite")
        self._now += passed
