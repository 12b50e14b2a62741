"""Counting by names from closed sets: what is counted stays exact, and its size bounded, whatever users call things.

A cell is found first, and changed then with the lock held, in steps that build nothing. So no other thread comes in
between, and no garbage collection either, which may end a run of a closed event loop and count that: the lock may be
taken again by whoever holds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from threading import RLock
from typing import Any, Generic, Literal, Self, TypeVar

VALUES = 100
"""How many values a label may have; the rest count as `OTHER`."""
SERIES = 1_000
"""How many combinations of values a tally may have; the rest count as `OTHER` throughout."""
OTHER = "other"
BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0, 300.0, 1_800.0, 7_200.0)
"""The upper bounds, in seconds, of the buckets of a `Timing`; the last bucket has none."""

Names = tuple[str, ...]


class Label:
    """The values of one label, a closed set: one that would be too many becomes `OTHER`."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: set[str] = set()

    def admit(self, value: str) -> str:
        """The value, or what it counts as."""
        if value not in self._values:
            if len(self._values) >= VALUES:
                return OTHER
            self._values.add(value)
        return value


class Number:
    """A number that counts up, or up and down."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def copy(self) -> Self:
        """As it is now."""
        return type(self)(self.value)

    def merge(self, other: Self) -> None:
        """Add another one."""
        self.value += other.value


class Timing:
    """How often something took how long: the sum of the seconds, and a count for each bucket (not cumulative)."""

    __slots__ = ("buckets", "seconds")

    def __init__(self, buckets: Iterable[int] | None = None, seconds: float = 0.0) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1) if buckets is None else list(buckets)
        self.seconds = seconds

    def took(self, seconds: float) -> None:
        """It took so long once."""
        self.seconds += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1

    @property
    def count(self) -> int:
        """How often."""
        return sum(self.buckets)

    def copy(self) -> Self:
        """As it is now."""
        return type(self)(self.buckets, self.seconds)

    def merge(self, other: Self) -> None:
        """Add another one."""
        self.seconds += other.seconds
        self.buckets = [mine + its for mine, its in zip(self.buckets, other.buckets, strict=True)]


CellT = TypeVar("CellT", Number, Timing)


class Tally(Generic[CellT]):
    """A cell for every combination of names.

    make:    makes an empty cell
    naming:  makes names of what an event tells (`find`), slowly
    lock:    held while a cell is changed or copied
    """

    __slots__ = ("_known", "_labels", "_lock", "_make", "_naming", "cells")

    def __init__(self, make: Callable[[], CellT], naming: Callable[..., Names], lock: RLock) -> None:
        self._lock = lock
        self._make: Callable[[], CellT] = make
        self._naming = naming
        self._labels: list[Label] = []
        self._known: dict[Any, CellT] = {}
        self.cells: dict[Names, CellT] = {}

    def find(self, told: tuple[Any, ...]) -> CellT:
        """The cell for what an event tells; the same one for the same."""
        cell = self._known.get(told)
        if cell is None:
            with self._lock:
                cell = self._find(told)
        return cell

    def _find(self, told: tuple[Any, ...]) -> CellT:
        names = self._naming(*told)
        while len(self._labels) < len(names):
            self._labels.append(Label())
        names = tuple(label.admit(name) for label, name in zip(self._labels, names, strict=True))
        if names not in self.cells and len(self.cells) >= SERIES:
            names = (OTHER,) * len(names)
        cell = self.cells.setdefault(names, self._make())  # in one step: making one may bring a garbage collection
        if len(self._known) < 2 * SERIES:
            self._known[told] = cell
        return cell

    def snapshot(self) -> dict[Names, CellT]:
        """A copy of every cell. With the lock held."""
        return {names: cell.copy() for names, cell in self.cells.copy().items()}


def grouped(cells: Mapping[Names, CellT], *places: int) -> dict[Names, CellT]:
    """The cells added up by the names at these places."""
    found: dict[Names, CellT] = {}
    for names, cell in cells.items():
        key = tuple(names[place] for place in places)
        if key in found:
            found[key].merge(cell)
        else:
            found[key] = cell.copy()
    return found


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts by upper bound, not cumulative and one more than there are bounds, and the sum of what was counted."""

    bounds: tuple[float, ...]
    buckets: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with its series. The name of a counter comes without the `_total` that is written."""

    kind: Literal["counter", "gauge", "histogram"]
    name: str
    text: str
    labels: Names
    series: Mapping[Names, float | Histogram]


def numbers(cells: Mapping[Names, Number]) -> dict[Names, float | Histogram]:
    """Cells as series."""
    return {names: cell.value for names, cell in cells.items()}


def counts(cells: Mapping[Names, Timing]) -> dict[Names, float | Histogram]:
    """How often, as series."""
    return {names: cell.count for names, cell in cells.items()}


def timings(cells: Mapping[Names, Timing]) -> dict[Names, float | Histogram]:
    """How long, as series."""
    return {names: Histogram(BOUNDS, tuple(cell.buckets), cell.seconds) for names, cell in cells.items()}
