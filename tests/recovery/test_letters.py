"""The SQLite sink of dead letters: what it keeps, how durably, and what it never shows."""

from __future__ import annotations

import asyncio
import gc
import logging
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CheckpointStoreError,
    ConfigurationError,
    CursorError,
    DeadLetter,
    DeadLetterSink,
    SkipAndContinue,
)
from cano.recovery.letters import SqliteDeadLetterSink, StoredLetter
from cano.recovery.sqlite import SqliteCheckpointStore
from tests.streams import Probe, numbers, run

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


def letter(item: bytes = b'{"n":1}', *, cursor: bytes | None = b"1", error: Exception | None = None) -> DeadLetter:
    return DeadLetter(
        item,
        error or ValueError("s3cr3t-error"),
        cursor,
        workflow_id="r",
        state="WORK",
        task="Ingest",
        encode_item=lambda: item,
        encode_cursor=lambda: cursor,
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "letters.db"


async def test_a_letter_comes_back_as_it_was_written_oldest_first(path: Path) -> None:
    async with SqliteDeadLetterSink(path) as sink:
        assert isinstance(sink, DeadLetterSink)
        before = datetime.now(UTC)
        await sink.write(letter(b"1"))
        await sink.write(letter(b"2", cursor=None, error=AttemptTimeoutError("late")))
        first, second = await sink.letters()
    assert isinstance(first, StoredLetter)
    assert (first.workflow_id, first.state, first.task) == ("r", "WORK", "Ingest")
    assert (first.error_type, first.category, first.cursor, first.item) == ("ValueError", "task_execution", b"1", b"1")
    assert (second.error_type, second.category, second.cursor) == ("AttemptTimeoutError", "timeout", None)
    assert before <= first.written_at <= datetime.now(UTC)
    with pytest.raises(AttributeError):
        first.item = b""  # type: ignore[misc]  # wrong, on purpose


async def test_without_a_database_there_are_no_letters_and_none_is_made(path: Path) -> None:
    async with SqliteDeadLetterSink(path) as sink:
        assert await sink.letters() == []
    assert not path.exists()


async def test_a_letter_is_in_the_file_when_write_returns(path: Path) -> None:
    async with SqliteDeadLetterSink(path) as sink:
        await sink.write(letter())
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT count(*) FROM cano_dead_letters").fetchone() == (1,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()


@pytest.mark.parametrize("words", ["FULL", "NORMAL"])
async def test_the_sink_uses_the_durability_that_was_asked_for(path: Path, words: Any) -> None:
    async with SqliteDeadLetterSink(path, synchronous=words) as sink:
        await sink.write(letter())
        connection: Any = sink._desk._connection
        level = list(await connection.execute_fetchall("PRAGMA synchronous"))
        assert level == [(2 if words == "FULL" else 1,)]


async def test_it_may_share_the_file_of_the_log(path: Path) -> None:
    async def bad(item: int) -> None:
        if item % 2:
            raise ValueError

    store = SqliteCheckpointStore(path)
    async with SqliteDeadLetterSink(path) as sink:
        probe = Probe(numbers(1, 6), process=bad, on_item_error=SkipAndContinue(), dead_letters=sink)
        assert await run(probe, store) == "done"
        assert [stored.item for stored in await sink.letters()] == [b"1", b"3", b"5"]
        assert {stored.state for stored in await sink.letters()} == {"work"}
    await store.close()


async def test_many_writers_in_one_loop_and_several_loops_lose_nothing(path: Path) -> None:
    sink = SqliteDeadLetterSink(path)
    await asyncio.gather(*(sink.write(letter(b"%d" % number)) for number in range(20)))

    def elsewhere() -> None:
        async def main() -> None:
            await asyncio.gather(*(sink.write(letter(b"%d" % number)) for number in range(20, 30)))

        asyncio.run(main())

    await asyncio.gather(*(asyncio.to_thread(elsewhere) for _ in range(3)))
    assert sorted(int(stored.item) for stored in await sink.letters()) == sorted([*range(20), *(list(range(20, 30)) * 3)])
    await sink.close()


async def test_a_closed_sink_opens_again_and_closing_twice_is_fine(path: Path) -> None:
    sink = SqliteDeadLetterSink(path)
    await sink.close()
    await sink.write(letter(b"1"))
    await sink.close()
    await sink.close()
    await sink.write(letter(b"2"))
    assert len(await sink.letters()) == 2
    await sink.close()


async def test_a_write_that_is_cancelled_is_written_all_the_same_and_nothing_is_left_open(path: Path) -> None:
    sink = SqliteDeadLetterSink(path)
    writing = asyncio.create_task(sink.write(letter()))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert len(await sink.letters()) == 1
    await sink.close()


async def test_what_cannot_be_encoded_surfaces_before_anything_is_written(path: Path) -> None:
    def refuse() -> bytes:
        raise CursorError("an item of Ingest cannot be stored")

    broken = letter()
    object.__setattr__(broken, "encode_item", refuse)
    async with SqliteDeadLetterSink(path) as sink:
        with pytest.raises(CursorError):
            await sink.write(broken)
        assert await sink.letters() == []


async def test_what_sqlite_refuses_is_a_store_error_and_the_sink_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    sink = SqliteDeadLetterSink(folder / "letters.db")
    with pytest.raises(CheckpointStoreError):
        await sink.write(letter())
    folder.mkdir()
    await sink.write(letter())
    assert len(await sink.letters()) == 1
    await sink.close()


async def test_a_file_that_is_no_database_is_refused_and_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"these are not the bytes of a database" * 40)
    async with SqliteDeadLetterSink(path) as sink:
        with pytest.raises(CheckpointStoreError):
            await sink.write(letter())
        with pytest.raises(CheckpointStoreError):
            await sink.letters()
    assert path.read_bytes() == b"these are not the bytes of a database" * 40


