"""How long a flow that failed is left alone, and when it is given up. Never awaits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cano.clock import Duration, seconds
from cano.errors import ConfigurationError
from cano.task.retry import ExponentialBackoff

_ALWAYS = 1 << 62


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a flow waits at least after its `streak`-th failure in a row (seconds or timedeltas), and after how many
    it is tripped.

    The waits grow from `initial` by `multiplier` to `max_delay` and are spread by `jitter`, exactly like those of
    `ExponentialBackoff`: finite, not negative and never above `max_delay`. A back-off is no retry: it only delays the
    next fire. `trip_after=None` never trips; `initial=0` never waits; `max_delay=inf` means a year.

    Raises:
        ConfigurationError: a delay is no duration, `initial` is infinite, `multiplier` not above zero and finite, `jitter`
            not from 0 to 1, or `trip_after` no int of 1 or more.
    """

    initial: Duration = 1.0
    multiplier: float = 2.0
    max_delay: Duration = 300.0
    jitter: float = 0.1
    trip_after: int | None = None
    _growth: ExponentialBackoff = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        limit = self.trip_after
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ConfigurationError("Backoff(trip_after=...) must be an int of 1 or more, or None")
        try:
            growth = ExponentialBackoff(_ALWAYS, self.initial, self.multiplier, self.max_delay, self.jitter)
        except ConfigurationError as error:
            message = error.message.replace("ExponentialBackoff", "Backoff").replace("base_delay", "initial")
            raise ConfigurationError(message) from None
        if math.isinf(seconds(self.initial, "Backoff(initial=...)")):
            raise ConfigurationError("Backoff(initial=...) must be finite")
        if not 0 < self.multiplier < math.inf:
            raise ConfigurationError("Backoff(multiplier=...) must be above zero and finite")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError("Backoff(jitter=...) must be from 0 to 1")
        object.__setattr__(self, "_growth", growth)

    def delay(self, streak: int) -> float:
        """How many seconds to wait after so many failures in a row; 0 counts as 1."""
        return self._growth.delay(min(max(streak, 1), _ALWAYS)) or 0.0

    def trips(self, streak: int) -> bool:
        """Whether so many failures in a row trip the flow."""
        return self.trip_after is not None and streak >= self.trip_after
