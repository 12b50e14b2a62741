"""The fixed window: a decision that never waits."""

from __future__ import annotations

from cano.clock import Duration
from cano.resilience.amounts import MOST_TOKENS, span, whole


class FixedWindow:
    """Gives out up to `limit` units in one window, which opens with the first of them and lasts for `window`."""

    __slots__ = ("_ends", "_number", "_used", "_window", "capacity")

    def __init__(self, limit: int, window: Duration) -> None:
        self.capacity = whole(limit, "limit", least=1, most=MOST_TOKENS)
        self._window = span(window, "window")
        self._ends: float | None = None
        self._used = 0
        self._number = 0

    def _left(self, now: float) -> int:
        return self.capacity if self._ends is None or now >= self._ends else self.capacity - self._used

    def try_debit(self, cost: int, now: float) -> int | None:
        """See `Meter`. The stamp is the number of the window."""
        if self._left(now) < cost:
            return None
        if self._ends is None or now >= self._ends:
            self._ends, self._used = now + self._window, 0
            self._number += 1
        self._used += cost
        return self._number

    def credit(self, cost: int, stamp: int, now: float) -> None:
        """See `Meter`: only into the window it was taken from."""
        if stamp == self._number:
            self._used -= cost

    def time_until(self, cost: int, now: float) -> float:
        """See `Meter`."""
        if self._ends is None or self._left(now) >= cost:
            return 0.0
        return self._ends - now

    def available(self, now: float) -> int:
        """See `Meter`."""
        return self._left(now)

    def resets_in(self, now: float) -> float | None:
        """See `Meter`: until the end of the open window."""
        return None if self._ends is None or now >= self._ends else self._ends - now
