"""When a split has waited long enough. Nothing here awaits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import assert_never

from cano.errors import ConfigurationError
from cano.task.retry import count


@dataclass(frozen=True, slots=True)
class All:
    """Every branch has to succeed."""


@dataclass(frozen=True, slots=True)
class AnyOf:
    """One branch has to succeed."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """`n` branches have to succeed."""

    n: int

    def __post_init__(self) -> None:
        count(self.n, "Quorum(n)")


@dataclass(frozen=True, slots=True)
class Percentage:
    """A share of the branches has to succeed: `p` above 0 and up to 1, rounded up to whole branches.

    `p` is the number as it is written: 0.07 of 100 branches are 7, not the 8 that binary fractions make of it.
    """

    p: float

    def __post_init__(self) -> None:
        if isinstance(self.p, bool) or not isinstance(self.p, int | float) or not 0 < self.p <= 1:
            raise ConfigurationError("Percentage(p) must be above 0 and at most 1")


@dataclass(frozen=True, slots=True)
class PartialResults:
    """As soon as `n` branches have succeeded their results will do; the others are cancelled."""

    n: int

    def __post_init__(self) -> None:
        count(self.n, "PartialResults(n)")


@dataclass(frozen=True, slots=True)
class PartialTimeout:
    """Whatever has succeeded when the timeout comes, or when all have settled, will do, if it is at least one."""


Join = All | AnyOf | Quorum | Percentage | PartialResults | PartialTimeout


def needed(join: Join, total: int) -> int:
    """How many branches have to succeed."""
    match join:
        case All():
            return total
        case AnyOf() | PartialTimeout():
            return 1
        case Quorum(n) | PartialResults(n):
            return n
        case Percentage(p):
            return math.ceil(Fraction(repr(float(p))) * total)
        case other:
            assert_never(other)


def decide(join: Join, *, succeeded: int, failed: int, total: int, expired: bool = False) -> bool | None:
    """Whether a join is met (True), cannot be met any more (False), or is still open (None)."""
    wanted = needed(join, total)
    settled = succeeded + failed == total
    if isinstance(join, PartialTimeout) and not settled and not expired:
        return None
    if succeeded >= wanted:
        return True
    if total - failed < wanted or settled or expired:
        return False
    return None
