"""What a rate limiter measures with: decisions that never wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Usage:
    """How much of a limit is used.

    used:         units that are not available now
    limit:        units that are available when nothing is used
    available_in: seconds until at least one unit is available
    resets_at:    when the window ends, in seconds of `cano.clock.now()`; None without an open window
    """

    used: int
    limit: int
    available_in: float
    resets_at: float | None


class Meter(Protocol):
    """Decides whether a cost can be paid now. Costs are ints from 1 to `capacity`; `now` never goes back."""

    @property
    def capacity(self) -> int:
        """The largest cost that can ever be paid."""
        ...

    def try_debit(self, cost: int, now: float) -> int | None:
        """Pay, and return a stamp for `credit`; None, and nothing is paid, if there is not enough."""
        ...

    def credit(self, cost: int, stamp: int, now: float) -> None:
        """Give back what a debit took. What has come back by itself since is not given twice."""
        ...

    def time_until(self, cost: int, now: float) -> float:
        """Seconds until the cost could be paid if nobody else pays before; infinite if beyond all floats."""
        ...

    def available(self, now: float) -> int:
        """How many units could be paid now."""
        ...

    def resets_in(self, now: float) -> float | None:
        """Seconds until everything is available at once; None if that is not how it comes back."""
        ...
