"""The file of the SQLite store: what is in it, what is refused, and what shows of it."""

from __future__ import annotations

import asyncio
import logging
import pickle
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cano import (
    CheckpointConflictError,
    CheckpointRow,
    CheckpointStoreError,
    ConfigurationError,
    CursorError,
    RowKind,
    SqliteCheckpointStore,
)
from cano.recovery.codec import Codec
from cano.recovery.schema import VERSION
from tests.recovery.logs import cursor, entry, turns

SECRETS = ("s3cr3t-blob", "s3cr3t-data")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def ask(path: Path, *statements: str) -> list[tuple[Any, ...]]:
    """What another program gets for the last of these statements."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements[:-1]:
            database.execute(statement)
        return database.execute(statements[-1]).fetchall()


@contextmanager
def writer(path: Path) -> Iterator[None]:
    """Another program that is in the middle of a write while the block lasts."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")


async def fill(path: Path, *rows: CheckpointRow, workflow_id: str = "r") -> None:
    store = SqliteCheckpointStore(path)
    for row in rows:
        await store.append(workflow_id, row)
    await store.close()


# -- the file -----------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_the_database_is_in_wal_mode_with_one_version_row(path: Path) -> None:
    await fill(path, entry(0))
    assert ask(path, "PRAGMA journal_mode") == [("wal",)]
    assert ask(path, "SELECT version FROM cano_schema") == [(VERSION,)]


@pytest.mark.parametrize(("synchronous", "level"), [("FULL", 2), ("NORMAL", 1)])
@pytest.mark.asyncio
async def test_every_connection_waits_for_locks_and_syncs_as_it_was_told(path: Path, synchronous: Any, level: int) -> None:
    store = SqliteCheckpointStore(path, synchronous=synchronous)
    await store.append("r", entry(0))
    async with store.transaction("r") as transaction:
        shared = store._lane._shared  # there is no other way to see what a connection was told
        for connection in (transaction.connection, shared):
            assert connection is not None
            assert list(await connection.execute_fetchall("PRAGMA synchronous")) == [(level,)]
            assert list(await connection.execute_fetchall("PRAGMA busy_timeout")) == [(30_000,)]
    await store.close()
    assert SqliteCheckpointStore(path)._synchronous == "FULL"


@pytest.mark.asyncio
async def test_an_append_waits_for_another_programs_write(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))
    with writer(path):
        appending = asyncio.ensure_future(store.append("r", entry(1)))
        await turns(100)
        assert not appending.done()
    await appending
    assert await store.load_run("r") == [entry(0), entry(1)]
    await store.close()


