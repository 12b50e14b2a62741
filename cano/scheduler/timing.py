"""When a flow fires next. Plain objects that are told the time and never await.

Each knows one kind of timing. `wait` says how long until the next fire, `take` takes it, and with it whatever was missed:
however many fires were, one run makes up for them all, and the rest are counted.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from itertools import islice, takewhile
from typing import Protocol

from cano.scheduler.cron import Calendar

LOOK = 30.0
"""The longest that a cron flow sleeps without looking at the wall clock, in seconds: how late a jump is noticed."""

MOST = 1000
"""The most missed fires of a cron flow that are counted one by one."""

_REMEMBERED = 4096


class Timing(Protocol):
    """`now` is monotonic seconds, `wall` the moment of the calendar in UTC."""

    look: float | None
    """After how many seconds `wait` has to be asked again at the latest."""

    def begin(self, now: float, wall: datetime) -> None:
        """The scheduler starts, for the first time or again. What came before is not made up for."""
        ...

    def wait(self, now: float, wall: datetime) -> float | None:
        """Seconds until the next fire, 0 or less if it is due; None if none will come by itself."""
        ...

    def take(self, now: float, wall: datetime) -> tuple[datetime, int]:
        """Take the fire that is due: the instant it is for, and how many were missed beside it."""
        ...

    def ended(self, now: float) -> None:
        """A run of the flow has ended, whoever asked for it."""
        ...

    def pass_over(self, now: float, wall: datetime) -> int:
        """Give up what is due, and say how many fires that are."""
        ...


class Manual:
    """Fires only when somebody triggers it."""

    look: float | None = None

    def begin(self, now: float, wall: datetime) -> None:
        """Nothing to do."""

    def wait(self, now: float, wall: datetime) -> float | None:
        """Never."""
        return None

    def take(self, now: float, wall: datetime) -> tuple[datetime, int]:
        """Not called: nothing is ever due."""
        return wall, 0

    def ended(self, now: float) -> None:
        """Nothing to do."""

    def pass_over(self, now: float, wall: datetime) -> int:
        """Nothing is ever due."""
        return 0


class FixedRate:
    """Fires at start + first + k * interval, for k = 0, 1, 2, ... Late or early runs do not move that grid."""

    look: float | None = None

    def __init__(self, interval: float, first: float = 0.0) -> None:
        self.interval = interval
        self.first = first
        self._origin = 0.0
        self._next = 0

    def begin(self, now: float, wall: datetime) -> None:
        """The grid starts here."""
        self._origin, self._next = now + self.first, 0

    def wait(self, now: float, wall: datetime) -> float | None:
        """Until the next point of the grid."""
        return self._next * self.interval - (now - self._origin)

    def take(self, now: float, wall: datetime) -> tuple[datetime, int]:
        """Take every point of the grid up to now as one, the last of them. Its instant is what the wall clock would have
        shown then, had it gone on evenly since.
        """
        missed = self.pass_over(now, wall) - 1
        late = (now - self._origin) - (self._next - 1) * self.interval
        return wall - timedelta(seconds=max(late, 0.0)), missed

    def ended(self, now: float) -> None:
        """Nothing to do: the grid stays."""

    def pass_over(self, now: float, wall: datetime) -> int:
        """Go on behind now."""
        elapsed = now - self._origin
        if elapsed < self._next * self.interval:
            return 0
        latest = max(math.floor(elapsed / self.interval), self._next)
        while latest > self._next and latest * self.interval > elapsed:  # the quotient was rounded
            latest -= 1
        while (latest + 1) * self.interval <= elapsed:
            latest += 1
        passed, self._next = latest + 1 - self._next, latest + 1
        return passed


class FixedDelay:
    """Fires `first` after the start, and then `interval` after the end of each run."""

    look: float | None = None

    def __init__(self, interval: float, first: float = 0.0) -> None:
        self.interval = interval
        self.first = first
        self._next = 0.0

    def begin(self, now: float, wall: datetime) -> None:
        """Count from here."""
        self._next = now + self.first

    def wait(self, now: float, wall: datetime) -> float | None:
        """What is left of the interval."""
        return self._next - now

    def take(self, now: float, wall: datetime) -> tuple[datetime, int]:
        """Nothing can be missed."""
        self._next = math.inf
        return wall, 0

    def ended(self, now: float) -> None:
        """Count from here."""
        self._next = now + self.interval

    def pass_over(self, now: float, wall: datetime) -> int:
        """An interval that has passed stays so: nothing was missed."""
        return 0


class Cron:
    """Fires at the instants of a calendar, by the wall clock, which may jump.

    A fire never comes before its instant. When the wall clock is put back, the flow goes on from there, but an instant
    that it has fired for does not come again (the last 4096 are remembered).
    """

    look: float | None = LOOK

    def __init__(self, calendar: Calendar) -> None:
        self._calendar = calendar
        self._next: datetime | None = None
        self._seen: datetime | None = None
        self._fired: dict[datetime, None] = {}

    def begin(self, now: float, wall: datetime) -> None:
        """The first instant after this moment comes first."""
        self._seen, self._next = wall, self._fresh(wall)

    def wait(self, now: float, wall: datetime) -> float | None:
        """Until the next instant by the wall clock."""
        self._watch(wall)
        return None if self._next is None else (self._next - wall) / timedelta(seconds=1)

    def take(self, now: float, wall: datetime) -> tuple[datetime, int]:
        """Take every instant up to now as one, the last of them."""
        assert self._next is not None
        self._seen = wall
        first = self._next
        latest = self._calendar.latest(first, wall)
        instant = first if latest in self._fired else latest
        self._fired[instant] = None
        if len(self._fired) > _REMEMBERED:
            del self._fired[next(iter(self._fired))]
        self._next = self._fresh(latest)
        return instant, self._between(first, latest)

    def ended(self, now: float) -> None:
        """Nothing to do: the calendar stays."""

    def pass_over(self, now: float, wall: datetime) -> int:
        """Go on behind now."""
        self._watch(wall)
        if self._next is None or self._next > wall:
            return 0
        first = self._next
        latest = self._calendar.latest(first, wall)
        self._next = self._fresh(latest)
        return self._between(first, latest) + 1

    def _watch(self, wall: datetime) -> None:
        if self._seen is not None and wall < self._seen:
            due, again = self._next, self._fresh(wall)
            self._next = again if due is None or again is None else min(due, again)  # what was due already stays due
        self._seen = wall

    def _fresh(self, after: datetime) -> datetime | None:
        return next((instant for instant in self._calendar.after(after) if instant not in self._fired), None)

    def _between(self, first: datetime, latest: datetime) -> int:
        """How many instants there are from the first on, without the latest."""
        if first == latest:
            return 0
        return 1 + sum(1 for _ in islice(takewhile(lambda instant: instant < latest, self._calendar.after(first)), MOST - 1))
