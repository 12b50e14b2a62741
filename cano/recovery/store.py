"""The contract of a checkpoint store, for whoever writes one. `cano.testing.checkpoint_store_contract` runs its
clauses.

 1. `load_run` of an id that was never written gives [].
 2. Rows come back equal to what was appended, ascending by sequence, whatever is in their bytes. The list is the
    caller's own: what is appended or cleared later does not change it, and changing it does not change the log.
 3. `append` is a compare-and-set: the row's sequence is the last stored one + 1, or 0 on an empty log. Otherwise it
    raises `CheckpointConflictError` and writes nothing.
 4. `append` returns only when the row would survive the death of the process.
 5. `row.replaces` names an older STEP_CURSOR row of the same run that is dropped in the same transaction; a number that
    no such row has is ignored, be it that of a row of another kind.
 6. An append that is refused drops nothing either.
 7. `clear` forgets one id and no other; an unknown id is fine; the id then starts again at 0.
 8. Ids are compared exactly: no wildcard, no case folding, no trimming, no meaning in quotes.
 9. Everything may be called concurrently. Of several appends of one sequence exactly one wins.
10. Cancelling the task that awaits `append` either writes the whole row or nothing, and nothing is written after the
    cancellation has surfaced.

And of stores that offer them:

11. `claim(workflow_id)` is an async context manager. While one is held any other, from whatever task, store object or
    process, raises `RunOwnedError` at once. It ends with the block and with the process.
12. `transaction(workflow_id)` is an async context manager that gives an object with `.connection` and `async
    append(row)`. What is done through either becomes durable together when the block ends, or not at all if it
    raises.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from cano.recovery.checkpoint import CheckpointRow


@runtime_checkable
class CheckpointStore(Protocol):
    """Keeps the logs of runs, each a list of rows under a workflow id. The clauses are in this module's docstring.

    Any exception of a store fails the run that met it, as a `CheckpointStoreError`; the log is left as it is.
    """

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        """Add the next row, durably.

        Raises:
            CheckpointConflictError: `row.sequence` is not the next one. Nothing was written.
            CheckpointStoreError: it could not be written. Nothing was.
        Cancellation: all or nothing; see clause 10.
        """
        ...

    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        """All rows of one run, ascending by sequence; [] if the id is unknown."""
        ...

    async def clear(self, workflow_id: str) -> None:
        """Forget one run. Idempotent."""
        ...


@runtime_checkable
class Claiming(Protocol):
    """A store that can say who is working on a run."""

    def claim(self, workflow_id: str) -> AbstractAsyncContextManager[None]:
        """Hold the run while the block lasts.

        Raises:
            RunOwnedError: somebody alive holds it.
        """
        ...


class Transaction(Protocol):
    """An open transaction of a store: the user's writes go through `connection`, the engine's row through `append`."""

    connection: Any

    async def append(self, row: CheckpointRow) -> None:
        """Like `CheckpointStore.append`, but durable only with the transaction."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A store that can commit a row together with writes of the user's own."""

    def transaction(self, workflow_id: str) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that is committed when the block ends and rolled back when it raises."""
        ...


@runtime_checkable
class Noting(Protocol):
    """A store that keeps notes about its runs, for people to look at. No run depends on them."""

    def introduce(self, workflow_id: str, workflow: str) -> None:
        """From here on, until its claim ends, the run is one of the workflow of that name."""
        ...

    async def note_failure(self, workflow_id: str, error_type: str, category: str) -> None:
        """A run that has a log failed: the class of what a hook raised, or of the error itself, and that one's category. What
        this raises is logged.
        """
        ...
