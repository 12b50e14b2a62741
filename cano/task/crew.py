"""Crew: asyncio tasks that cannot outlive their block."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Self

from cano.cancel import outlast


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
    """

    def __init__(self) -> None:
        self._members: list[asyncio.Task[Outcome]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        for member in self._members:
            member.cancel()
        cancelled: asyncio.CancelledError | None = None
        for member in self._members:
            try:
                await outlast(member)
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None and exc_info[0] is None:
            raise cancelled

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
