"""Time for tests: a clock that stands still until it is told, and an event loop that never sleeps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from cano import clock

T = TypeVar("T")


class Hands:
    """A clock whose time is `now`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@contextmanager
def hands() -> Iterator[Hands]:
    moved = Hands()
    with clock.replaced(now=moved):
        yield moved


class _Leaps(selectors.DefaultSelector):
    """Instead of waiting, moves the time on."""

    time = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("every asyncio task waits, and nothing will ever wake one")
        found = super().select(0)
        if not found and timeout > 0:
            self.time += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.leaps = _Leaps()
        super().__init__(self.leaps)

    def time(self) -> float:
        return self.leaps.time


def run_virtually(main: Coroutine[Any, Any, T], *, debug: bool = True) -> T:
    """Like `asyncio.run`, in virtual time that begins at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop, debug=debug) as runner:
        return runner.run(main)
