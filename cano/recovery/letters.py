"""SqliteDeadLetterSink: dropped items in a SQLite table, which may stand beside the log or in a file of its own."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import weakref
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, Self

import aiosqlite

from cano.cancel import settled
from cano.clock import wall
from cano.errors import AttemptTimeoutError, CheckpointStoreError, ConfigurationError, TaskExecutionError
from cano.recovery.schema import PATIENCE, Hidden, patiently
from cano.recovery.sqlite import Synchronous

_TABLE = """
CREATE TABLE IF NOT EXISTS cano_dead_letters (
    id INTEGER PRIMARY KEY,
    workflow_id TEXT NOT NULL,
    state TEXT NOT NULL,
    task TEXT NOT NULL,
    error_type TEXT NOT NULL,
    category TEXT NOT NULL,
    cursor BLOB,
    item BLOB NOT NULL,
    written_at TEXT NOT NULL
)
"""
_COLUMNS = "workflow_id, state, task, error_type, category, cursor, item, written_at"
_INSERT = f"INSERT INTO cano_dead_letters ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_SELECT = f"SELECT {_COLUMNS} FROM cano_dead_letters ORDER BY id"


class Letter(Protocol):
    """What the sink reads of a letter."""

    @property
    def workflow_id(self) -> str:
        """The run."""
        ...

    @property
    def state(self) -> str:
        """The label of the state."""
        ...

    @property
    def task(self) -> str:
        """The name of the task."""
        ...

    @property
    def error(self) -> Exception:
        """What the item failed with."""
        ...

    @property
    def error_type(self) -> str:
        """The name of the error's type."""
        ...

    @property
    def encode_item(self) -> Callable[[], bytes]:
        """Gives the item as bytes, or raises CursorError."""
        ...

    @property
    def encode_cursor(self) -> Callable[[], bytes | None]:
        """Gives the cursor as bytes, or None."""
        ...


@dataclass(frozen=True, slots=True)
class StoredLetter:
    """A dead letter as it was written.

    error_type:  the name of the error's type; its message is not kept, for that may hold values
    category:    "timeout" for an attempt that took too long, else "task_execution"
    cursor:      the encoded cursor that the stream's `cursor_of` gave, or None
    item:        the encoded item: JSON, by the declared item type
    written_at:  when, by the wall clock; a label that nothing is ordered by
    """

    workflow_id: str
    state: str
    task: str
    error_type: str
    category: str
    cursor: bytes | None = field(repr=False)
    item: bytes = field(repr=False)
    written_at: datetime


