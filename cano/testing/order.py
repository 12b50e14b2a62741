"""In which order the callbacks of one turn of an event loop run: shuffled by a seed, within what asyncio promises."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from random import Random
from typing import Any

_STEPS = (None, "task_wakeup", "__step", "__wakeup")
"""The names of a step of an asyncio task, written in C (its first has none) or in Python."""


class MarkedHandle(asyncio.Handle):
    """A callback that remembers which callback, or which thread, asked for it."""

    __slots__ = ("origin",)

    def __init__(self, callback: Any, args: Any, loop: Any, context: Any, origin: Hashable) -> None:
        super().__init__(callback, args, loop, context)
        self.origin = origin


class Order:
    """Shuffles the callbacks of a turn.

    What one callback (a step of an asyncio task, say) has asked for is a strand, and runs in the order in which it was
    asked for: so `create_task` and then `sleep(0)` still starts the new asyncio task first, and the callbacks of a
    future are called in order. Strands are interleaved freely, as is what comes from timers, files and threads; timers
    of the same instant may change places, timers of different instants never do. A strand that holds nothing but steps
    of asyncio tasks may also be put off for some turns, as if what those tasks waited for had come a little later; how
    often is different from seed to seed, and with some never. No time passes meanwhile.

    Two loops with the same seed and the same program choose the same order, in any process.
    """

    __slots__ = ("_put_off", "_random", "_running")

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._put_off = self._random.choice((0.0, 0.1, 0.3, 0.6))
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

    def turn(self, handles: Sequence[asyncio.Handle]) -> tuple[list[asyncio.Handle], list[asyncio.Handle]]:
        """The callbacks of a turn in the order in which they are to run, and those that are put off to the next."""
        strands: dict[Hashable, list[asyncio.Handle]] = {}
        for number, handle in enumerate(handles):
            strands.setdefault(_origin(handle, number), []).append(handle)
        if len(strands) < 2:
            return list(handles), []
        late = {origin for origin, strand in strands.items() if self._is_put_off(strand)}
        if len(late) == len(strands):
            late.clear()
        places = [origin for origin, strand in strands.items() if origin not in late for _ in strand]
        self._random.shuffle(places)
        following = {origin: iter(strand) for origin, strand in strands.items()}
        return [next(following[origin]) for origin in places], [
            handle for origin in strands if origin in late for handle in strands[origin]
        ]

    def _is_put_off(self, strand: list[asyncio.Handle]) -> bool:
        return self._put_off > 0 and self._random.random() < self._put_off and all(map(_is_step, strand))


def _origin(handle: asyncio.Handle, number: int) -> Hashable:
    if isinstance(handle, MarkedHandle):
        return handle.origin
    return "timers" if isinstance(handle, asyncio.TimerHandle) else ("file", number)


def _is_step(handle: Any) -> bool:
    """Whether a callback is the next step of an asyncio task: it begins, or goes on with what it waited for."""
    task = getattr(handle._callback, "__self__", None)
    return isinstance(task, asyncio.Task) and getattr(handle._callback, "__name__", None) in _STEPS
