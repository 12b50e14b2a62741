"""Transactions of the SQLite store: the user's writes and the engine's row become durable together or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import aiosqlite
import pytest

from cano import CheckpointConflictError, CheckpointStoreError, SqliteCheckpointStore
from cano.testing import Crashed
from tests.recovery.logs import child, cursor, entry, turns

ENDED = "flush_window ended its transaction or tried to"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ask(tmp_path / "runs.db", "CREATE TABLE mine (x INTEGER PRIMARY KEY)")
    return tmp_path / "runs.db"


def ask(path: Path, *statements: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements[:-1]:
            database.execute(statement)
        return database.execute(statements[-1]).fetchall()


def seen(path: Path) -> tuple[list[int], list[int]]:
    """What another program sees: the user's rows, and the sequences of run "r"."""
    mine = [x for (x,) in ask(path, "SELECT x FROM mine ORDER BY x")]
    try:
        return mine, [x for (x,) in ask(path, "SELECT sequence FROM cano_checkpoints WHERE workflow_id = 'r' ORDER BY 1")]
    except sqlite3.OperationalError:  # there is no table yet
        return mine, []


async def insert(connection: aiosqlite.Connection, number: int) -> None:
    await connection.execute("INSERT INTO mine VALUES (?)", (number,))


# -- together or not at all ---------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_users_writes_and_the_row_are_seen_together_when_the_block_ends(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    for number in range(3):
        async with store.transaction("r") as transaction:
            assert isinstance(transaction.connection, aiosqlite.Connection)
            await insert(transaction.connection, number)
            await transaction.append(cursor(number, replaces=number - 1))
            assert len(seen(path)[0]) == number
        assert seen(path) == (list(range(number + 1)), [number])
    await store.append("r", entry(3))
    assert await store.load_run("r") == [cursor(2), entry(3)]
    await store.close()


@pytest.mark.parametrize("error", [KeyError(), asyncio.CancelledError(), Crashed()], ids=lambda error: type(error).__name__)
@pytest.mark.asyncio
async def test_whatever_the_block_raises_surfaces_as_it_is_and_leaves_nothing(path: Path, error: BaseException) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", cursor(0))
    with pytest.raises(type(error)) as caught:
        async with store.transaction("r") as transaction:
            await insert(transaction.connection, 1)
            await transaction.append(cursor(1, replaces=0))
            raise error
    assert caught.value is error
    assert seen(path) == ([], [0])
    async with store.transaction("r") as transaction:
        await insert(transaction.connection, 1)
        await transaction.append(cursor(1, replaces=0))
    assert seen(path) == ([1], [1])
    await store.close()


