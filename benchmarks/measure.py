"""Measuring two ways of doing one thing, in turns, and saying how they compare.

Samples alternate (A B A B ...) in one process, after one of each that is thrown away, so that whatever slows the machine
down meets both. The figure is the median of the ratios within the pairs; `low` and `high` are the extremes.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

Sample = Callable[[], Awaitable[float]]
"""Does the work once and gives seconds per unit of it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is done: everything, or with `quick` just enough to see that nothing is badly off."""

    quick: bool = False

    def pairs(self, full: int) -> int:
        """How many pairs of samples to take."""
        return max(3, full // 3) if self.quick else full

    def units(self, full: int) -> int:
        """How many items, windows or transitions one sample has."""
        return max(1, full // 4) if self.quick else full


@dataclass(frozen=True, slots=True)
class Spread:
    """A median with its extremes."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a figure: not above `limit`, or with `at_least` not below it."""

    limit: float
    at_least: bool = False

    def reached_by(self, value: float) -> bool:
        """Whether a figure keeps to the bound."""
        return value >= self.limit if self.at_least else value <= self.limit


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table.

    value:   the figure itself: a ratio if `unit` is "x", and then the only thing that means anything on another machine
    engine:  what the engine took, and `other` what it is compared with; in `scale` units (see `SCALES`) per `per`
    target:  None for a figure that only informs
    """

    title: str
    value: Spread
    unit: str = "x"
    target: Target | None = None
    engine: Spread | None = None
    other: Spread | None = None
    scale: str = "us"
    per: str = ""

    @property
    def reached(self) -> bool | None:
        """Whether the target is reached; None without one."""
        return None if self.target is None else self.target.reached_by(self.value.median)


Benchmark = Callable[[Effort], Awaitable[Figure]]

SCALES = {"us": 1e6, "ms": 1e3, "s": 1.0}
"""How many of each there are in a second."""


def spread(values: Sequence[float]) -> Spread:
    """The median and the extremes of some samples."""
    return Spread(statistics.median(values), min(values), max(values))


def timed(work: Callable[[], Awaitable[object]], units: int, clock: Callable[[], float] = perf_counter) -> Sample:
    """A sample that does `work`, which consists of so many units.

    `clock` is `thread_time` where all the work is done by this thread, which is never idle: time that other processes
    take from it is then not counted.
    """

    async def sample() -> float:
        gc.collect()
        began = clock()
        await work()
        return (clock() - began) / units

    return sample


async def compare(
    title: str,
    engine: Sample,
    other: Sample,
    *,
    pairs: int,
    per: str,
    target: Target | None = None,
    scale: str = "us",
    inverse: bool = False,
) -> Figure:
    """Take the samples in turns and give the ratio of `engine` to `other`, or with `inverse` of `other` to `engine`."""
    await engine()
    await other()
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(pairs):
        ours.append(await engine())
        theirs.append(await other())
    ratios = [right / left if inverse else left / right for left, right in zip(ours, theirs, strict=True)]
    return Figure(
        title,
        spread(ratios),
        target=target,
        engine=spread(ours),
        other=spread(theirs),
        scale=scale,
        per=per,
    )
