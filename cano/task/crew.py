"""Crew: asyncio tasks that cannot outlive their block."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from dataclasses import dataclass
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
        self._members: list[asyncio.Task[Outcome]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        cancelled: asyncio.CancelledError | None = None
        passing_on = kind is not None and issubclass(kind, asyncio.CancelledError)
        self._cancel()
        for member in self._members:
            while not member.done():
                try:
                    await asyncio.wait((member,))
                except asyncio.CancelledError as error:
                    cancelled = error
                    if passing_on:
                        self._cancel()
                    passing_on = True
        if (crash := self._crash()) is not None and (kind is None or issubclass(kind, Exception | asyncio.CancelledError)):
            raise crash
        if cancelled is not None and kind is None:
            raise cancelled

    def _cancel(self) -> None:
        for member in self._members:
            member.cancel()

    def _crash(self) -> BaseException | None:
        for member in self._members:
            error = None if member.cancelled() else member.result().error
            if error is not None and not isinstance(error, Exception | asyncio.CancelledError):
                return error
        return None

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Outcome]:
        """Add a member."""
        variables = contextvars.copy_context()
        member = asyncio.get_running_loop().create_task(_contained(work), name="cano-member", context=variables)
        member.add_done_callback(lambda _: work.close())  # for one that was cancelled before it began
        self._members.append(member)
        return member


async def _contained(work: Coroutine[Any, Any, Any]) -> Outcome:
    try:
        return Outcome(await work, None)
    except BaseException as error:
        return Outcome(None, error)