@pytest.mark.asyncio
async def test_a_conflict_leaves_nothing_of_the_users_either(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", cursor(0))
    for sequence in (0, 2):
        with pytest.raises(CheckpointConflictError):
            async with store.transaction("r") as transaction:
                await insert(transaction.connection, 1)
                await transaction.append(cursor(sequence, replaces=0))
    assert seen(path) == ([], [0])
    await store.close()


@pytest.mark.asyncio
async def test_a_transaction_cancelled_at_any_turn_commits_both_or_neither(path: Path, nothing_left: None) -> None:
    store = SqliteCheckpointStore(path, synchronous="NORMAL")
    outcomes = set()

    async def window(number: int) -> None:
        async with store.transaction("r") as transaction:
            await insert(transaction.connection, number)
            await transaction.append(cursor(number))

    number = 0
    for wait in [*range(20), *range(20, 500, 12)]:
        task = asyncio.ensure_future(window(number))
        await turns(wait)
        task.cancel()
        await asyncio.wait((task,))
        mine, rows = seen(path)
        assert mine == rows
        assert task.cancelled() or len(rows) == number + 1
        outcomes.add(len(rows) - number)
        number = len(rows)
    assert 0 in outcomes
    await store.close()
    mine, rows = seen(path)
    assert mine == rows == list(range(number))


KILLED = """
async def main():
    store = SqliteCheckpointStore(sys.argv[1])
    for number in range(1_000_000):
        async with store.transaction("r") as transaction:
            await transaction.connection.execute("INSERT INTO mine VALUES (?)", (number,))
            if sys.argv[2] == "before the row" and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            await transaction.append(cursor(number))
            if sys.argv[2] == "after the row" and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        say(number)
asyncio.run(main())
"""


@pytest.mark.parametrize("moment", ["before the row", "after the row"])
def test_a_process_killed_inside_leaves_neither(path: Path, moment: str) -> None:
    with child(KILLED, path, moment) as killed:
        code, out, _ = killed.end()
    assert (code, out) == (-9, "0\n1\n")
    assert seen(path) == ([0, 1], [0, 1])
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_process_killed_at_any_moment_leaves_both_or_neither_and_all_it_said_was_done(path: Path) -> None:
    with child(KILLED, path, "outside") as killed:
        said = [killed.hear() for _ in range(25)]
        killed.kill()
        said += killed.end()[1].split()
    mine, rows = seen(path)
    assert mine == rows
    assert len(said) <= len(rows) <= len(said) + 1


# -- what the block may not do ------------------------------------------------------------------------------------------


async def script(connection: aiosqlite.Connection) -> None:
    await connection.executescript("INSERT INTO mine VALUES (7); INSERT INTO mine VALUES (8);")


ENDINGS: dict[str, Callable[[aiosqlite.Connection], Any]] = {
    "COMMIT": lambda connection: connection.execute("COMMIT"),
    "commit": lambda connection: connection.execute("  /* now */ commit transaction;"),
    "END": lambda connection: connection.execute("END"),
    "ROLLBACK": lambda connection: connection.execute("ROLLBACK"),
    "BEGIN": lambda connection: connection.execute("BEGIN"),
    "commit()": lambda connection: connection.commit(),
    "rollback()": lambda connection: connection.rollback(),
    "executescript": script,
    "close()": lambda connection: connection.close(),
}


@pytest.mark.parametrize("caught", [False, True], ids=["raises", "goes on"])
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.asyncio
async def test_a_block_that_tries_to_end_its_transaction_is_refused_and_rolled_back(
    path: Path, ending: str, caught: bool
) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", cursor(0))
    for _ in range(2):
        with pytest.raises(CheckpointStoreError, match=ENDED):
            async with store.transaction("r") as transaction:
                await insert(transaction.connection, 1)
                with suppress(*[Exception] if caught else []):
                    await ENDINGS[ending](transaction.connection)
                if caught:
                    with suppress(Exception):
                        await insert(transaction.connection, 2)
                    with suppress(Exception):
                        await transaction.append(cursor(1, replaces=0))
        assert seen(path) == ([], [0])
    async with store.transaction("r") as transaction:
        await insert(transaction.connection, 1)
        await transaction.append(cursor(1))
    assert seen(path) == ([1], [0, 1])
    await store.close()


@pytest.mark.parametrize("again", [False, True], ids=["then the row", "then another write"])
@pytest.mark.asyncio
async def test_a_transaction_that_sqlite_itself_has_rolled_back_lets_nothing_become_durable_alone(
    path: Path, again: bool
) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", cursor(0))
    statement = "INSERT OR ROLLBACK INTO mine VALUES (?)"
    with pytest.raises(CheckpointStoreError, match=ENDED):
        async with store.transaction("r") as transaction:
            await transaction.connection.execute(statement, (1,))
            with pytest.raises(sqlite3.IntegrityError):
                await transaction.connection.execute(statement, (1,))
            if again:
                with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
                    await transaction.connection.execute(statement, (2,))
            else:
                with pytest.raises(CheckpointStoreError, match=ENDED):
                    await transaction.append(cursor(1, replaces=0))
    assert seen(path) == ([], [0])
    await store.close()


@pytest.mark.asyncio
async def test_savepoints_are_the_users_own(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    async with store.transaction("r") as transaction:
        await insert(transaction.connection, 1)
        for name, ending in (("kept", "RELEASE kept"), ("undone", "ROLLBACK TO undone")):
            await transaction.connection.execute(f"SAVEPOINT {name}")
            await insert(transaction.connection, 2 if name == "kept" else 3)
            await transaction.connection.execute(ending)
        with pytest.raises(sqlite3.IntegrityError):
            await insert(transaction.connection, 1)
        await transaction.append(cursor(0))
    assert seen(path) == ([1, 2], [0])
    await store.close()


@pytest.mark.asyncio
async def test_a_transaction_that_is_over_takes_nothing_more(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    async with store.transaction("r") as first:
        pass
    with pytest.raises(CheckpointStoreError, match=ENDED):
        await first.append(cursor(0))
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        await insert(first.connection, 1)
    with suppress(KeyError):
        async with store.transaction("r"):
            with pytest.raises(CheckpointStoreError, match=ENDED):
                await first.append(cursor(0))
            raise KeyError
    assert seen(path) == ([], [])
    await store.close()


@pytest.mark.asyncio
async def test_what_the_user_sets_on_the_connection_does_not_leak_into_the_next_transaction(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    with suppress(KeyError):
        async with store.transaction("r") as transaction:
            transaction.connection.row_factory = sqlite3.Row
            transaction.connection.text_factory = bytes
            raise KeyError
    async with store.transaction("r") as transaction:
        transaction.connection.row_factory = sqlite3.Row
        transaction.connection.text_factory = bytes
        await transaction.append(cursor(0))
        (row,) = await transaction.connection.execute_fetchall("SELECT 'a' AS x")
        assert row["x"] == b"a"
    async with store.transaction("r") as transaction:
        assert transaction.connection.row_factory is None
        assert list(await transaction.connection.execute_fetchall("SELECT 'a' AS x")) == [("a",)]
        await transaction.append(cursor(1, replaces=0))
    assert await store.load_run("r") == [cursor(1)]
    await store.close()


# -- beside others ------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_writes_of_other_runs_wait_for_the_block_and_then_succeed_and_reads_do_not_wait(path: Path) -> None:
    store, elsewhere = SqliteCheckpointStore(path), SqliteCheckpointStore(path)
    await store.append("cleared", entry(0))
    started = asyncio.Event()

    async def window() -> None:
        async with store.transaction("r") as transaction:
            started.set()
            await turns(100)
            assert [task.done() for task in others] == [False] * 4
            assert await store.load_run("cleared") == [entry(0)]
            assert await store.list_runs() == ["cleared"]
            await insert(transaction.connection, 1)
            await transaction.append(cursor(0))

    async def other() -> None:
        async with store.transaction("other") as transaction:
            await transaction.append(entry(0))

    flushing = asyncio.create_task(window())
    await started.wait()
    others = [
        asyncio.create_task(operation)
        for operation in (
            store.append("a", entry(0)),
            store.clear("cleared"),
            other(),
            elsewhere.append("b", entry(0)),
        )
    ]
    await asyncio.gather(flushing, *others)
    assert await store.list_runs() == ["a", "b", "other", "r"]
    await store.close()
    await elsewhere.close()


@pytest.mark.parametrize("operation", ["append", "clear", "transaction", "close"])
@pytest.mark.parametrize("where", ["here", "in a task", "through another store"])
@pytest.mark.asyncio
async def test_waiting_for_the_same_database_inside_is_refused_instead_of_waiting_for_ever(
    path: Path, operation: str, where: str
) -> None:
    store = SqliteCheckpointStore(path)
    inner = SqliteCheckpointStore(path) if where == "through another store" else store
    await inner.append("other", entry(0))

    async def use() -> None:
        match operation:
            case "append":
                await inner.append("other", entry(1))
            case "clear":
                await inner.clear("other")
            case "close":
                await inner.close()
            case _:
                async with inner.transaction("other"):
                    pass

    async with store.transaction("r") as transaction:
        await insert(transaction.connection, 1)
        async with asyncio.timeout(5):
            with pytest.raises(CheckpointStoreError, match="in the middle of a transactional window"):
                await (asyncio.create_task(use()) if where == "in a task" else use())
        assert await inner.load_run("other") == [entry(0)]
        await transaction.append(cursor(0))
    assert seen(path) == ([1], [0])
    await use()
    await store.close()
    await inner.close()


@pytest.mark.asyncio
async def test_a_task_started_inside_may_use_the_database_once_the_transaction_is_over(path: Path) -> None:
    store, over = SqliteCheckpointStore(path), asyncio.Event()

    async def later() -> None:
        await over.wait()
        await store.append("other", entry(0))
        async with store.transaction("other") as transaction:
            await transaction.append(entry(1))

    async with store.transaction("r") as transaction:
        task = asyncio.create_task(later())
        await turns(2)
        await transaction.append(cursor(0))
    over.set()
    await task
    assert await store.load_run("other") == [entry(0), entry(1)]
    await store.close()


@pytest.mark.asyncio
async def test_transactions_on_two_databases_may_be_nested(path: Path) -> None:
    store, other = SqliteCheckpointStore(path), SqliteCheckpointStore(path.with_name("other.db"))
    async with store.transaction("r") as outer:
        async with other.transaction("r") as inner:
            await inner.append(cursor(0))
        await other.append("r", entry(1))
        await outer.append(cursor(0))
    assert await other.load_run("r") == [cursor(0), entry(1)]
    assert await store.load_run("r") == [cursor(0)]
    await store.close()
    await other.close()


@pytest.mark.asyncio
async def test_a_lock_that_is_never_let_go_is_a_store_error_before_the_block_begins(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cano.recovery.lane.PATIENCE", 0.1)
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(CheckpointStoreError, match="database is locked"):
            async with store.transaction("r"):
                raise AssertionError("the block has begun without the lock")
        writer.execute("COMMIT")
    async with store.transaction("r") as transaction:
        await transaction.append(entry(1))
    await store.close()


@pytest.mark.asyncio
async def test_a_transaction_cancelled_while_it_waits_for_the_lock_begins_nothing(path: Path, nothing_left: None) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))
    began = False

    async def window() -> None:
        nonlocal began
        async with store.transaction("r"):
            began = True

    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        task = asyncio.ensure_future(window())
        await turns(50)
        task.cancel()
        await turns(50)
        writer.execute("COMMIT")
        with pytest.raises(asyncio.CancelledError):
            await task
        writer.execute("BEGIN IMMEDIATE")  # so the lock is free
        writer.execute("COMMIT")
    assert not began
    await store.append("r", entry(1))
    await store.close()
