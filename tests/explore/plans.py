"""When the flows of a scheduler have to fire, told in the plainest way, as what a scheduler is held against.

Times are virtual seconds. They and all intervals are sums of powers of two, so that they are equal or they are not.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Any

EPOCH = datetime.fromisoformat("2000-01-01T00:00+00:00")
LOOK = 30.0
"""How late a step of the wall clock may be noticed."""


def seconds_of(moment: datetime) -> float:
    return (moment - EPOCH).total_seconds()


class Calls:
    """Fires by itself never."""

    next = math.inf

    def open(self, now: float, wall: float) -> None:
        pass

    def took(self, now: float, wall: float) -> tuple[float, int]:
        raise AssertionError("a manual flow fired by itself")

    def ended(self, now: float) -> None:
        pass

    def passed(self, now: float, wall: float) -> int:
        return 0


class Rate(Calls):
    """A grid of points; `next` is the first that was not taken."""

    def __init__(self, interval: float, first: float) -> None:
        self.interval, self.first = interval, first

    def open(self, now: float, wall: float) -> None:
        self.next = now + self.first

    def took(self, now: float, wall: float) -> tuple[float, int]:
        missed = self.passed(now, wall) - 1
        return wall - (now - (self.next - self.interval)), missed

    def passed(self, now: float, wall: float) -> int:
        points = 0
        while self.next <= now:
            self.next += self.interval
            points += 1
        return points


class Calendar(Rate):
    """A grid on the wall clock, which takes no steps."""

    def __init__(self, interval: float) -> None:
        super().__init__(interval, 0.0)

    def open(self, now: float, wall: float) -> None:
        self.next = now + self.interval - wall % self.interval

    def took(self, now: float, wall: float) -> tuple[float, int]:
        missed = self.passed(now, wall) - 1
        return wall - wall % self.interval, missed


class Delay(Calls):
    def __init__(self, interval: float, first: float) -> None:
        self.interval, self.first = interval, first

    def open(self, now: float, wall: float) -> None:
        self.next = now + self.first

    def took(self, now: float, wall: float) -> tuple[float, int]:
        self.next = math.inf
        return wall, 0

    def ended(self, now: float) -> None:
        self.next = now + self.interval


class Jumpy:
    """A grid on a wall clock that is put forward and back: what must not come, and what must come in the end."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.fired: set[float] = set()
        self.began = self.high = 0.0

    def open(self, now: float, wall: float) -> None:
        self.passed(now, wall)

    def passed(self, now: float, wall: float) -> None:
        self.high = max(self.high, wall)

    def took(self, now: float, wall: float, quiet: float) -> None:
        self.passed(now, wall)
        self.began = wall
        late = now - quiet
        assert late <= LOOK or wall % self.interval == 0, f"fired {late} s after the flow was free, between two instants"

    def came(self, due: float) -> None:
        """The instant that a fire was for, which is known a little later."""
        latest = self.began - self.began % self.interval
        assert due % self.interval == 0, "no instant of the calendar"
        assert due <= self.began, "fired early"
        assert due not in self.fired, "one instant came twice"
        assert due == latest or latest in self.fired, "it was not for the last instant missed"
        self.fired.add(due)

    def check(self, now: float, wall: float, quiet: float) -> None:
        """Nothing is overdue for a flow that has been free, on a steady clock, since `quiet`."""
        if now - quiet <= LOOK:
            return
        last = math.ceil(wall / self.interval - 1) * self.interval  # which is over for certain
        assert last <= self.high, "what came while it could not fire was never made up for"
        watched = wall - (now - quiet - LOOK)
        assert last <= watched or last in self.fired, "an instant passed a free flow by"


Plan = Any