@contextmanager
def reader(path: Path) -> Iterator[None]:
    """Another program that is in the middle of reading while the block lasts."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN")
        database.execute("SELECT * FROM mine").fetchall()
        yield
        database.execute("COMMIT")


@pytest.mark.parametrize("busy", [writer, reader])
@pytest.mark.asyncio
async def test_setting_up_waits_for_another_programs_write_or_read(path: Path, busy: Any) -> None:
    ask(path, "CREATE TABLE mine (x)")
    store = SqliteCheckpointStore(path)
    with busy(path):
        appending = asyncio.ensure_future(store.append("r", entry(0)))
        await turns(100)
        assert not appending.done()
    await appending
    await store.close()
    assert ask(path, "PRAGMA journal_mode") == [("wal",)]


@pytest.mark.asyncio
async def test_tables_that_are_not_ours_are_left_alone(path: Path) -> None:
    ask(path, "CREATE TABLE mine (x)", "INSERT INTO mine VALUES ('kept')")
    ask(path, "CREATE TABLE checkpoints (workflow_id TEXT)", "CREATE VIEW runs AS SELECT * FROM mine")
    before = ask(path, "SELECT name, sql FROM sqlite_master ORDER BY name")
    store = SqliteCheckpointStore(path)
    assert await store.load_run("r") == []
    await store.clear("r")
    assert ask(path, "SELECT name, sql FROM sqlite_master ORDER BY name") == before
    await store.append("r", entry(0))
    await store.clear("r")
    await store.close()
    after = ask(path, "SELECT name, sql FROM sqlite_master ORDER BY name")
    assert [row for row in after if "cano_" not in row[0]] == before
    assert {name for name, _ in after} - {name for name, _ in before} == {
        "cano_schema",
        "cano_checkpoints",
        "cano_replace",
        "cano_failures",
        "cano_forget",
    }
    assert ask(path, "SELECT x FROM mine") == [("kept",)]


READING: dict[str, Callable[[SqliteCheckpointStore], Any]] = {
    "load_run": lambda store: store.load_run("r"),
    "list_runs": lambda store: store.list_runs(),
    "clear": lambda store: store.clear("r"),
}


@pytest.mark.parametrize("operation", READING)
@pytest.mark.asyncio
async def test_reading_never_creates_the_file_and_an_empty_one_stays_empty(path: Path, operation: str) -> None:
    store = SqliteCheckpointStore(path)
    assert not await READING[operation](store)
    assert list(path.parent.iterdir()) == []
    path.touch()
    assert not await READING[operation](store)
    assert [(file.name, file.stat().st_size) for file in path.parent.iterdir()] == [("runs.db", 0)]
    await store.append("r", entry(0))
    assert await store.load_run("r") == [entry(0)]
    await store.close()


async def claim(store: SqliteCheckpointStore) -> None:
    async with store.claim("r"):
        raise AssertionError("a run in a file that cannot be used was claimed")


async def transact(store: SqliteCheckpointStore) -> None:
    async with store.transaction("r"):
        raise AssertionError("a transaction was opened in a file that cannot be used")


EVERYTHING = {**READING, "append": lambda store: store.append("r", entry(0)), "claim": claim, "transaction": transact}


def text_file(path: Path) -> None:
    path.write_text("dear diary, this is not a database\n" * 200)


def scratched(path: Path) -> None:
    ask(path, "CREATE TABLE cano_schema (version INTEGER NOT NULL)", "INSERT INTO cano_schema VALUES (1)")
    page = 4096
    path.write_bytes(path.read_bytes()[:page] + b"\xff" * page)


def newer(path: Path) -> None:
    ask(path, "CREATE TABLE cano_schema (version INTEGER NOT NULL)", f"INSERT INTO cano_schema VALUES ({VERSION + 1})")


def no_version(path: Path) -> None:
    ask(path, "CREATE TABLE cano_schema (version INTEGER NOT NULL)", "INSERT INTO cano_schema VALUES ('latest')")


def not_our_schema(path: Path) -> None:
    ask(path, "CREATE TABLE cano_schema (name)", "INSERT INTO cano_schema VALUES ('x')")


@pytest.mark.parametrize("operation", EVERYTHING)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (text_file, "not a database"),
        (scratched, "malformed"),
        (newer, "newer cano .*untouched"),
        (no_version, "version .*damaged"),
        (not_our_schema, "no such column"),
    ],
)
@pytest.mark.asyncio
async def test_a_file_that_is_no_log_of_ours_is_refused_and_left_as_it_is(
    path: Path, damage: Callable[[Path], None], message: str, operation: str
) -> None:
    damage(path)
    before = path.read_bytes()
    store = SqliteCheckpointStore(path)
    for _ in range(2):
        with pytest.raises(CheckpointStoreError, match=message):
            await EVERYTHING[operation](store)
    await store.close()
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["runs.db"]


@pytest.mark.asyncio
async def test_a_directory_or_a_path_that_leads_nowhere_is_a_store_error(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing" / "runs.db"):
        store = SqliteCheckpointStore(place)
        with pytest.raises(CheckpointStoreError, match="SQLite could not open the log: unable to open database file"):
            await store.append("r", entry(0))
        await store.close()
    with pytest.raises(CheckpointStoreError, match="cannot use the claims file beside the log: No such file"):
        async with SqliteCheckpointStore(tmp_path / "missing" / "runs.db").claim("r"):
            pass


@pytest.mark.parametrize(
    "options", [{"path": ""}, {"path": ":memory:"}, {"path": b"runs.db"}, {"path": "runs.db", "synchronous": "OFF"}]
)
def test_what_names_no_file_or_no_way_to_sync_is_a_configuration_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        SqliteCheckpointStore(**options)


def test_the_path_is_fixed_when_the_store_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = SqliteCheckpointStore("runs.db")
    monkeypatch.chdir(tmp_path / "elsewhere")
    asyncio.run(store.append("r", entry(0)))
    assert store.path == str(tmp_path / "runs.db")
    assert repr(store) == f"SqliteCheckpointStore({store.path!r})"
    assert ask(tmp_path / "runs.db", "SELECT count(*) FROM cano_checkpoints") == [(1,)]


# -- what is stored -----------------------------------------------------------------------------------------------------

IDS = [
    "x'); DROP TABLE cano_checkpoints;--",
    '"; DROP TABLE cano_schema; --',
    "' OR '1'='1",
    "%",
    "_",
    "a%",
    "a_",
    "ab",
    "a",
    "A",
    "a\x00b",
    "a\x00",
    "\x00",
    "",
    " ",
    "a\nb",
    "a\r\n",
    "?",
    ":id",
    "@id",
    "\\",
    "é",
    "e\u0301",
    "\U0001f600",
    "x" * 10_000,
    "x" * 9_999 + "y",
    "NULL",
    "0",
    "00",
    "1e3",
    "1000",
]


@pytest.mark.asyncio
async def test_any_id_is_stored_and_found_exactly(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    await asyncio.gather(*(store.append(workflow_id, entry(0, f"of {number}")) for number, workflow_id in enumerate(IDS)))
    await store.close()
    assert sorted(await store.list_runs()) == sorted(IDS)
    for number, workflow_id in enumerate(IDS):
        assert await store.load_run(workflow_id) == [entry(0, f"of {number}")]
    for number, workflow_id in enumerate(IDS):
        await store.clear(workflow_id)
        assert await store.load_run(workflow_id) == []
        assert len(await store.list_runs()) == len(IDS) - number - 1
    await store.close()


@pytest.mark.asyncio
async def test_a_blob_of_five_mebibytes_comes_back(path: Path) -> None:
    blob = bytes(range(256)) * 4 * 1024 * 5
    store = SqliteCheckpointStore(path)
    await store.append("r", cursor(0, blob, data=blob[::-1]))
    await store.close()
    (row,) = await store.load_run("r")
    assert row.blob == blob
    assert row.data == blob[::-1]
    await store.close()


@pytest.mark.asyncio
async def test_the_file_does_not_grow_with_cursors_that_replace_each_other(path: Path) -> None:
    store = SqliteCheckpointStore(path, synchronous="NORMAL")
    await store.append("r", entry(0))
    await store.append("r", cursor(1))
    for sequence in range(2, 800):
        await store.append("r", cursor(sequence, b"x" * 500, replaces=sequence - 1))
    assert len(await store.load_run("r")) == 2
    await store.close()
    assert path.stat().st_size < 50_000


MARKER = "import os; os.mkdir('marker')"


class Payload:
    def __reduce__(self) -> Any:
        return exec, (MARKER,)


@pytest.mark.parametrize("column", ["blob", "data"])
@pytest.mark.parametrize(
    "garbage",
    [
        "X'80FF00'",
        "X''",
        "'{\"text\": '",
        "'naïve'",
        "CAST(X'733363723374FF' AS TEXT)",
        "X'" + pickle.dumps(Payload()).hex() + "'",
    ],
)
@pytest.mark.asyncio
async def test_a_row_with_garbage_in_it_loads_and_only_reading_the_value_fails(path: Path, column: str, garbage: str) -> None:
    await fill(path, entry(0), cursor(1, b"1", data=b"2"))
    ask(path, f"UPDATE cano_checkpoints SET {column} = {garbage} WHERE sequence = 1")
    before = ask(path, "SELECT * FROM cano_checkpoints") if "CAST" not in garbage else None
    store = SqliteCheckpointStore(path)
    first, second = await store.load_run("r")
    assert first == entry(0)
    assert (second.sequence, second.kind) == (1, RowKind.STEP_CURSOR)
    found = getattr(second, column)
    assert type(found) is bytes
    with pytest.raises(CursorError):
        Codec().decode(found)
    await store.close()
    assert before is None or ask(path, "SELECT * FROM cano_checkpoints") == before
    assert not Path("marker").exists()


@pytest.mark.asyncio
async def test_a_value_typed_in_by_hand_is_read_as_it_was_typed(path: Path) -> None:
    await fill(path, entry(0), cursor(1))
    ask(path, """UPDATE cano_checkpoints SET blob = '{"line": 7}', data = '[1]' WHERE sequence = 1""")
    store = SqliteCheckpointStore(path)
    row = (await store.load_run("r"))[-1]
    assert (row.blob, row.data) == (b'{"line": 7}', b"[1]")
    await store.close()


@pytest.mark.parametrize(
    "damage",
    [
        "kind = 'SOMETHING'",
        "kind = X'80'",
        "visit = 'often'",
        "workflow_version = 1.5",
        "blob = 7",
        "data = 1.5",
        "state = X'41'",
    ],
)
@pytest.mark.asyncio
async def test_a_damaged_row_is_a_store_error_that_names_it_and_leaves_it(path: Path, damage: str) -> None:
    await fill(path, entry(0), cursor(1, SECRETS[0].encode(), data=SECRETS[1].encode()))
    await fill(path, entry(0), workflow_id="other")
    ask(path, f"UPDATE cano_checkpoints SET {damage} WHERE sequence = 1")
    before = ask(path, "SELECT * FROM cano_checkpoints")
    store = SqliteCheckpointStore(path)
    with pytest.raises(CheckpointStoreError, match="row 1 of run 'r' is damaged; it was left as it is") as caught:
        await store.load_run("r")
    assert not any(secret in str(caught.value) for secret in SECRETS)
    assert await store.load_run("other") == [entry(0)]
    await store.close()
    assert ask(path, "SELECT * FROM cano_checkpoints") == before


@pytest.mark.asyncio
async def test_what_sqlite_cannot_hold_is_refused_alone_and_not_with_the_appends_beside_it(
    path: Path, nothing_left: None
) -> None:
    store = SqliteCheckpointStore(path)
    outcomes = await asyncio.gather(
        store.append("good", entry(0)),
        store.append("bad \ud800", entry(0)),
        store.append("large", entry(0, workflow_version=2**70)),
        store.append("conflicting", entry(5)),
        store.append("wrong", entry(0, state={"not": "text"})),  # type: ignore[arg-type]  # wrong, on purpose
        store.append("fine", cursor(0)),
        return_exceptions=True,
    )
    assert outcomes[0] is outcomes[5] is None
    assert isinstance(outcomes[3], CheckpointConflictError)
    refusals = [outcomes[1], outcomes[2], outcomes[4]]
    assert all(type(outcome) is CheckpointStoreError for outcome in refusals)
    assert await store.list_runs() == ["fine", "good"]
    await store.close()


@pytest.mark.asyncio
async def test_what_sqlite_cannot_even_be_asked_is_a_store_error_too(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))
    for operation in (store.load_run("\ud800"), store.clear("\ud800")):
        with pytest.raises(CheckpointStoreError, match="surrogates not allowed"):
            await operation
    with suppress(KeyError):
        async with store.transaction("r") as transaction:
            with pytest.raises(CheckpointStoreError, match="SQLite could not append: Python int too large"):
                await transaction.append(entry(1, workflow_version=2**70))
            raise KeyError
    assert await store.load_run("r") == [entry(0)]
    await store.close()


@pytest.mark.asyncio
async def test_appends_that_fail_together_get_an_error_each(path: Path) -> None:
    text_file(path)
    store = SqliteCheckpointStore(path)
    errors = await asyncio.gather(*(store.append(f"r{number}", entry(0)) for number in range(3)), return_exceptions=True)
    assert len({id(error) for error in errors}) == 3
    for number, error in enumerate(errors):
        assert isinstance(error, CheckpointStoreError)
        error.locate(f"state {number}", 1, [])
        assert error.state == f"state {number}"
    await store.close()


@pytest.mark.asyncio
async def test_a_lock_that_is_never_let_go_fails_all_who_wait_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cano.recovery.lane.PATIENCE", 0.3)
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))
    started = asyncio.get_running_loop().time()
    with writer(path):
        errors = await asyncio.gather(*(store.append(f"r{number}", entry(0)) for number in range(20)), return_exceptions=True)
    assert {str(error) for error in errors} == {"SQLite could not append: database is locked"}
    assert asyncio.get_running_loop().time() - started < 1.5
    await store.append("r", entry(1))
    assert await store.list_runs() == ["r"]
    await store.close()


# -- what shows ---------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_no_log_line_message_or_repr_shows_a_value(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    asyncio.get_running_loop().slow_callback_duration = 10.0  # asyncio itself shows what a slow callback was given
    blob, data = (secret.encode() for secret in SECRETS)
    shown: list[str] = []

    async def fails(operation: Any) -> None:
        with pytest.raises(CheckpointStoreError) as caught:
            await operation
        shown.extend([str(caught.value), repr(caught.value), *traceback.format_exception(caught.value)])

    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0, data=data))
    await store.append("r", cursor(1, blob, data=data))
    await store.append("r", cursor(2, blob, data=data, replaces=1))
    await fails(store.append("r", cursor(2, blob, data=data)))
    await fails(store.append("\ud800", cursor(0, blob, data=data)))
    await fails(store.append("r", cursor(3, blob, data=data, workflow_version=2**70)))
    await asyncio.gather(*(store.append(f"r{number}", cursor(0, blob, data=data)) for number in range(5)))
    async with store.transaction("r") as transaction:
        await transaction.append(cursor(3, blob, data=data, replaces=2))
        shown.append(repr(transaction))
    with suppress(KeyError):
        async with store.transaction("r") as transaction:
            await fails(transaction.append(cursor(3, blob, data=data)))
            raise KeyError
    shown.append(repr(await store.load_run("r")))
    ask(path, f"UPDATE cano_checkpoints SET blob = CAST(X'{blob.hex()}FF' AS TEXT) WHERE workflow_id = 'r' AND sequence = 3")
    shown.append(repr(await store.load_run("r")))
    with pytest.raises(CursorError) as unreadable:
        Codec().decode((await store.load_run("r"))[-1].blob or b"")
    shown.append(str(unreadable.value))
    ask(path, "UPDATE cano_checkpoints SET kind = 'UNKNOWN' WHERE workflow_id = 'r'")
    await fails(store.load_run("r"))
    await store.clear("r")
    await store.list_runs()
    await store.close()
    assert len([record for record in caplog.records if record.name == "aiosqlite"]) > 50
    everything = caplog.text + "".join(repr(record.args) for record in caplog.records) + "".join(shown)
    for secret in SECRETS:
        assert secret not in everything
        assert secret.encode().hex() not in everything
    assert "cano_checkpoints" in everything
