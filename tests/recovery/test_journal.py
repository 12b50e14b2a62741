"""The journal: it numbers rows, replaces cursors within a visit, and says what a refusal means."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from cano import (
    CheckpointConflictError,
    CheckpointRow,
    CheckpointStoreError,
    MemoryCheckpointStore,
    RowKind,
    RunFencedError,
    SqliteCheckpointStore,
)
from cano.recovery.journal import Journal
from tests.recovery.logs import cursor, entry


class Failing(MemoryCheckpointStore):
    """A store of somebody's whose operations raise."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        raise self.error

    async def clear(self, workflow_id: str) -> None:
        raise self.error

    @asynccontextmanager
    async def transaction(self, workflow_id: str) -> AsyncIterator[Any]:
        store = self

        class Open:
            connection = "connection"

            async def append(self, row: CheckpointRow) -> None:
                await MemoryCheckpointStore.append(store, workflow_id, row)

        yield Open()
        raise self.error


async def enter(journal: Journal, state: str, visit: int, *, again: bool = False, data: bytes | None = None) -> None:
    await journal.enter(state, f"task of {state}", visit=visit, data=data, again=again)


async def commit(journal: Journal, blob: bytes, visit: int = 0, next_state: str | None = None) -> None:
    await journal.cursor("A", "task of A", blob, next_state=next_state, visit=visit, data=b"data " + blob)


@pytest.mark.asyncio
async def test_rows_are_numbered_stamped_and_a_cursor_replaces_the_older_one_of_its_visit() -> None:
    store, written = MemoryCheckpointStore(), []
    journal = Journal(store, "r", 7)
    journal.on_written(written.append)
    await enter(journal, "A", 0, data=b"{}")
    for blob in (b"1", b"2", b"3"):
        await commit(journal, blob)
    assert await store.load_run("r") == [
        CheckpointRow(0, RowKind.STATE_ENTRY, "A", "task of A", data=b"{}", workflow_version=7),
        CheckpointRow(3, RowKind.STEP_CURSOR, "A", "task of A", blob=b"3", data=b"data 3", workflow_version=7),
    ]
    assert [(row.sequence, row.replaces) for row in written] == [(0, None), (1, None), (2, 1), (3, 2)]
    assert (journal.sequence, journal.cursor_row) == (4, 3)


@pytest.mark.asyncio
async def test_a_cursor_of_another_visit_is_kept_and_one_of_a_resumed_visit_is_replaced() -> None:
    store = MemoryCheckpointStore()
    journal = Journal(store, "r", 0)
    await enter(journal, "A", 0)
    await commit(journal, b"1", next_state="A")
    await enter(journal, "A", 1)
    assert journal.cursor_row is None
    await commit(journal, b"2", visit=1)
    resumed = Journal(store, "r", 0, sequence=4, cursor_row=3)
    await enter(resumed, "A", 1, again=True)
    await commit(resumed, b"3", visit=1)
    rows = await store.load_run("r")
    assert [(row.sequence, row.kind, row.visit, row.blob) for row in rows] == [
        (0, RowKind.STATE_ENTRY, 0, None),
        (1, RowKind.STEP_CURSOR, 0, b"1"),
        (2, RowKind.STATE_ENTRY, 1, None),
        (4, RowKind.STATE_ENTRY, 1, None),
        (5, RowKind.STEP_CURSOR, 1, b"3"),
    ]
    assert rows[1].next_state == "A"


@pytest.mark.asyncio
async def test_without_a_store_it_counts_the_same_and_writes_and_tells_nothing() -> None:
    written: list[CheckpointRow] = []
    with_store, without = Journal(MemoryCheckpointStore(), "r", 0), Journal(None, "r", 0)
    without.on_written(written.append)
    seen = []
    for journal in (with_store, without):
        counts = []
        await enter(journal, "A", 0)
        counts.append((journal.sequence, journal.cursor_row))
        await commit(journal, b"1")
        await commit(journal, b"2")
        counts.append((journal.sequence, journal.cursor_row))
        await enter(journal, "B", 1)
        counts.append((journal.sequence, journal.cursor_row))
        await journal.clear()
        seen.append(counts)
    assert seen[0] == seen[1] == [(1, None), (3, 2), (4, None)]
    assert written == []


@pytest.mark.asyncio
async def test_a_conflict_at_the_first_row_means_that_the_id_is_taken_and_later_that_the_run_was_overtaken() -> None:
    store = MemoryCheckpointStore()
    first, second = Journal(store, "r", 0), Journal(store, "r", 0)
    await enter(first, "A", 0)
    with pytest.raises(CheckpointConflictError, match=r"run 'r' has an unfinished log: go on with resume_from\('r'\)") as taken:
        await enter(second, "A", 0)
    assert isinstance(taken.value.__cause__, CheckpointConflictError)
    overtaking = Journal(store, "r", 0, sequence=1)
    await enter(overtaking, "A", 0, again=True)
    before = await store.load_run("r")
    with pytest.raises(RunFencedError, match="somebody else has written to the log of run 'r'"):
        await commit(first, b"1")
    assert (first.sequence, first.cursor_row) == (1, None)
    assert await store.load_run("r") == before


