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

    Cancellation: the end of the block waits for them whatever arrives. The first cancel does not disturb what they do
    to end, each further one cancels them again.
    """

    def __init__(self) -> None:
        self._members: dict[asyncio.Task[Outcome], None] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        left = list(self._members)
        again = isinstance(exc_info[1], asyncio.CancelledError)
        cancelled: asyncio.CancelledError | None = None
        _cancel(left)
        while left := [member for member in left if not member.done()]:
            try:
                await asyncio.wait(left)
            except asyncio.CancelledError as error:
                if again:
                    _cancel(left)
                cancelled, again = error, True
        if cancelled is not None and exc_info[0] is None:
            raise cancelled

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Outcome]:
        """Add a member."""
        variables = contextvars.copy_context()
        member = asyncio.get_running_loop().create_task(_contained(work), name="cano-member", context=variables)
        self._members[member] = None
        member.add_done_callback(self._members.pop)
        return member


def _cancel(members: list[asyncio.Task[Outcome]]) -> None:
    for member in members:
        member.cancel()


async def _contained(work: Coroutine[Any, Any, Any]) -> Outcome:
    try:
        return Outcome(await work, None)
    except BaseException as error:
        return Outcome(None, error)
