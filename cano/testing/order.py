"""In which order the callbacks of one turn of an event loop run: shuffled by a seed, within what asyncio promises."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable
from random import Random
from typing import Any


class MarkedHandle(asyncio.Handle):
    """A callback that remembers which callback, or which thread, asked for it."""

    __slots__ = ("origin",)

    def __init__(self, callback: Any, args: Any, loop: Any, context: Any, origin: Hashable) -> None:
        super().__init__(callback, args, loop, context)
        self.origin = origin


class Order:
    """Shuffles the callbacks of a turn.

    What one callback (a step of an asyncio task, say) has asked for runs in the order in which it asked: so
    `create_task` and then `sleep(0)` still starts the new task first, the callbacks of a future are called in order,
    and an asyncio task never runs two steps at once. What different callbacks of the turn before have asked for is
    interleaved freely, as is what comes from timers, files and threads; timers of the same instant may change places,
    timers of different instants never do. Every callback runs in its turn, so nothing is starved.

    Two loops with the same seed and the same program choose the same order, in any process.
    """

    __slots__ = ("_random", "_running")

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._running = 0

    @property
    def origin(self) -> Hashable:
        """What a callback that is asked for now comes from."""
        return self._running

    def next(self) -> None:
        """Another callback begins."""
        self._running += 1

    def timers(self, due: list[asyncio.TimerHandle]) -> list[asyncio.TimerHandle]:
        """Timers that are due, by instant; those of the same instant in any order."""
        if len(due) < 2:
            return due
        return sorted(due, key=lambda handle: (handle.when(), self._random.random()))

    def turn(self, handles: Iterable[asyncio.Handle]) -> list[asyncio.Handle]:
        """The callbacks of a turn in the order in which they are to run."""
        strands: dict[Hashable, list[asyncio.Handle]] = {}
        places: list[Hashable] = []
        for number, handle in enumerate(handles):
            if isinstance(handle, MarkedHandle):
                origin = handle.origin
            else:
                origin = "timers" if isinstance(handle, asyncio.TimerHandle) else ("file", number)
            strands.setdefault(origin, []).append(handle)
            places.append(origin)
        if len(strands) > 1:
            self._random.shuffle(places)
        following = {origin: iter(strand) for origin, strand in strands.items()}
        return [next(following[origin]) for origin in places]
