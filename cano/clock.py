"""The only door through which time enters. Durations come in here and are measured on the event loop's clock, which never
jumps; the wall clock only labels, and says when a moment of the calendar has come.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from cano.errors import ConfigurationError

Duration = float | timedelta
"""Seconds, or a timedelta."""

TURN = 0.010
"""The longest stretch, in seconds, that the engine works without giving the event loop a turn."""

_LOOK = 0.0005
_MAX_STRIDE = 64


_now: Callable[[], float] | None = None
_wall: Callable[[], datetime] | None = None


def now() -> float:
    """Monotonic seconds, for measuring durations: of the running event loop, whose clock may be a virtual one, else of the
    machine. May be called in any thread.
    """
    if _now is not None:
        return _now()
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


def wall() -> datetime:
    """The present moment of the calendar, in UTC."""
    return datetime.now(UTC) if _wall is None else _wall()


@contextmanager
def replaced(*, now: Callable[[], float] | None = None, wall: Callable[[], datetime] | None = None) -> Iterator[None]:
    """Let other clocks tell the time while the block lasts, in the whole process. For tests."""
    global _now, _wall
    before = _now, _wall
    _now, _wall = now or _now, wall or _wall
    try:
        yield
    finally:
        _now, _wall = before


def seconds(value: Duration, what: str) -> float:
    """Return a duration in seconds.

    Raises:
        ConfigurationError: it is not a number or a timedelta, is negative, or is not a number at all (NaN).
    """
    number = signed_seconds(value, what)
    if number < 0:
        raise ConfigurationError(f"{what} must not be negative")
    return number


def signed_seconds(value: Duration, what: str) -> float:
    """Like `seconds`, but a negative duration is given as it is. An int that no float can hold counts as infinite."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigurationError(f"{what} must be seconds or a timedelta, not a {type(value).__name__}")
    if isinstance(value, float) and math.isnan(value):
        raise ConfigurationError(f"{what} must be seconds or a timedelta, and NaN is no number")
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def optional_seconds(value: Duration | None, what: str) -> float | None:
    """Like `seconds`; None and an infinite duration both mean "no limit" and give None."""
    if value is None:
        return None
    limit = signed_seconds(value, what)
    if limit < 0:
        raise ConfigurationError(f"{what} must not be negative; leave it out (None) for no limit")
    return None if math.isinf(limit) else limit


class Turn:
    """Says when a busy loop has to give the event loop a turn.

    Reading a clock costs a good part of an item, so the loop reads it only every `stride` items. The stride follows the
    pace: it doubles while items are quick and shrinks at once when they are not. A clock put in place by `replaced` may
    stand still for as long as work is done; then a turn is due each 64 items.
    """

    __slots__ = ("_clock", "_looked", "_started", "stride")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started = self._looked = clock()
        self.stride = 1

    def look(self, now: float) -> bool:
        """Whether a turn is due. Call it with the time once every `stride` items."""
        elapsed = now - self._looked
        self._looked = now
        if elapsed < _LOOK:
            if self.stride < _MAX_STRIDE:
                self.stride *= 2
        else:
            self.stride = int(self.stride * _LOOK / elapsed) or 1
        return now - self._started >= TURN or (_now is not None and not elapsed and self.stride == _MAX_STRIDE)

    def taken(self) -> None:
        """The event loop had its turn."""
        self._started = self._looked = self._clock()

    async def give(self) -> int:
        """Look, and give the event loop its turn if it is due. The number of items until the next look."""
        if self.look(self._clock()):
            await asyncio.sleep(0)
            self.taken()
        return self.stride
