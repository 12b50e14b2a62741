"""What breakers and limiters count, for metrics. Every number only grows."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

WAIT_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0)
"""Upper bounds, in seconds, of the buckets that `LimiterCounts.waits` counts in; the last bucket has none."""


@dataclass(slots=True)
class BreakerCounts:
    """What a breaker has counted.

    acquired:  permits given out
    rejected:  calls refused
    successes: outcomes told to permits, those of an earlier epoch included; likewise `failures`
    """

    acquired: int = 0
    rejected: int = 0
    successes: int = 0
    failures: int = 0
    closed_to_open: int = 0
    open_to_half_open: int = 0
    half_open_to_closed: int = 0
    half_open_to_open: int = 0


@dataclass(slots=True)
class LimiterCounts:
    """What a limiter has counted.

    acquired:     requests admitted
    waited:       requests that had to wait, the cancelled ones included
    rejected:     requests that did not want to wait and were refused
    tokens:       the costs of the admitted requests, in total, those given back later included
    wait_seconds: how long those that waited and were admitted have waited, in total
    waits:        the same waits, counted in buckets that end at `WAIT_BOUNDS`
    """

    acquired: int = 0
    waited: int = 0
    rejected: int = 0
    tokens: int = 0
    wait_seconds: float = 0.0
    waits: list[int] = field(default_factory=lambda: [0] * (len(WAIT_BOUNDS) + 1))

    def admit(self, cost: int) -> None:
        """A request was admitted."""
        self.acquired += 1
        self.tokens += cost

    def wait(self, seconds: float) -> None:
        """A request was admitted after having waited."""
        self.wait_seconds += seconds
        self.waits[bisect_left(WAIT_BOUNDS, seconds)] += 1
