"""Window: when outputs are flushed together. OpenWindow: the one being filled. Nothing here awaits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cano.clock import Duration, signed_seconds
from cano.errors import ConfigurationError

SHORTEST = 0.001
"""The shortest a time window may be, in seconds."""


@dataclass(frozen=True, slots=True, init=False)
class Window:
    """When a window is flushed: after `count` outputs, after `seconds`, or after whichever comes first.

    A count below 1 is raised to 1, a time below 1 ms to 1 ms. `seconds` may be a timedelta.

    Raises:
        ConfigurationError: neither is given, or one is not a number.
    """

    count: int | None
    seconds: float | None

    def __init__(self, count: int | None = None, seconds: Duration | None = None) -> None:
        if count is None and seconds is None:
            raise ConfigurationError("a window of nothing: give Window(count=...), Window(seconds=...) or both")
        if count is not None and (isinstance(count, bool) or not isinstance(count, int)):
            raise ConfigurationError(f"Window(count=...) must be an int, not a {type(count).__name__}")
        period = None if seconds is None else max(signed_seconds(seconds, "Window(seconds=...)"), SHORTEST)
        object.__setattr__(self, "count", None if count is None else max(count, 1))
        object.__setattr__(self, "seconds", period)


class OpenWindow:
    """The window being filled.

    `outputs` is one list for the whole stream, so that the loop may keep its `append`; `cursor` is that of the newest
    output. `due` says that the window has to be flushed.

    A time window begins when the one before it is committed, and its deadline lies on the grid of that beginning: while
    the window is empty the deadline moves on by whole periods, so nothing is flushed, and no timer is needed.
    """

    __slots__ = ("_clock", "_period", "began", "count", "cursor", "deadline", "due", "limit", "outputs", "passed", "timed")

    def __init__(self, window: Window, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._period = math.inf if window.seconds is None else window.seconds
        self.limit = sys.maxsize if window.count is None else window.count
        self.timed = not math.isinf(self._period)
        self.outputs: list[Any] = []
        self.cursor: Any = None
        self.passed = 0
        self.due = False
        self.began = clock()
        self.deadline = self.began + self._period

    def arm(self) -> float:
        """The first output is in: fix the deadline and return it."""
        late = self._clock() - self.deadline
        if late >= 0:
            self.deadline += (late // self._period + 1) * self._period
        self.due = False
        return self.deadline

    def take(self) -> list[Any]:
        """Hand out what is in the window, which is empty then."""
        taken = self.outputs[:]
        self.outputs.clear()
        self.passed = 0
        self.due = False
        return taken

    @property
    def holds(self) -> bool:
        """Whether there is something to commit: outputs, or dropped items with a cursor (`passed` counts those)."""
        return bool(self.outputs or self.passed)

    def begin(self) -> float:
        """A new window begins now. Return how long, in seconds, the old one was open."""
        now = self._clock()
        lasted, self.began, self.deadline = now - self.began, now, now + self._period
        return lasted
