"""SqliteTransaction: a transaction of the user's and the engine's together, and what keeps it one."""

from __future__ import annotations

import sqlite3
from contextvars import ContextVar

import aiosqlite

from cano.errors import CheckpointStoreError
from cano.recovery.checkpoint import CheckpointRow
from cano.recovery.memory import conflict
from cano.recovery.schema import insert, parameters

ENDED = "flush_window ended its transaction or tried to: leave commit and rollback to the engine, and use no executescript"

REFUSALS = (sqlite3.Error, ValueError, OverflowError)
"""What the driver raises for a statement that fails, or for values that it cannot hand to SQLite."""


class SqliteTransaction:
    """An open transaction: see `cano.recovery.store.Transaction`."""

    def __init__(self, connection: aiosqlite.Connection, workflow_id: str, path: str, workflow: str) -> None:
        self.connection = connection
        self.path = path
        self.over = False
        self._workflow_id = workflow_id
        self._workflow = workflow

    async def append(self, row: CheckpointRow) -> None:
        """Add the next row, to be committed with the transaction.

        Raises:
            CheckpointConflictError: it is not the next one.
            CheckpointStoreError: SQLite refused, or has ended the transaction; the row would be durable alone.
        """
        if self.over or not in_transaction(self.connection):
            raise CheckpointStoreError(ENDED)
        try:
            rows = [(self._workflow_id, self._workflow, row)]
            taken = await self.connection.execute_fetchall(insert(1), parameters(rows, 1))
        except REFUSALS as error:
            raise failure("append", error) from error
        if not taken:
            raise conflict(self._workflow_id, row)


inside: ContextVar[tuple[SqliteTransaction, ...]] = ContextVar("inside", default=())
"""The transactions that the present code was started in: while one is open, waiting for another write to its database would
wait for ever.
"""


def refuse_inside(path: str) -> None:
    """Refuse to wait for a write to a database in the middle of a transaction on it.

    Raises:
        CheckpointStoreError: the present code was started inside an open transaction on that database.
    """
    if any(transaction.path == path and not transaction.over for transaction in inside.get()):
        raise CheckpointStoreError(
            "this database is in the middle of a transactional window; a run inside flush_window needs another file"
        )


class Guard:
    """Lets only the engine begin and end transactions, and lets nobody write outside of one: SQLite itself ends a
    transaction on `ON CONFLICT ROLLBACK` or a full disk. Asked by SQLite whenever a statement is compiled.
    """

    def __init__(self, connection: aiosqlite.Connection) -> None:
        self.shut = False
        self.tried = False
        self._connection = connection

    def __call__(self, action: int, *names: object) -> int:
        """Allow or deny what a statement is about to do."""
        if self.shut and (action == sqlite3.SQLITE_TRANSACTION or not in_transaction(self._connection)):
            self.tried = True
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK


def in_transaction(connection: aiosqlite.Connection) -> bool:
    """Whether a transaction is open; not on a connection that was closed."""
    try:
        return connection.in_transaction
    except ValueError:  # it was closed
        return False


def failure(what: str, error: BaseException) -> CheckpointStoreError:
    """A new error each time: whoever gets it writes down where its run was."""
    known = isinstance(error, CheckpointStoreError)
    raised = CheckpointStoreError(str(error) if known else f"SQLite could not {what}: {error}")
    raised.__cause__ = error
    return raised
