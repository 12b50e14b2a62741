"""Source: what a stream reads from, from `open` to `aclose`, all in the asyncio task of the run."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

from cano.brake import Brake, Halted
from cano.context import Context
from cano.errors import ConfigurationError
from cano.task.failure import hook_failure
from cano.task.stream import StreamTask

_log = logging.getLogger("cano")

_CLOSE_ATTEMPTS = 3


class Source:
    """An opened source. `items` is its own async iterator, pulled from with nothing in between."""

    __slots__ = ("_brake", "_closers", "_task", "items")

    def __init__(self, task: str, opened: Any, brake: Brake) -> None:
        self._task = task
        self._brake = brake
        self._closers: list[Callable[[], Any]] = []
        if hasattr(type(opened), "__aiter__"):
            inner = aiter(opened)
            self.items: AsyncIterator[Any] = inner if hasattr(type(inner), "__aiter__") else _Again(inner)
            self._closes_with(inner if hasattr(inner, "aclose") else opened, "aclose")
        else:
            iterator = iter(opened)
            self.items = _walk(iterator)
            self._closes_with(self.items, "aclose")
            self._closes_with(iterator, "close")

    def _closes_with(self, owner: Any, method: str) -> None:
        closer = getattr(owner, method, None)
        if callable(closer):
            self._closers.append(closer)

    async def close(self) -> None:
        """Close the source. Idempotent. What closing raises is logged: every window is settled by now."""
        while self._closers:
            await self._close(self._closers.pop(0))

    async def _close(self, closer: Callable[[], Any]) -> None:
        failure: BaseException | None = None
        for _ in range(_CLOSE_ATTEMPTS):
            try:
                closing = closer()
                if inspect.isawaitable(closing):
                    await closing
                break
            except RuntimeError as error:  # perhaps a generator that yields while it is being closed: close it again
                failure = failure or error
            except BaseExceptionGroup as error:
                failure = _unless_closed(error)
                break
            except (asyncio.CancelledError, Exception) as error:
                if isinstance(error, asyncio.CancelledError) and not self._brake.leaked():
                    raise
                failure = error
                break
        if failure is not None:
            _log.warning("the source of %s raised %s while it was closed", self._task, type(failure).__name__)


def _unless_closed(group: BaseExceptionGroup[BaseException]) -> BaseException | None:
    """What a task group that a source holds makes of being closed: None if that is all there is in it.

    Raises: the group, if it holds something like a KeyboardInterrupt.
    """
    _, rest = group.split((GeneratorExit, asyncio.CancelledError))
    if rest is not None and not isinstance(rest, Exception):
        raise group
    return rest


async def open_source(task: StreamTask[Any, Any, Any, Any], ctx: Context[Any], cursor: Any, brake: Brake) -> Source:
    """Open a stream's source.

    Raises:
        Halted: the run was stopped meanwhile; nothing is left open.
        ConfigurationError: what `open` returned cannot be iterated.
        CanoError: `open` raised.
    """
    try:
        opened: Any = task.open(ctx, cursor)
        if inspect.isawaitable(opened):
            opened = await brake.expose(opened if inspect.iscoroutine(opened) else _awaited(opened))
        if not hasattr(type(opened), "__aiter__") and not hasattr(type(opened), "__iter__"):
            raise ConfigurationError(
                f"{type(task).__name__}.open returned a {type(opened).__name__}, which cannot be iterated: yield the items, "
                "or return an iterable or an async iterable of them"
            )
        source = Source(task.name, opened, brake)
    except Halted:
        raise
    except (asyncio.CancelledError, Exception) as error:
        if isinstance(error, asyncio.CancelledError) and not brake.leaked():
            raise
        raise hook_failure(task.name, "open", error)
    if brake.on:
        await source.close()
        raise Halted
    return source


async def _awaited(opening: Awaitable[Any]) -> Any:
    return await opening


class _Again:
    """An iterator that has no `__aiter__` itself, which `async for` asks for."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __aiter__(self) -> Any:
        return self

    def __anext__(self) -> Any:
        return self._inner.__anext__()


async def _walk(items: Iterator[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item