async def test_a_damaged_letter_is_an_error_and_no_look_alike(path: Path) -> None:
    async with SqliteDeadLetterSink(path) as sink:
        for column, value in (("written_at", "yesterday"), ("task", b"\x00"), ("item", "text"), ("cursor", 5)):
            await sink.write(letter())
            connection = sqlite3.connect(path)
            with connection:
                connection.execute(f"UPDATE cano_dead_letters SET {column} = ?", (value,))
            connection.close()
            with pytest.raises(CheckpointStoreError, match="damaged"):
                await sink.letters()
            connection = sqlite3.connect(path)
            with connection:
                connection.execute("DELETE FROM cano_dead_letters")
            connection.close()


async def test_no_value_is_in_any_log_line_repr_or_message(path: Path, caplog: Any) -> None:
    """BR-78."""
    caplog.set_level(logging.DEBUG)
    secret = letter(b'{"password":"s3cr3t-1"}', cursor=b'"s3cr3t-2"')
    async with SqliteDeadLetterSink(path) as sink:
        await sink.write(secret)
        (stored,) = await sink.letters()
        assert stored.item == b'{"password":"s3cr3t-1"}'
        connection: Any = sink._desk._connection
        await connection.execute_fetchall("DROP TABLE cano_dead_letters")
        with pytest.raises(CheckpointStoreError) as caught:
            await sink.write(secret)
    assert "aiosqlite" in {record.name for record in caplog.records}
    for text in (caplog.text, repr(stored), repr(secret), str(caught.value), repr(caught.value), repr(sink)):
        assert "s3cr3t" not in text
    connection = sqlite3.connect(path)
    assert "s3cr3t-error" not in "".join(connection.iterdump())
    connection.close()


@pytest.mark.parametrize("path", ["", ":memory:", b"letters.db"])
async def test_a_path_that_names_no_file_is_refused(path: Any) -> None:
    with pytest.raises(ConfigurationError):
        SqliteDeadLetterSink(path)
    with pytest.raises(ConfigurationError):
        SqliteDeadLetterSink("letters.db", synchronous="OFF")  # type: ignore[arg-type]  # wrong, on purpose


async def test_names_with_quotes_are_bound_and_stored_as_they_are(path: Path) -> None:
    """BR-74."""
    name = "x'); DROP TABLE cano_dead_letters;--"
    odd = letter()
    object.__setattr__(odd, "workflow_id", name)
    async with SqliteDeadLetterSink(path) as sink:
        await sink.write(odd)
        assert [stored.workflow_id for stored in await sink.letters()] == [name]


async def test_a_sink_that_is_forgotten_closes_its_connection(path: Path) -> None:
    sink = SqliteDeadLetterSink(path)
    await sink.write(letter())
    opened: Any = sink._desk._connection
    thread = getattr(opened, "_thread", opened)
    del sink, opened
    async with asyncio.timeout(10):
        while thread.is_alive():
            gc.collect()
            await asyncio.sleep(0)


@pytest.mark.parametrize("ending", ["asyncio.run(writing)", "asyncio.new_event_loop().run_until_complete(writing)"])
async def test_a_program_that_forgets_to_close_still_exits_and_has_written(path: Path, ending: str) -> None:
    program = f"""
import asyncio, sys
from tests.recovery.test_letters import letter
from cano.recovery.letters import SqliteDeadLetterSink
sink = SqliteDeadLetterSink(sys.argv[1])
writing = sink.write(letter())
{ending}
"""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program, str(path)], timeout=20)
    assert done.returncode == 0
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT count(*) FROM cano_dead_letters").fetchone() == (1,)
    connection.close()
