"""The token bucket: a decision that never waits."""

from __future__ import annotations

import math

from cano.clock import Duration
from cano.errors import ConfigurationError
from cano.resilience.amounts import MOST_TOKENS, span, whole

_DUST = 1e-9
"""So many tokens may be missing: what rounding takes from a token that has come back."""


class Bucket:
    """Starts full and fills up continuously, by `tokens` in each `period`, up to `max_tokens + burst`."""

    __slots__ = ("_at", "_rate", "_tokens", "capacity")

    def __init__(self, tokens: int, period: Duration, max_tokens: int | None, burst: int, now: float) -> None:
        whole(tokens, "tokens", least=1, most=MOST_TOKENS)
        most = tokens if max_tokens is None else whole(max_tokens, "max_tokens", least=1, most=MOST_TOKENS)
        self.capacity = most + whole(burst, "burst", least=0, most=MOST_TOKENS)
        self._rate = tokens / span(period, "period")
        if not 0 < self._rate < math.inf:
            raise ConfigurationError("the rate, tokens per period, is beyond what a float can hold")
        self._tokens = float(self.capacity)
        self._at = now

    def _level(self, now: float) -> float:
        return min(float(self.capacity), self._tokens + (now - self._at) * self._rate)

    def try_debit(self, cost: int, now: float) -> int | None:
        """See `Meter`."""
        level = self._level(now)
        if level + _DUST < cost:
            return None
        self._tokens, self._at = level - cost, now
        return 0

    def credit(self, cost: int, stamp: int, now: float) -> None:
        """See `Meter`: never above the capacity."""
        self._tokens, self._at = min(float(self.capacity), self._level(now) + cost), now

    def time_until(self, cost: int, now: float) -> float:
        """See `Meter`."""
        missing = cost - self._level(now)
        return 0.0 if missing <= _DUST else missing / self._rate

    def available(self, now: float) -> int:
        """See `Meter`."""
        return max(0, math.floor(self._level(now) + _DUST))

    def resets_in(self, now: float) -> float | None:
        """See `Meter`: a bucket has no such moment."""
        return None
