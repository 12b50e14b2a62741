"""The tables of the SQLite store, and the statements that touch them.

Names begin with `cano_`, so that the file may be the user's own database. A trigger drops the row that a new one
replaces, so an append is one statement, which SQLite runs as one immediate transaction.
"""

from __future__ import annotations

import asyncio
import sqlite3
from functools import cache

import aiosqlite

from cano.clock import wall
from cano.recovery.checkpoint import CheckpointRow

VERSION = 2

COLUMNS = "sequence, kind, state, task, blob, next_state, visit, data, workflow_version"

_LABELS = "workflow, written_at"
"""What a row is kept with for people to look at; no run depends on it."""

STORED = """sequence, kind, state, task, CASE typeof(blob) WHEN 'text' THEN CAST(blob AS BLOB) ELSE blob END, next_state, visit,
    CASE typeof(data) WHEN 'text' THEN CAST(data AS BLOB) ELSE data END, workflow_version"""
"""The columns as they are read. Text typed in by hand is taken as the bytes it is: it need not be valid, and a driver that
cannot decode it shows it in its error.
"""

_FAILURES = """
CREATE TABLE IF NOT EXISTS cano_failures (
    workflow_id TEXT PRIMARY KEY,
    error_type TEXT NOT NULL,
    category TEXT NOT NULL,
    failed_at REAL NOT NULL
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS cano_forget AFTER DELETE ON cano_checkpoints WHEN OLD.sequence = 0 BEGIN
    DELETE FROM cano_failures WHERE workflow_id = OLD.workflow_id;
END;
"""
"""Row 0 of a log is only ever deleted with the whole of it."""

TABLES = f"""
CREATE TABLE IF NOT EXISTS cano_schema (version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS cano_checkpoints (
    workflow_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    task TEXT NOT NULL,
    blob BLOB,
    next_state TEXT,
    visit INTEGER NOT NULL,
    data BLOB,
    workflow_version INTEGER NOT NULL,
    replaces INTEGER,
    workflow TEXT NOT NULL DEFAULT '',
    written_at REAL,
    PRIMARY KEY (workflow_id, sequence)
) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS cano_replace AFTER INSERT ON cano_checkpoints WHEN NEW.replaces IS NOT NULL BEGIN
    DELETE FROM cano_checkpoints
    WHERE workflow_id = NEW.workflow_id AND sequence = NEW.replaces AND sequence < NEW.sequence AND kind =
    'STEP_CURSOR';
END;
{_FAILURES}
INSERT INTO cano_schema SELECT {VERSION} WHERE NOT EXISTS (SELECT 1 FROM cano_schema);
"""

MIGRATIONS = {
    1: f"""
ALTER TABLE cano_checkpoints ADD COLUMN workflow TEXT NOT NULL DEFAULT '';
ALTER TABLE cano_checkpoints ADD COLUMN written_at REAL;
{_FAILURES}
UPDATE cano_schema SET version = 2;
"""
}
"""For each older version what leads to the next one. Code of the older version goes on writing to a database that was
migrated while it had it open, so a migration may only add.
"""

FAILED = """
WITH failure (workflow_id, error_type, category, failed_at) AS (VALUES (?, ?, ?, ?))
INSERT INTO cano_failures SELECT * FROM failure
WHERE EXISTS (SELECT 1 FROM cano_checkpoints AS log WHERE log.workflow_id = failure.workflow_id)
ON CONFLICT DO UPDATE SET error_type = excluded.error_type, category = excluded.category, failed_at = excluded.failed_at
"""
"""Note the last failure of a run that has a log."""

_VALUES = f"({', '.join('?' * 13)})"
_EMPTY = (None,) * 13


class Hidden(tuple[object, ...]):
    """Parameters of a statement whose repr shows none of them: a driver may log it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "(...)"


def padded(count: int) -> int:
    """Round up to a power of two, so that there are few different statements."""
    return 1 << (count - 1).bit_length()


@cache
def insert(count: int) -> str:
    """The statement that appends `count` rows, each only if it is the next one of its log, and returns those it took.

    A row without a workflow id is padding and is passed over.
    """
    return f"""
    WITH row (workflow_id, {COLUMNS}, replaces, {_LABELS}) AS (VALUES {", ".join([_VALUES] * count)})
    INSERT INTO cano_checkpoints (workflow_id, {COLUMNS}, replaces, {_LABELS})
    SELECT * FROM row WHERE row.workflow_id IS NOT NULL AND row.sequence = COALESCE(
        (SELECT MAX(sequence) + 1 FROM cano_checkpoints AS log WHERE log.workflow_id = row.workflow_id), 0)
    RETURNING workflow_id
    """


@cache
def delete(count: int) -> str:
    """The statement that removes the logs of `count` runs. A NULL is padding."""
    return f"DELETE FROM cano_checkpoints WHERE workflow_id IN ({', '.join('?' * count)})"


def parameters(rows: list[tuple[str, str, CheckpointRow]], count: int) -> Hidden:
    """The parameters of `insert(count)` for rows with the ids and names of their workflows, padded."""
    flat: list[object] = []
    moment = wall().timestamp()
    for workflow_id, workflow, row in rows:
        flat += (workflow_id, row.sequence, str(row.kind), row.state, row.task, row.blob, row.next_state)
        flat += (row.visit, row.data, row.workflow_version, row.replaces, workflow, moment)
    return Hidden((*flat, *_EMPTY * (count - len(rows))))


PATIENCE = 30.0
"""How long, in seconds, SQLite waits for another writer to let go of the database."""


async def patiently(connection: aiosqlite.Connection, statement: str) -> None:
    """Run a statement for which SQLite does not always wait itself, such as switching to WAL."""
    loop = asyncio.get_running_loop()
    patience = loop.time() + PATIENCE
    while True:
        try:
            await connection.execute_fetchall(statement)
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED) or loop.time() > patience:
                raise
        await asyncio.sleep(0.01)
