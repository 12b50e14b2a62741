"""DeadLetter: an item set aside with its reason; and where such letters go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An item that the error policy drops.

    item:         the item itself
    error:        what `process_item` raised in the end, or an AttemptTimeoutError
    cursor:       what `cursor_of(item)` gave, or None if the stream has no such hook
    workflow_id, state, task:  where it happened; `state` is the label
    encode_item:  gives the item as bytes, by its declared type or as JSON; raises CursorError if that cannot be done
                  exactly
    encode_cursor: gives the cursor as bytes, or None
    """

    item: Any = field(repr=False)
    error: Exception = field(repr=False)
    cursor: Any = field(repr=False)
    workflow_id: str
    state: str
    task: str
    encode_item: Callable[[], bytes] = field(repr=False)
    encode_cursor: Callable[[], bytes | None] = field(repr=False)

    @property
    def error_type(self) -> str:
        """The name of the error's type."""
        return type(self.error).__qualname__


@runtime_checkable
class DeadLetterSink(Protocol):
    """Where dropped items go."""

    async def write(self, letter: DeadLetter) -> None:
        """Keep a letter. It has to be durable on return: a cursor may pass the item right after.

        Idempotency: an item whose window was not committed comes again, and so may its letter.
        Raises: an Exception fails the run; the item counts as not handled, and nothing that passes it is committed.
        """
        ...
