"""The only door through which time enters: durations come in here and are measured on the event loop's clock."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from datetime import timedelta

from cano.errors import ConfigurationError

Duration = float | timedelta
"""Seconds, or a timedelta."""

TURN = 0.010
"""The longest stretch, in seconds, that the engine works without giving the event loop a turn."""

_LOOK = 0.0005
_MAX_STRIDE = 256


def seconds(value: Duration, what: str) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigurationError: it is not a number or a timedelta, is negative, or is not a number at all (NaN).
    """
    number = signed_seconds(value, what)
    if number < 0:
        raise ConfigurationError(f"{what} must not be negative; leave it out (None) for no limit")
    return number


def signed_seconds(value: Duration, what: str) -> float:
    """Like `seconds`, but a negative duration is given as it is. An int that no float can hold counts as infinite."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:  # noqa: PLR0124  # NaN
        raise ConfigurationError(f"{what} must be seconds or a timedelta, not a {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def optional_seconds(value: Duration | None, what: str) -> float | None:
    """Like `seconds`; None and an infinite duration both mean "no limit" and give None."""
    if value is None:
        return None
    limit = seconds(value, what)
    return None if math.isinf(limit) else limit


class Turn:
    """Says when a busy loop has to give the event loop a turn.

    Reading a clock costs more than an item, so the loop reads it only every `stride` items. The stride follows the
    measured pace: it doubles while items are quick and shrinks at once when they are not.
    """

    __slots__ = ("_clock", "_looked", "_started", "stride")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = self._looked = clock()
        self.stride = 1

    def look(self) -> tuple[float, bool]:
        """Read the clock: the time now, and whether a turn is due. Call it once every `stride` items."""
        now = self._clock()
        pace = (now - self._looked) / self.stride
        self._looked = now
        fitting = _MAX_STRIDE if pace <= _LOOK / _MAX_STRIDE else int(_LOOK / pace)
        self.stride = max(1, min(fitting, self.stride * 2))
        return now, now - self._started >= TURN

    async def give(self) -> int:
        """Look, and give the event loop its turn if it is due. The number of items until the next look."""
        if self.look()[1]:
            await asyncio.sleep(0)
            self.taken()
        return self.stride

    def taken(self) -> None:
        """The event loop had its turn."""
        self._started = self._looked = self._clock()
