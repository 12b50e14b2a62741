"""Crew: asyncio tasks that cannot outlive their block."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a member ended. A KeyboardInterrupt is carried as a value: an asyncio task that ends with one stops the
    event loop.
    """

    value: Any
    error: BaseException | None


class Crew:
    """Members work beside one another, each in a copy of the context variables. When the block ends, those still at
    work are cancelled and awaited.

    Raises: a BaseException other than CancelledError with which a member ended, unless the block raised one itself. What
        else a member raises is for whoever started it to look at.
    Cancellation: the first one, be it in the block or while members are awaited, only ends the block; each further one
        is passed on to members that have not ended yet, so that an aborted drain cuts their clean-up too.
    """

    def __init__(self) -> None:
        self._members: dict[asyncio.Task[Outcome], None] = {}
        self._crash: BaseException | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        cancelled: asyncio.CancelledError | None = None
        passing_on = kind is not None and issubclass(kind, asyncio.CancelledError)
        left = list(self._members)
        _cancel(left)
        while left := [member for member in left if not member.done()]:
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError as error:
                cancelled = error
                if passing_on:
                    _cancel(left)
                passing_on = True
        crash = self._crash
        if crash is not None and (kind is None or issubclass(kind, Exception | asyncio.CancelledError)):
            raise crash
        if cancelled is not None and kind is None:
            raise cancelled

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Outcome]:
        """Add a member."""
        variables = contextvars.copy_context()
        member = asyncio.get_running_loop().create_task(_contained(work), name="cano-member", context=variables)
        self._members[member] = None
        member.add_done_callback(partial(self._ended, work))
        return member

    def _ended(self, work: Coroutine[Any, Any, Any], member: asyncio.Task[Outcome]) -> None:
        work.close()  # one that was cancelled before it began never got its turn
        del self._members[member]
        error = None if member.cancelled() else member.result().error
        if self._crash is None and error is not None and not isinstance(error, Exception | asyncio.CancelledError):
            self._crash = error


def _cancel(members: list[asyncio.Task[Outcome]]) -> None:
    for member in members:
        member.cancel()


async def _contained(work: Coroutine[Any, Any, Any]) -> Outcome:
    try:
        return Outcome(await work, None)
    except BaseException as error:
        return Outcome(None, error)
