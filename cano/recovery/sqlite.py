"""SqliteCheckpointStore: logs in one SQLite file, shared by many coroutines, event loops and processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal, Self, TypeVar

from cano.clock import wall
from cano.errors import CheckpointStoreError, ConfigurationError
from cano.recovery.checkpoint import CheckpointRow, RowKind
from cano.recovery.claims import locked
from cano.recovery.lane import Lane
from cano.recovery.schema import FAILED, STORED
from cano.recovery.summary import RunSummary, summaries, summary
from cano.recovery.transaction import SqliteTransaction

T = TypeVar("T")

Synchronous = Literal["FULL", "NORMAL"]


class SqliteCheckpointStore:
    """Keeps logs in the SQLite database at `path`, which is created on the first write; it may hold the user's tables
    too.

    With `synchronous="FULL"` a row that was appended survives a power failure; with "NORMAL" it survives the death of
    the process, while the last ones may be lost with the power. The database is put into WAL mode. Beside it stand
    SQLite's `-wal` and `-shm` and an empty `-claims`, whose locks say which runs are being worked on.

    Appends that arrive together are committed together. The store may be used from several event loops; each has its
    own connection, opened on first use and closed with the loop, by `close`, or with the process. A program that
    forgets to close still exits. A process that is forked while the database is open cannot use it, since SQLite does
    not survive that.

    Raises:
        ConfigurationError: `path` names no file, or `synchronous` is neither word.
    """

    def __init__(self, path: str | os.PathLike[str], *, synchronous: Synchronous = "FULL") -> None:
        name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if not isinstance(name, str) or not name or "\0" in name or name.startswith(":memory:"):
            raise ConfigurationError("SqliteCheckpointStore needs the path of a file; for memory use MemoryCheckpointStore()")
        if synchronous not in ("FULL", "NORMAL"):
            raise ConfigurationError("synchronous must be 'FULL' or 'NORMAL'")
        if sqlite3.sqlite_version_info < (3, 35):
            raise ConfigurationError(f"SQLite 3.35 or newer is needed, this Python has {sqlite3.sqlite_version}")
        self._path = os.path.realpath(name)
        self._synchronous = synchronous
        self._names: dict[str, str] = {}
        self._lanes: dict[asyncio.AbstractEventLoop, Lane] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"SqliteCheckpointStore({self._path!r})"

    @property
    def path(self) -> str:
        """The absolute path of the database."""
        return self._path

    @property
    def _lane(self) -> Lane:
        """The lane of this event loop; lanes of loops that have closed are forgotten."""
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None or lane.process != os.getpid():
            with self._lock:
                self._lanes = {other: lane for other, lane in self._lanes.items() if not other.is_closed()}
                lane = self._lanes[loop] = Lane(self._path, self._synchronous)
        return lane

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        """Add the next row, durably; see `CheckpointStore.append`.

        Raises:
            CheckpointConflictError: it is not the next one.
            CheckpointStoreError: SQLite refused; nothing was written.
        Cancellation: waits for a write that has begun, at most as long as SQLite waits for a lock, then raises.
        """
        await self._lane.write(workflow_id, row, self._names.get(workflow_id, ""))

    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        """All rows of one run, ascending by sequence.

        Raises:
            CheckpointStoreError: the database cannot be read, or a row in it is damaged.
        """
        found = await self._lane.read(
            f"SELECT {STORED} FROM cano_checkpoints WHERE workflow_id = ? ORDER BY sequence", workflow_id
        )
        return [_row(workflow_id, values) for values in found]

    async def clear(self, workflow_id: str) -> None:
        """Forget one run. Idempotent."""
        await self._lane.write(workflow_id, None)

    async def list_runs(self) -> list[str]:
        """The ids of all runs that have a log, sorted."""
        found = await self._lane.read("SELECT DISTINCT workflow_id FROM cano_checkpoints ORDER BY workflow_id")
        return [workflow_id for (workflow_id,) in found]

    async def summaries(self) -> list[RunSummary]:
        """What the log tells of each run that it holds, without its payloads; sorted by id. Changes nothing in the file."""
        lane = self._lane
        await lane.probe()
        return [summary(values) for values in await lane.read(summaries(lane.schema))]

    def introduce(self, workflow_id: str, workflow: str) -> None:
        """Name the workflow of a run for `summaries`, until its claim ends; see `Noting`."""
        self._names[workflow_id] = workflow

    async def note_failure(self, workflow_id: str, error_type: str, category: str) -> None:
        """Keep what a run failed with, for `summaries`, as long as it has a log; see `Noting`."""
        await self._lane.note(FAILED, workflow_id, error_type, category, wall().timestamp())

    @asynccontextmanager
    async def claim(self, workflow_id: str) -> AsyncIterator[None]:
        """Hold one run while the block lasts, by a lock that the operating system drops with the process.

        Raises:
            RunOwnedError: somebody alive holds it.
            CheckpointStoreError: the database is not one, or is newer than this code; it is left untouched.
        """
        await self._lane.probe()
        with locked(f"{self._path}-claims", workflow_id):
            try:
                yield
            finally:
                self._names.pop(workflow_id, None)

    @asynccontextmanager
    async def transaction(self, workflow_id: str) -> AsyncIterator[SqliteTransaction]:
        """A transaction on a connection of its own, `.connection`, an `aiosqlite.Connection`.

        It holds SQLite's write lock, so other writers wait until the block ends. It is committed when the block ends
        and rolled back when the block raises; the block itself can do neither.

        Raises:
            CheckpointStoreError: SQLite refused to begin or to commit, or the block tried to end the transaction.
        """
        async with self._lane.transaction(workflow_id, self._names.get(workflow_id, "")) as transaction:
            yield transaction

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections of this event loop. The store may be used again afterwards. Idempotent.

        Raises:
            CheckpointStoreError: called inside a transaction.
        """
        lane = self._lanes.get(asyncio.get_running_loop())
        if lane is not None and lane.process == os.getpid():
            await lane.close()


def _row(workflow_id: str, values: tuple[object, ...]) -> CheckpointRow:
    sequence, kind, state, task, blob, next_state, visit, data, version = values
    try:
        return CheckpointRow(
            _typed(sequence, int),
            RowKind(_typed(kind, str)),
            _typed(state, str),
            _typed(task, str),
            blob=_bytes(blob),
            next_state=None if next_state is None else _typed(next_state, str),
            visit=_typed(visit, int),
            data=_bytes(data),
            workflow_version=_typed(version, int),
        )
    except (TypeError, ValueError):
        raise CheckpointStoreError(f"row {sequence!r} of run {workflow_id!r} is damaged; it was left as it is") from None


def _typed(value: object, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _bytes(value: object) -> bytes | None:
    return None if value is None else _typed(value, bytes)