@pytest.mark.parametrize("operation", ["enter", "cursor", "clear", "transaction"])
@pytest.mark.asyncio
async def test_any_exception_of_a_store_is_a_store_error_that_names_its_type_only(operation: str) -> None:
    async def use(error: BaseException) -> None:
        journal = Journal(Failing(error), "r", 0)
        match operation:
            case "enter":
                await enter(journal, "A", 0)
            case "cursor":
                await commit(journal, b"1")
            case "clear":
                await journal.clear()
            case _:
                async with journal.transaction():
                    await commit(journal, b"1")

    with pytest.raises(CheckpointStoreError, match="the checkpoint store could not .*: ConnectionError$") as caught:
        await use(ConnectionError("s3cr3t"))
    assert operation == "transaction" or isinstance(caught.value.__cause__, ConnectionError)
    known = CheckpointStoreError("told already")
    with pytest.raises(CheckpointStoreError) as caught:
        await use(known)
    assert caught.value is known
    with pytest.raises(KeyboardInterrupt):
        await use(KeyboardInterrupt())
    with pytest.raises(CheckpointStoreError, match="CancelledError"):  # nobody cancelled this asyncio task
        await use(asyncio.CancelledError())


@pytest.mark.asyncio
async def test_a_row_counts_and_is_told_only_when_it_is_durable() -> None:
    written: list[CheckpointRow] = []
    journal = Journal(Failing(ConnectionError()), "r", 0)
    journal.on_written(written.append)
    with pytest.raises(CheckpointStoreError):
        await enter(journal, "A", 0)
    with pytest.raises(CheckpointStoreError):
        await commit(journal, b"1")
    assert (journal.sequence, journal.cursor_row, written) == (0, None, [])


def contents(path: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT x FROM mine ORDER BY x").fetchall()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "runs.db")) as database:
        database.execute("CREATE TABLE mine (x)")
    return tmp_path / "runs.db"


@pytest.mark.asyncio
async def test_a_transaction_holds_the_users_writes_and_the_row_and_counts_it_once_committed(path: Path) -> None:
    store, written = SqliteCheckpointStore(path), []
    journal = Journal(store, "r", 0)
    journal.on_written(written.append)
    await enter(journal, "A", 0)
    for number in (1, 2):
        async with journal.transaction() as connection:
            await connection.execute("INSERT INTO mine VALUES (?)", (number,))
            await commit(journal, b"%d" % number)
            assert len(written) == number
            assert journal.sequence == number
        assert len(written) == number + 1
    assert [(row.sequence, row.replaces) for row in written] == [(0, None), (1, None), (2, 1)]
    assert (journal.sequence, journal.cursor_row) == (3, 2)
    assert [row.blob for row in await store.load_run("r")] == [None, b"2"]
    assert contents(path) == [(1,), (2,)]
    await store.close()


async def fail(journal: Journal) -> None:
    raise KeyError


async def cancel(journal: Journal) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()


async def conflict(journal: Journal) -> None:
    journal.sequence += 5
    try:
        await commit(journal, b"3")
    finally:
        journal.sequence -= 5


@pytest.mark.parametrize(("ending", "raised"), [(fail, KeyError), (cancel, asyncio.CancelledError), (conflict, RunFencedError)])
@pytest.mark.asyncio
async def test_a_transaction_that_fails_leaves_no_trace_and_the_next_one_works(
    path: Path, ending: Callable[[Journal], Any], raised: type[BaseException]
) -> None:
    store, written = SqliteCheckpointStore(path), []
    journal = Journal(store, "r", 0)
    await enter(journal, "A", 0)
    await commit(journal, b"1")
    journal.on_written(written.append)

    async def attempt() -> None:
        async with journal.transaction() as connection:
            await connection.execute("INSERT INTO mine VALUES (1)")
            await commit(journal, b"2")
            await ending(journal)

    with pytest.raises(raised):
        await asyncio.ensure_future(attempt())
    assert (journal.sequence, journal.cursor_row, written) == (2, 1, [])
    assert contents(path) == []
    async with journal.transaction():
        pass
    assert (journal.sequence, journal.cursor_row, written) == (2, 1, [])
    async with journal.transaction():
        await commit(journal, b"3")
    assert [row.blob for row in await store.load_run("r")] == [None, b"3"]
    assert (journal.sequence, journal.cursor_row) == (3, 2)
    await store.close()


@pytest.mark.asyncio
async def test_clear_forgets_the_run_only() -> None:
    store = MemoryCheckpointStore()
    await store.append("other", entry(0))
    journal = Journal(store, "r", 0)
    await enter(journal, "A", 0)
    await commit(journal, b"1")
    await journal.clear()
    assert await store.list_runs() == ["other"]
    assert cursor(1).replaces is None
