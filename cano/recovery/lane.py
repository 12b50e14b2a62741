"""Lane: one event loop's way into a SQLite log.

Reads and appends go through one connection, transactions of the user's through another; both have a thread each
(aiosqlite), because a commit may stall for milliseconds. Within a lane one writer works at a time; between lanes and
processes SQLite's own lock decides.

Appends are gathered: while one commit is on its way those that arrive wait together and go out in the next one. Nothing
spans two awaits on the shared connection: an append is one statement. A caller that is cancelled waits until its row
has been written or has been taken back.

SQLite does not survive a fork: a child that opened a database which its parent had open would share that one's idea of
the locks, and its rows could vanish with the write-ahead log. So a child refuses to.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import weakref
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import aiosqlite

from cano.cancel import outlast, settled
from cano.errors import CheckpointStoreError
from cano.recovery.checkpoint import CheckpointRow
from cano.recovery.memory import conflict
from cano.recovery.schema import MIGRATIONS, PATIENCE, TABLES, VERSION, Hidden, delete, insert, padded, parameters, patiently
from cano.recovery.transaction import ENDED, REFUSALS, Guard, SqliteTransaction, failure, in_transaction, inside, refuse_inside

T = TypeVar("T")

_GROUP = 512

_connected: weakref.WeakKeyDictionary[aiosqlite.Connection, str] = weakref.WeakKeyDictionary()
"""The open connections of this process, and the database of each."""

_inherited: set[str] = set()
"""The databases that were open when this process was forked."""


def _remember_in_child() -> None:
    _inherited.update(_connected.values())


os.register_at_fork(after_in_child=_remember_in_child)


class _Write:
    """A row to append, or with none a log to remove."""

    __slots__ = ("done", "over", "row", "workflow", "workflow_id")

    def __init__(self, workflow_id: str, workflow: str, row: CheckpointRow | None) -> None:
        self.workflow_id = workflow_id
        self.workflow = workflow
        self.row = row
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.over = False

    def succeed(self) -> None:
        self.over = True
        if not self.done.done():
            self.done.set_result(None)

    def fail(self, error: BaseException) -> None:
        self.over = True
        if not self.done.done():
            self.done.set_exception(error)

    async def outlast(self) -> None:
        """The waiter was cancelled, and `done` with it: wait all the same."""
        if not self.over:
            self.done = asyncio.get_running_loop().create_future()
            await outlast(self.done)
        if not self.done.cancelled():
            self.done.exception()  # nobody else will ask


class Lane:
    """What one event loop holds of a SQLite log. Must be made and used within that loop."""

    def __init__(self, path: str, synchronous: str) -> None:
        self.process = os.getpid()
        self._path = path
        self._synchronous = synchronous
        self._connections: list[aiosqlite.Connection] = []
        self._keeper: AsyncGenerator[None, None] | None = None
        self._shared: aiosqlite.Connection | None = None
        self._private: tuple[aiosqlite.Connection, Guard] | None = None
        self._has_tables = False
        self.schema = 0
        self._opening = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._pending: deque[_Write] = deque()
        self._committing: asyncio.Task[None] | None = None

    # -- reading and writing ----------------------------------------------------------------------------------------

    async def probe(self) -> None:
        """Check that the file, if there is one, is a database that this code may use."""
        await self._open(create=False)

    async def read(self, statement: str, *values: object) -> list[Any]:
        """Run a query; [] if there is no log yet."""
        connection = await self._open(create=False)
        if connection is None:
            return []
        return list(await self._run(connection, statement, *values))

    async def note(self, statement: str, *values: object) -> None:
        """Run a statement that writes something beside the rows."""
        refuse_inside(self._path)
        async with self._turn:
            connection = await self._open(create=True)
            assert connection is not None
            await settled(self._run(connection, statement, *values))

    async def write(self, workflow_id: str, row: CheckpointRow | None, workflow: str = "") -> None:
        """Append a row, or with None remove a log if there is one, in the next group."""
        refuse_inside(self._path)
        entry = _Write(workflow_id, workflow, row)
        if self._committing is None and not self._turn.locked():
            async with self._turn:  # nobody else is writing: no asyncio task is needed, and nobody waits for this one
                await self._apply(self._delete if row is None else self._insert, [entry])
            return entry.done.result()
        self._pending.append(entry)
        if self._committing is None:
            self._start_commit()
        try:
            await entry.done  # no shield, which costs two turns of the event loop
        except asyncio.CancelledError:
            if entry in self._pending:
                self._pending.remove(entry)
            else:
                await entry.outlast()
            raise

    def _start_commit(self) -> None:
        task = asyncio.get_running_loop().create_task(self._commit(), name="cano-commit")
        self._committing = None if task.done() else task  # an eager task may be

    async def _commit(self) -> None:
        group: list[_Write] = []
        try:
            while self._pending:
                async with self._turn:
                    group = self._take_group()
                    await self._apply(self._insert, [entry for entry in group if entry.row is not None])
                    await self._apply(self._delete, [entry for entry in group if entry.row is None])
        except BaseException as error:
            for entry in group:
                entry.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._committing = None
            if self._pending:  # this asyncio task was cancelled, those who wait here were not
                self._start_commit()

    def _take_group(self) -> list[_Write]:
        """The writes to commit together, in order of arrival, one for each run: a statement cannot order two of one
        run.
        """
        group: list[_Write] = []
        later: list[_Write] = []
        runs: set[str] = set()
        while self._pending and len(group) < _GROUP:
            entry = self._pending.popleft()
            (later if entry.workflow_id in runs else group).append(entry)
            runs.add(entry.workflow_id)
        self._pending.extendleft(reversed(later))
        return group

    async def _apply(self, operation: Callable[[list[_Write]], Awaitable[set[str]]], group: list[_Write]) -> None:
        """Insert or delete, as one statement, and let those know who wait for it."""
        if not group:
            return
        try:
            taken = await operation(group)
        except asyncio.CancelledError:
            if self._shared is not None:  # its thread takes one statement after the other, so after this one the other is over
                await settled(self._shared.execute_fetchall("SELECT 1"))
            raise
        except Exception as error:
            if len(group) > 1 and not isinstance(error, CheckpointStoreError | sqlite3.OperationalError):
                for entry in group:  # so that one bad row fails alone
                    await self._apply(operation, [entry])
            else:  # a lock or a disk: it would be the same for each
                for entry in group:
                    entry.fail(failure("append" if entry.row is not None else "clear", error))
            return
        for entry in group:
            if entry.row is not None and entry.workflow_id not in taken:
                entry.fail(conflict(entry.workflow_id, entry.row))
            else:
                entry.succeed()

    async def _insert(self, group: list[_Write]) -> set[str]:
        connection = await self._open(create=True)
        assert connection is not None
        rows = [(entry.workflow_id, entry.workflow, entry.row) for entry in group if entry.row is not None]
        size = padded(len(rows))
        return {run for (run,) in await connection.execute_fetchall(insert(size), parameters(rows, size))}

    async def _delete(self, group: list[_Write]) -> set[str]:
        connection = None
        if await self._open(create=False) is not None:
            connection = await self._open(create=True)
        if connection is not None:
            size = padded(len(group))
            runs = [entry.workflow_id for entry in group]
            await connection.execute_fetchall(delete(size), Hidden((*runs, *(None,) * (size - len(runs)))))
        return set()

    @asynccontextmanager
    async def transaction(self, workflow_id: str, workflow: str) -> AsyncIterator[SqliteTransaction]:
        """Hold the write lock while the block lasts; commit at its end, roll back if it raises."""
        refuse_inside(self._path)
        async with self._turn:
            connection, guard = await self._open_private()
            transaction = SqliteTransaction(connection, workflow_id, self._path, workflow)
            mark = inside.set((*inside.get(), transaction))
            try:
                guard.shut = guard.tried = False
                await self._run(connection, "BEGIN IMMEDIATE")
                guard.shut = True
                yield transaction
                if guard.tried or not in_transaction(connection):
                    raise CheckpointStoreError(ENDED)
                guard.shut = False
                await self._checked("commit", connection.commit())
            except BaseException as error:
                guard.shut = False
                with suppress(sqlite3.Error, ValueError):
                    await settled(connection.rollback())
                if guard.tried and isinstance(error, Exception):
                    raise CheckpointStoreError(ENDED) from error
                raise
            finally:
                transaction.over = guard.shut = True
                inside.reset(mark)
                self._tidy(connection)

    def _tidy(self, connection: aiosqlite.Connection) -> None:
        """Undo what the block may have done to the connection."""
        try:
            connection.row_factory = None
            connection.text_factory = str
        except ValueError:  # it was closed
            self._private = None

    async def _run(self, connection: aiosqlite.Connection, statement: str, *values: object) -> Any:
        return await self._checked("use the log", connection.execute_fetchall(statement, Hidden(values)))

    async def _checked(self, what: str, operation: Awaitable[T]) -> T:
        try:
            return await operation
        except REFUSALS as error:
            raise failure(what, error) from error

    # -- connections ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections. Waits for a commit that is on its way."""
        refuse_inside(self._path)
        while self._committing is not None:
            await outlast(self._committing)
        async with self._turn, self._opening:
            try:
                if self._keeper is not None:
                    await settled(self._keeper.aclose())
            finally:
                self._shared = self._private = self._keeper = None
                self._has_tables, self.schema = False, 0

    async def _open(self, *, create: bool) -> aiosqlite.Connection | None:
        """The shared connection. With `create` it is for writing: the tables are made or brought up to date if need be.
        Without it nothing is changed, and None is given if there are no tables.
        """
        if self._has_tables or (self.schema and not create):
            return self._shared
        async with self._opening:
            if self._shared is None:
                if not create and not os.path.exists(self._path):  # noqa: ASYNC240 - one stat
                    return None
                self._shared = await settled(self._connect())
            if not self._has_tables:
                await self._checked("open the log", settled(self._prepare(self._shared, create=create)))
            return self._shared if self.schema else None

    async def _open_private(self) -> tuple[aiosqlite.Connection, Guard]:
        await self._open(create=True)
        async with self._opening:
            if self._private is None:
                connection = await settled(self._connect(cached_statements=0))  # so that the guard is asked every time
                await self._run(connection, f"PRAGMA synchronous = {self._synchronous}")
                guard = Guard(connection)
                await connection.set_authorizer(guard)
                self._private = connection, guard
            return self._private

    async def _connect(self, **options: Any) -> aiosqlite.Connection:
        if self._path in _inherited:
            raise CheckpointStoreError(
                "the database was open when this process was forked, which SQLite does not survive: "
                "start processes with 'spawn' or 'forkserver', or close the store before"
            )
        connection: Any = aiosqlite.connect(self._path, timeout=PATIENCE, isolation_level=None, **options)
        thread: Any = getattr(connection, "_thread", connection)
        thread.daemon = True  # so that a program that forgets to close can exit
        try:
            await self._checked("open the log", connection)
        except BaseException:
            await asyncio.to_thread(thread.join)  # it still has something to tell this event loop
            raise
        if self._keeper is None:
            self._keeper = _keep(self._connections)
            await anext(self._keeper)
        self._connections.append(connection)
        _connected[connection] = self._path
        opened: aiosqlite.Connection = connection
        return opened

    async def _prepare(self, connection: aiosqlite.Connection, *, create: bool) -> None:
        """Check the version; then, with `create`, make what is missing or bring older tables up to date."""
        known = await self._version(connection)
        self.schema = known or 0
        if not create:
            return
        await patiently(connection, "PRAGMA journal_mode = WAL")
        await connection.execute_fetchall(f"PRAGMA synchronous = {self._synchronous}")
        if known != VERSION:
            await patiently(connection, "BEGIN IMMEDIATE")
            try:
                while (known := await self._version(connection)) != VERSION:  # somebody else may have done it meanwhile
                    for statement in _statements(TABLES if known is None else MIGRATIONS[known]):
                        await connection.execute_fetchall(statement)
                await connection.commit()
            except BaseException:
                await connection.rollback()
                raise
        self._has_tables, self.schema = True, VERSION

    async def _version(self, connection: aiosqlite.Connection) -> int | None:
        exists = await connection.execute_fetchall("SELECT 1 FROM sqlite_master WHERE name = 'cano_schema'")
        found = list(await connection.execute_fetchall("SELECT version FROM cano_schema")) if exists else []
        if not found:
            return None
        version = found[0][0]
        if not isinstance(version, int) or version < 1:
            raise CheckpointStoreError("the schema version of the log is damaged; it was left untouched")
        if version > VERSION:
            raise CheckpointStoreError(
                f"the log was written by a newer cano (schema {version}, not {VERSION}): upgrade; it was left untouched"
            )
        return version


async def _keep(connections: list[aiosqlite.Connection]) -> AsyncGenerator[None, None]:
    """Close the connections when the event loop shuts its generators down, or when nobody refers to the lane any
    more.
    """
    try:
        yield
    finally:
        while connections:
            connection = connections.pop()
            await connection.close()
            _connected.pop(connection, None)


def _statements(script: str) -> list[str]:
    statements, text = [], ""
    for line in script.strip().splitlines(keepends=True):
        text += line
        if sqlite3.complete_statement(text):
            statements.append(text)
            text = ""
    return statements