class SqliteDeadLetterSink:
    """Keeps dead letters in the table `cano_dead_letters` of the SQLite database at `path`, which is created on the first
    write; it may be the log's database, or the user's own.

    With `synchronous="FULL"` a letter survives a power failure as soon as `write` returns, with "NORMAL" the death of
    the process. The sink may be used from several event loops; each has its own connection, closed with the loop, by
    `close`, or with the process. An async context manager closes it at its end.

    Raises:
        ConfigurationError: `path` names no file, or `synchronous` is neither word.
    """

    def __init__(self, path: str | os.PathLike[str], *, synchronous: Synchronous = "FULL") -> None:
        name = os.fspath(path)
        if not isinstance(name, str) or not name or name.startswith(":memory:"):
            raise ConfigurationError("SqliteDeadLetterSink needs the path of a file: a letter has to be durable")
        if synchronous not in ("FULL", "NORMAL"):
            raise ConfigurationError("synchronous must be 'FULL' or 'NORMAL'")
        self._path = os.path.realpath(name)
        self._synchronous = synchronous
        self._desks: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Desk] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"SqliteDeadLetterSink({self._path!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def write(self, letter: Letter) -> None:
        """Keep a letter; it is durable on return.

        Raises:
            CursorError: the item or the cursor cannot be stored exactly.
            CheckpointStoreError: SQLite refused; nothing was written.
        Cancellation: waits for a write that has begun, at most as long as SQLite waits for a lock, then raises.
        Idempotency: every call is a letter of its own, so an item that comes again has several.
        """
        category = AttemptTimeoutError.category if isinstance(letter.error, AttemptTimeoutError) else TaskExecutionError.category
        cursor, item = letter.encode_cursor(), letter.encode_item()
        place = (letter.workflow_id, letter.state, letter.task)
        values = Hidden((*place, letter.error_type, category, cursor, item, wall().isoformat()))
        await settled(self._desk.run(_INSERT, values))

    async def letters(self) -> list[StoredLetter]:
        """All letters, oldest first; [] if there is no database yet.

        Raises:
            CheckpointStoreError: the database cannot be read, or a letter in it is damaged.
        """
        if not os.path.exists(self._path):  # noqa: ASYNC240 - one stat
            return []
        return [_stored(values) for values in await settled(self._desk.run(_SELECT, Hidden(())))]

    async def close(self) -> None:
        """Close the connection of this event loop. The sink may be used again afterwards. Idempotent."""
        desk = self._desks.pop(asyncio.get_running_loop(), None)
        if desk is not None:
            await desk.close()

    @property
    def _desk(self) -> _Desk:
        loop = asyncio.get_running_loop()
        desk = self._desks.get(loop)
        if desk is None or desk.process != os.getpid():
            desk = self._desks[loop] = _Desk(self._path, self._synchronous)
        return desk


class _Desk:
    """One event loop's connection. Every statement is a transaction of its own."""

    def __init__(self, path: str, synchronous: str) -> None:
        self.process = os.getpid()
        self._path = path
        self._synchronous = synchronous
        self._connection: aiosqlite.Connection | None = None
        self._keeper: AsyncGenerator[None, None] | None = None
        self._turn = asyncio.Lock()

    async def run(self, statement: str, values: Hidden) -> list[Any]:
        """Run one statement, durably."""
        async with self._turn:
            try:
                connection = self._connection or await self._open()
                return list(await connection.execute_fetchall(statement, values))
            except sqlite3.Error as error:
                raise CheckpointStoreError(f"SQLite could not use the dead letters: {error}") from error

    async def close(self) -> None:
        """Close the connection. Waits for a statement that is on its way."""
        async with self._turn:
            self._connection = None
            if self._keeper is not None:
                await self._keeper.aclose()

    async def _open(self) -> aiosqlite.Connection:
        connection: Any = aiosqlite.connect(self._path, timeout=PATIENCE, isolation_level=None)
        thread: Any = getattr(connection, "_thread", connection)
        thread.daemon = True  # so that a program that forgets to close can exit
        await connection
        keeper = _keep(connection)
        await anext(keeper)
        try:
            await patiently(connection, "PRAGMA journal_mode = WAL")
            await connection.execute_fetchall(f"PRAGMA synchronous = {self._synchronous}")
            await patiently(connection, _TABLE)
        except BaseException:
            await keeper.aclose()
            raise
        self._connection, self._keeper = connection, keeper
        opened: aiosqlite.Connection = connection
        return opened


async def _keep(connection: aiosqlite.Connection) -> AsyncGenerator[None, None]:
    """Close the connection when the event loop shuts its generators down, or when nobody refers to the desk any more."""
    try:
        yield
    finally:
        await connection.close()


def _stored(values: tuple[Any, ...]) -> StoredLetter:
    workflow_id, state, task, error_type, category, cursor, item, written_at = values
    texts = (workflow_id, state, task, error_type, category, written_at)
    sound = all(isinstance(text, str) for text in texts) and isinstance(item, bytes) and isinstance(cursor, bytes | None)
    try:
        if sound:
            moment = datetime.fromisoformat(written_at)
            return StoredLetter(workflow_id, state, task, error_type, category, cursor, item, moment)
    except ValueError:
        pass
    raise CheckpointStoreError("a dead letter is damaged; it was left as it is")
