"""Life: a process played within an event loop, so that one can die and another begin."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_living: ContextVar[Life | None] = ContextVar("cano-life", default=None)
_PATIENCE = 5.0


class Life:
    """What runs between the start of a process and its end. An asyncio task belongs to the life within which it was
    started, by whatever code; it ends with it.

    dying: called at the very moment of death, before anything else can happen
    dead:  whether it was killed
    """

    def __init__(self, dying: Callable[[], None] = lambda: None) -> None:
        self._dying = dying
        self._tasks: list[asyncio.Task[Any]] = []
        self._enough = 64
        self.dead = False

    def die(self) -> None:
        """Be killed."""
        self.dead = True
        self._dying()

    def keep(self, task: asyncio.Task[Any]) -> None:
        """An asyncio task was started within it."""
        self._tasks.append(task)
        if len(self._tasks) > self._enough:
            self._tasks = [task for task in self._tasks if not task.done()]
            self._enough = 2 * len(self._tasks) + 64

    @contextmanager
    def lived(self) -> Iterator[None]:
        """What is done in this block, and started in it, is done within it. A `watched` loop is needed."""
        with _within(self):
            yield

    async def end(self) -> None:
        """Cancel the asyncio tasks that are left, as the end of `asyncio.run` does, and wait for them; for those that do not
        mind being cancelled, up to 5 s.
        """
        while left := [task for task in self._tasks if not task.done()]:
            for task in left:
                task.cancel()
            done, pending = await asyncio.wait(left, timeout=_PATIENCE)
            for task in done:
                if not task.cancelled():
                    task.exception()  # nobody else will look
            if pending:
                return


@contextmanager
def apart() -> Iterator[None]:
    """What is done in this block belongs to no life: it is the outside world's."""
    with _within(None):
        yield


@contextmanager
def _within(life: Life | None) -> Iterator[None]:
    token = _living.set(life)
    try:
        yield
    finally:
        _living.reset(token)


class _Watch:
    """A task factory that tells lives of their asyncio tasks, for as long as somebody uses it."""

    def __init__(self, behind: Any) -> None:
        self.behind = behind
        self.users = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        make = self.behind or _plain
        task = make(loop, coroutine, **options)
        life = _living.get()
        if life is not None:
            life.keep(task)
        return task


def _plain(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coroutine, loop=loop, **options)


@contextmanager
def watched() -> Iterator[None]:
    """While the block lasts, the running loop tells lives of their asyncio tasks. Blocks may overlap."""
    loop = asyncio.get_running_loop()
    found: Any = loop.get_task_factory()
    watch = found if isinstance(found, _Watch) else _Watch(found)
    watch.users += 1
    loop.set_task_factory(watch)
    try:
        yield
    finally:
        watch.users -= 1
        if not watch.users and loop.get_task_factory() is watch:
            loop.set_task_factory(watch.behind)
