"""Host: what a stream needs of whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from cano.task.letter import DeadLetter
from cano.task.stream import Stop


class Host(Protocol):
    """What a stream needs of whoever runs it. A stream knows nothing of stores."""

    fix: Callable[[Any], Any] | None

    def encode(self, cursor: Any) -> bytes:
        """Encode a cursor, or raise CursorError."""
        ...

    def window_id(self) -> str:
        """The id of the window that follows the last commit."""
        ...

    async def commit(self, cursor: bytes, stop: Stop[Any] | None) -> None:
        """Make a cursor, `ctx.data` and the decision durable in one append."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A transaction that `commit` takes part in; gives its connection."""
        ...

    def flushed(self, count: int, seconds: float, stopped: bool) -> None:
        """A window is committed."""
        ...

    def dropped(self, error: BaseException, dead_lettered: bool) -> None:
        """The policy dropped an item."""
        ...

    def retrying(self, attempt: int, delay: float, error: Exception) -> None:
        """An attempt at an item failed and another follows."""
        ...

    def letter(self, item: Any, error: Exception, cursor: Any) -> DeadLetter:
        """A dead letter for an item."""
        ...

    def copied(self, data: Any) -> Any:
        """A copy of a value of `ctx.data`."""
        ...
