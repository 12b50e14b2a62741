"""In which order the callbacks of one turn of an event loop run: shuffled by a seed, within what asyncio promises."""

from __future__ import annotations

import asyncio
from collections import deque
from random import Random
from typing import Any

_STEPS = (None, "task_wakeup", "__step", "__wakeup")
"""The names of a step of an asyncio task, written in C (its first has none) or in Python."""


class MarkedHandle(asyncio.Handle):
    """A callback that remembers which callback asked for it, and whether it is a step of an asyncio task: the task
    begins, or goes on with what it waited for.
    """

    __slots__ = ("origin", "step")

    def __init__(self, callback: Any, args: Any, loop: Any, context: Any, origin: int) -> None:
        super().__init__(callback, args, loop, context)
        self.origin = origin
        owner = getattr(callback, "__self__", None)
        self.step = isinstance(owner, asyncio.Task) and getattr(callback, "__name__", None) in _STEPS


class NumberedTask(asyncio.Task[Any]):
    """An asyncio task whose hash is a number that it is given: asyncio keeps asyncio tasks in sets, and goes through them in
    an order that would else depend on where they are in memory.
    """

    def __init__(self, coroutine: Any, *, number: int, **options: Any) -> None:
        self._number = number
        super().__init__(coroutine, **options)

    def __hash__(self) -> int:
        return self._number


class Order:
    """Shuffles the callbacks of a turn, in ways that a correct program cannot mind.

    - Steps of asyncio tasks change places with each other and with other callbacks.
    - What one callback (a step of an asyncio task, say) has asked for is a strand, and runs in the order in which it
      was asked for: so `create_task` and then `sleep(0)` still starts the new asyncio task first.
    - Callbacks that are no steps keep their order, as asyncio promises; timers of the same instant may change places,
      for which it promises none.
    - A strand that holds nothing but steps may be put off for some turns, as if what those asyncio tasks waited for had
      come a little later; how often is different from seed to seed, and with some never. No time passes meanwhile.

    Two loops with the same seed and the same program choose the same order, in any process.
    """

    __slots__ = ("_put_off", "_random", "_running", "_tasks")

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._put_off = self._random.choice((0.0, 0.1, 0.3, 0.6))
        self._running = 0
        self._tasks = 0

    @property
    def origin(self) -> int:
        """What a callback that is asked for now comes from."""
        return self._running

    def next(self) -> None:
        """Another callback begins."""
        self._running += 1

    def task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> NumberedTask:
        """Make an asyncio task; for `set_task_factory`."""
        self._tasks += 1
        return NumberedTask(coroutine, loop=loop, number=self._tasks, **options)

    def timers(self, due: list[asyncio.TimerHandle]) -> list[asyncio.TimerHandle]:
        """Timers that are due, by instant; those of the same instant in any order."""
        if len(due) < 2:
            return due
        return sorted(due, key=lambda handle: (handle.when(), self._random.random()))

    def turn(self, handles: list[asyncio.Handle]) -> tuple[list[asyncio.Handle], list[asyncio.Handle]]:
        """The callbacks of a turn in the order in which they are to run, and those that are put off to the next."""
        strands: dict[int, deque[asyncio.Handle]] = {}
        fixed: deque[int] = deque()
        for number, handle in enumerate(handles):
            origin = handle.origin if isinstance(handle, MarkedHandle) else -1 - number
            strands.setdefault(origin, deque()).append(handle)
            if not _is_step(handle):
                fixed.append(origin)
        if len(strands) < 2:
            return handles, []
        late = [origin for origin, strand in strands.items() if self._is_put_off(strand)]
        if len(late) == len(strands):
            late.clear()
        later = [handle for origin in late for handle in strands.pop(origin)]
        return self._interleaved(strands, fixed), later

    def _is_put_off(self, strand: deque[asyncio.Handle]) -> bool:
        return self._put_off > 0 and self._random.random() < self._put_off and all(map(_is_step, strand))

    def _interleaved(self, strands: dict[int, deque[asyncio.Handle]], fixed: deque[int]) -> list[asyncio.Handle]:
        """Merge strands at random; `fixed` has the strands of those callbacks that are no steps, in their order."""
        places = [origin for origin, strand in strands.items() for _ in strand]
        self._random.shuffle(places)
        merged: list[asyncio.Handle] = []
        waiting = dict.fromkeys(strands, 0)

        def run(origin: int) -> None:
            strand = strands[origin]
            while waiting[origin]:
                if not _is_step(strand[0]):
                    if fixed[0] != origin:
                        return  # its time comes when those before it have run
                    fixed.popleft()
                merged.append(strand.popleft())
                waiting[origin] -= 1

        for origin in places:
            waiting[origin] += 1
            run(origin)
            while fixed and waiting[fixed[0]]:
                run(fixed[0])
        return merged


def _is_step(handle: asyncio.Handle) -> bool:
    return isinstance(handle, MarkedHandle) and handle.step
