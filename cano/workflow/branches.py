"""Split and join: what each branch runs, and how their results are stored for the state that follows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cano.context import RunData
from cano.errors import CheckpointStoreError, TaskExecutionError
from cano.recovery.codec import UNDECLARED, Codec, native
from cano.task.split import Branches, BranchResult

_JSON = Codec(UNDECLARED, what="the results of a split", remedy="", error=CheckpointStoreError)


class BranchHost:
    """A branch's own copy of the run's data, taken back to its start when an attempt fails."""

    def __init__(
        self, take_copy: Callable[[], Any], retrying: Callable[[int, float, Exception], None], refused: Callable[[], None]
    ) -> None:
        self._take_copy = take_copy
        self.data: RunData[Any] = RunData(take_copy())
        self.retrying = retrying
        self.refused = refused

    def restore(self) -> None:
        """Discard what a failed attempt did."""
        self.data.value = self._take_copy()


def dump_branches(branches: Branches) -> bytes:
    """Encode results for the row of the state that sees them.

    Raises:
        TaskExecutionError: a value is not JSON-native. Names the branch and the type only.
    """
    rows = []
    for result in branches:
        if not native(result.value):
            raise TaskExecutionError(
                f"the value of branch {result.name} cannot be stored: a value of type {type(result.value).__qualname__}; "
                "with a checkpoint store a branch returns JSON-native values"
            )
        error = None if result.error is None else result.error.message
        rows.append({"name": result.name, "value": result.value, "error": error, "cancelled": result.cancelled})
    return bytes(_JSON.encode(rows))


def load_branches(blob: bytes) -> Branches:
    """Decode what `dump_branches` gave; errors come back as TaskExecutionErrors with the old message.

    Raises:
        CheckpointStoreError: the bytes are damaged.
    """
    try:
        return Branches(
            BranchResult(
                row["name"],
                row["value"],
                None if row["error"] is None else TaskExecutionError(row["error"]),
                row["cancelled"],
            )
            for row in _JSON.decode(blob)
        )
    except (CheckpointStoreError, KeyError, TypeError):
        raise CheckpointStoreError("the stored results of a split are damaged; they were left as they are") from None
