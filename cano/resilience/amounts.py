"""Whole numbers that come from a user: thresholds, limits and costs."""

from __future__ import annotations

from typing import Any

from cano.clock import Duration, seconds
from cano.errors import ConfigurationError

MOST_CALLS = 2**31 - 1
"""The largest threshold of a breaker. More is a mistake, not a policy."""

MOST_TOKENS = 10**15
"""The largest capacity of a limiter. A float still tells its units, and eighths of them, apart."""


def whole(value: Any, what: str, *, least: int, most: int) -> int:
    """Return `value` as it is.

    Raises:
        ConfigurationError: it is no int (a bool is none either), or is below `least` or above `most`.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"{what} must be an int, not a {type(value).__name__}")
    if not least <= value <= most:
        raise ConfigurationError(f"{what} must be between {least:,} and {most:,}")
    return value


def cost_of(value: Any, capacity: int) -> int:
    """Return a cost as it is.

    Raises:
        ConfigurationError: it is no int, is negative, or is above the capacity and so could never be paid.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigurationError(f"a cost must be an int, not a {type(value).__name__}")
    if value < 0:
        raise ConfigurationError("a cost must not be negative")
    if value > capacity:
        raise ConfigurationError(f"the cost is above {capacity:,}, all that this limiter can ever hold: split the request")
    return value


def span(value: Duration, what: str) -> float:
    """Return a duration above zero and below infinity, in seconds.

    Raises:
        ConfigurationError: it is no such duration.
    """
    length = seconds(value, what)
    if not 0 < length < float("inf"):
        raise ConfigurationError(f"{what} must be above zero and finite")
    return length


def name_of(value: Any, what: str) -> str:
    """Return a name as it is.

    Raises:
        ConfigurationError: it is no string, or is empty.
    """
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} must be a string that is not empty")
    return value
