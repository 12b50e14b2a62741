"""How the SQLite store works through its connections: gathered commits, cancellation, closing, event loops, threads, forks."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sqlite3
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cano import CheckpointConflictError, CheckpointStoreError, SqliteCheckpointStore
from tests.recovery.logs import child, cursor, entry, eventually, in_threads, turns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def stored(path: Path) -> list[tuple[str, int]]:
    """What another program sees in the log at this moment."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT workflow_id, sequence FROM cano_checkpoints ORDER BY 1, 2").fetchall()


@contextmanager
def writer(path: Path) -> Iterator[None]:
    """Another program that is in the middle of a write while the block lasts."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")


def commits(path: Path) -> int:
    """How many transactions are in the write-ahead log: its frames that end one (https://sqlite.org/walformat.html)."""
    log = path.with_name(path.name + "-wal").read_bytes()
    size, salts = struct.unpack(">I", log[8:12])[0], log[16:24]
    headers = [log[start : start + 24] for start in range(32, len(log), 24 + size)]
    return sum(1 for header in headers if header[8:16] == salts and header[4:8] != bytes(4))


def open_files(path: Path) -> list[str]:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [os.readlink(link) for link in links if os.path.lexists(link) and os.readlink(link).startswith(str(path))]


async def cancelled(task: asyncio.Future[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


# -- commits ------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_appends_that_arrive_together_are_committed_together(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("first", entry(0))
    start = commits(path)
    for sequence in range(1, 11):
        await store.append("first", entry(sequence))
    assert commits(path) - start == 10
    start = commits(path)
    await asyncio.gather(*(store.append(f"run {number}", entry(0)) for number in range(300)))
    assert commits(path) - start <= 3
    assert len(await store.list_runs()) == 301
    await store.close()


@pytest.mark.asyncio
async def test_many_runs_at_once_share_their_commits_and_keep_their_order(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("first", entry(0))
    start = commits(path)

    async def work(workflow_id: str) -> None:
        for sequence in range(10):
            await store.append(workflow_id, cursor(sequence, replaces=sequence - 1))

    await asyncio.gather(*(work(f"run {number}") for number in range(50)))
    assert commits(path) - start <= 30
    for number in range(50):
        assert await store.load_run(f"run {number}") == [cursor(9)]
    await store.close()


@pytest.mark.asyncio
async def test_appends_of_one_run_that_arrive_together_are_taken_in_order(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    outcomes = await asyncio.gather(
        *(store.append("r", entry(sequence)) for sequence in (0, 1, 1, 2, 4, 3)), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes] == [type(None)] * 2 + [
        CheckpointConflictError,
        type(None),
        CheckpointConflictError,
        type(None),
    ]
    assert await store.load_run("r") == [entry(0), entry(1), entry(2), entry(3)]
    await asyncio.gather(*(store.append("r", entry(sequence)) for sequence in range(4, 10)))
    assert await store.load_run("r") == [entry(sequence) for sequence in range(10)]
    await store.close()


@pytest.mark.asyncio
async def test_more_appends_than_fit_in_one_statement_are_all_written(path: Path) -> None:
    store = SqliteCheckpointStore(path, synchronous="NORMAL")
    await asyncio.gather(*(store.append(f"run {number:04}", entry(0)) for number in range(1_100)))
    assert await store.list_runs() == [f"run {number:04}" for number in range(1_100)]
    await store.close()


# -- cancellation -------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_an_append_that_still_waits_is_taken_back_at_once(path: Path, nothing_left: None) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))
    with writer(path):
        appends = [asyncio.ensure_future(store.append("r", entry(1)))]
        await turns(20)
        appends += [asyncio.ensure_future(store.append(name, entry(0))) for name in ("a", "b", "c")]
        await turns(2)
        appends[2].cancel()
        await turns(3)
        assert [append.done() for append in appends] == [False, False, True, False]
    await asyncio.gather(appends[0], appends[1], appends[3])
    assert stored(path) == [("a", 0), ("c", 0), ("r", 0), ("r", 1)]
    await store.close()


@asynccontextmanager
async def gathered(store: SqliteCheckpointStore, alone: bool) -> AsyncIterator[None]:
    """Let the appends that are begun in the block go out alone, or together when it ends."""
    if alone:
        yield
    else:
        async with store._lane._turn:  # as any other write of this event loop would
            yield


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a group"])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.asyncio
async def test_an_append_that_is_being_written_is_waited_for_however_often_it_is_cancelled(
    path: Path, times: int, alone: bool, nothing_left: None
) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))
    await store.append("r", cursor(1))
    with writer(path):
        async with gathered(store, alone):
            append = asyncio.ensure_future(store.append("r", cursor(2, replaces=1)))
            beside = asyncio.ensure_future(store.append("beside", entry(0)))
            await turns(5)
        await turns(20)
        for _ in range(times):
            append.cancel()
            await turns(10)
        assert not append.done()
        assert stored(path) == [("r", 0), ("r", 1)]
    await cancelled(append)
    assert [row for row in stored(path) if row[0] == "r"] == [("r", 0), ("r", 2)]
    await beside
    await store.close()
    assert stored(path) == [("beside", 0), ("r", 0), ("r", 2)]


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a group"])
@pytest.mark.asyncio
async def test_a_conflict_of_a_cancelled_append_is_nobodys_lost_exception(path: Path, alone: bool, nothing_left: None) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))
    with writer(path):
        async with gathered(store, alone):
            append = asyncio.ensure_future(store.append("r", entry(0)))
            await turns(5)
        await turns(20)
        append.cancel()
        await turns(3)
    await cancelled(append)
    await store.close()


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a group"])
@pytest.mark.asyncio
async def test_cancelling_every_asyncio_task_there_is_surfaces_only_when_the_write_is_over(
    path: Path, alone: bool, nothing_left: None
) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))

    async def drains() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await store.append("draining", entry(0))

    with writer(path):
        async with gathered(store, alone):
            append = asyncio.ensure_future(store.append("r", entry(1)))
            draining = asyncio.ensure_future(drains())
            await turns(5)
        await turns(20)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await turns(20)
        assert not append.done()
    await cancelled(append)
    surfaced = stored(path)
    assert ("r", 1) in surfaced
    await cancelled(draining)
    assert stored(path) == [("draining", 0), ("r", 0), ("r", 1)]
    await store.append("r", entry(2))
    await store.close()


@pytest.mark.asyncio
async def test_an_append_cancelled_at_any_turn_of_the_first_one_is_whole_or_nothing_and_lands_no_later(path: Path) -> None:
    outcomes = set()
    for number, wait in enumerate([*range(12), *range(12, 600, 14)]):
        fresh = path.with_name(f"{number}.db")
        store = SqliteCheckpointStore(fresh)
        append = asyncio.ensure_future(store.append("r", entry(0)))
        await turns(wait)
        append.cancel()
        await asyncio.wait((append,))
        try:
            surfaced = stored(fresh)
        except sqlite3.OperationalError:  # there is no table yet
            surfaced = []
        await store.close()
        assert (stored(fresh) if surfaced else await store.load_run("r")) == surfaced
        assert append.cancelled() or surfaced
        await store.append("r", entry(len(surfaced)))
        await store.close()
        outcomes.add((append.cancelled(), len(surfaced)))
    assert (True, 0) in outcomes


@pytest.mark.asyncio
async def test_a_clear_that_is_being_written_is_waited_for(path: Path, nothing_left: None) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))
    with writer(path):
        clear = asyncio.ensure_future(store.clear("r"))
        await turns(20)
        clear.cancel()
        await turns(20)
        assert not clear.done()
    await cancelled(clear)
    assert stored(path) == []
    await store.close()


# -- closing ------------------------------------------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_close_waits_for_the_write_on_its_way_and_the_store_may_be_used_again(path: Path, nothing_left: None) -> None:
    store = SqliteCheckpointStore(path)
    await store.close()
    for sequence in range(3):
        append = asyncio.ensure_future(store.append("r", entry(sequence)))
        await turns(1 + 3 * sequence)
        await store.close()
        assert open_files(path) == []
        assert stored(path)[-1] == ("r", sequence)
        await append
        await store.close()
    assert [row.sequence for row in await store.load_run("r")] == [0, 1, 2]
    await store.close()


@pytest.mark.asyncio
async def test_closing_and_using_it_at_once_harms_nobody(path: Path, nothing_left: None) -> None:
    store = SqliteCheckpointStore(path, synchronous="NORMAL")

    async def work(workflow_id: str) -> None:
        for sequence in range(10):
            await store.append(workflow_id, entry(sequence))
            assert len(await store.load_run(workflow_id)) == sequence + 1
            async with store.claim(workflow_id):
                pass

    async def close() -> None:
        for _ in range(15):
            await store.close()
            await turns(7)

    await asyncio.gather(*(work(f"run {number}") for number in range(8)), close(), close())
    assert len(stored(path)) == 80
    await store.close()
    assert open_files(path) == []


@pytest.mark.asyncio
async def test_a_close_that_is_cancelled_closes_all_the_same(path: Path, nothing_left: None) -> None:
    store = SqliteCheckpointStore(path)
    for wait in range(8):
        await store.append(f"run {wait}", entry(0))
        async with store.transaction("t"):
            pass
        close = asyncio.ensure_future(store.close())
        await turns(wait)
        close.cancel()
        await asyncio.wait((close,))
        assert wait == 0 or open_files(path) == []
        await store.append(f"run {wait}", entry(1))
    assert len(stored(path)) == 16
    await store.close()
    assert open_files(path) == []


@pytest.mark.asyncio
async def test_a_store_that_nobody_refers_to_any_more_closes_its_files_without_a_warning(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    await store.append("r", entry(0))
    async with store.transaction("r"):
        pass
    assert open_files(path)
    del store
    gc.collect()
    await eventually("the files are closed", lambda: not open_files(path))
    gc.collect()


@pytest.mark.asyncio
async def test_a_database_that_cannot_be_opened_leaves_no_thread_behind(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "close_and_stop" in record.getMessage():
                time.sleep(0.03)

    path.mkdir()
    store = SqliteCheckpointStore(path)
    before, slow, logger = set(threading.enumerate()), Slow(), logging.getLogger("aiosqlite")
    caplog.set_level(logging.DEBUG, logger.name)
    logger.addHandler(slow)
    try:
        for _ in range(3):
            with pytest.raises(CheckpointStoreError, match="unable to open database file"):
                await store.load_run("r")
            assert [
                thread.name for thread in threading.enumerate() if thread not in before and "asyncio" not in thread.name
            ] == []
    finally:
        logger.removeHandler(slow)


# -- event loops and threads --------------------------------------------------------------------------------------------


def test_one_store_serves_event_loops_one_after_the_other(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    for sequence in range(3):
        asyncio.run(store.append("r", entry(sequence)))
        assert open_files(path) == []
        assert [row.sequence for row in asyncio.run(store.load_run("r"))] == list(range(sequence + 1))


def test_one_store_serves_event_loops_in_several_threads_at_once(path: Path) -> None:
    store = SqliteCheckpointStore(path, synchronous="NORMAL")
    won: list[int] = []

    async def work(number: int) -> None:
        for sequence in range(30):
            await store.append(f"own {number}", cursor(sequence, replaces=sequence - 1))
            try:
                await store.append("contested", entry(sequence))
                won.append(sequence)
            except CheckpointConflictError:
                pass
        if number % 2:
            await store.close()

    in_threads(4, lambda number: asyncio.run(work(number)))
    for number in range(4):
        assert asyncio.run(store.load_run(f"own {number}")) == [cursor(29)]
    assert [row.sequence for row in asyncio.run(store.load_run("contested"))] == sorted(won)
    assert open_files(path) == []


def test_an_event_loop_that_is_only_closed_leaves_the_store_usable_elsewhere(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(store.append("r", entry(0)))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    asyncio.run(store.append("r", entry(1)))
    assert stored(path) == [("r", 0), ("r", 1)]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="asyncio has eager tasks since 3.12")
@pytest.mark.asyncio
async def test_an_append_that_fails_at_once_in_an_eager_task_does_not_block_the_next(path: Path) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(getattr(asyncio, "eager_task_factory", None))
    store = SqliteCheckpointStore(path)
    for sequence in range(3):
        await store.append("r", entry(sequence))
    await asyncio.gather(*(store.append(f"run {number}", entry(0)) for number in range(5)))
    await loop.shutdown_asyncgens()  # closes the connection behind the store's back
    for _ in range(2):
        async with asyncio.timeout(5):
            with pytest.raises(CheckpointStoreError, match="closed"):
                await store.append("r", entry(3))
    async with asyncio.timeout(5):
        await store.close()
    loop.set_task_factory(None)


# -- the end of the process ---------------------------------------------------------------------------------------------

FORGETFUL = {
    "in_a_run": """
async def main():
    store = SqliteCheckpointStore(sys.argv[1])
    await store.append("r", entry(0))
    async with store.transaction("r") as transaction:
        await transaction.append(entry(1))
    say("done")
asyncio.run(main())
""",
    "at_module_level": """
store = SqliteCheckpointStore(sys.argv[1])
async def main():
    await store.append("r", entry(0))
    await store.append("r", entry(1))
asyncio.run(main())
say("done")
""",
    "in_a_loop_that_is_never_closed": """
import warnings
warnings.simplefilter("ignore")
store = SqliteCheckpointStore(sys.argv[1])
loop = asyncio.new_event_loop()
loop.run_until_complete(store.append("r", entry(0)))
loop.run_until_complete(store.append("r", entry(1)))
say("done")
""",
    "with_a_run_claimed_and_tasks_running": """
store = SqliteCheckpointStore(sys.argv[1])
async def busy():
    for sequence in range(10_000):
        await store.append("busy", entry(sequence))
async def main():
    task = asyncio.create_task(busy())
    async with store.claim("r"):
        await store.append("r", entry(0))
        await store.append("r", entry(1))
        say("done")
asyncio.run(main())
""",
    "by_sys_exit": """
store = SqliteCheckpointStore(sys.argv[1])
async def main():
    await store.append("r", entry(0))
    await store.append("r", entry(1))
    say("done")
    sys.exit(0)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("way", FORGETFUL)
def test_a_program_that_forgets_to_close_exits_at_once_with_everything_stored(path: Path, way: str) -> None:
    """BR-63."""
    with child(FORGETFUL[way], path) as program:
        assert program.hear() == "done"
        started = time.monotonic()
        program.end_well()
        assert time.monotonic() - started < 2
    assert [row for row in stored(path) if row[0] == "r"] == [("r", 0), ("r", 1)]


FORKING = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
store = SqliteCheckpointStore(sys.argv[1])
async def parent():
    await store.append("parent", entry(0))
    if sys.argv[2] == "closed":
        await store.close()
    ready, go_on = os.pipe()
    if os.fork() == 0:
        os.read(ready, 1)
        try:
            for sequence in range(3):
                asyncio.run(SqliteCheckpointStore(sys.argv[1]).append("child", entry(sequence)))
            asyncio.run(store.append("child", entry(3)))
            say("stored")
        except CheckpointStoreError as error:
            say(error)
        os._exit(0)
    await store.close()
    os.write(go_on, b" ")
    os.wait()
    await store.append("parent", entry(1))
asyncio.run(parent())
"""


@pytest.mark.parametrize("database", ["open", "closed"])
def test_a_forked_process_uses_the_database_only_if_it_was_closed_for_its_rows_could_vanish(path: Path, database: str) -> None:
    with child(FORKING, path, database) as program:
        out = program.end_well()
    if database == "open":
        assert out.startswith("the database was open when this process was forked, which SQLite does not survive")
        assert stored(path) == [("parent", 0), ("parent", 1)]
    else:
        assert out == "stored\n"
        assert stored(path) == [*(("child", sequence) for sequence in range(4)), ("parent", 0), ("parent", 1)]


FORKING_BETWEEN_RUNS = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
store = SqliteCheckpointStore(sys.argv[1])
loop = asyncio.new_event_loop()
loop.run_until_complete(store.append("r", entry(0)))
if os.fork() == 0:
    loop.run_until_complete(asyncio.wait_for(store.close(), 5))
    try:
        loop.run_until_complete(asyncio.wait_for(store.append("r", entry(1)), 5))
    except CheckpointStoreError as error:
        say(error)
    loop.run_until_complete(asyncio.wait_for(store.close(), 5))
    os._exit(0)
os.wait()
loop.run_until_complete(store.append("r", entry(1)))
loop.run_until_complete(store.close())
loop.close()
"""


def test_a_forked_process_that_goes_on_with_the_event_loop_of_its_parent_is_refused_too(path: Path) -> None:
    with child(FORKING_BETWEEN_RUNS, path) as program:
        out = program.end_well()
    assert out.startswith("the database was open when this process was forked")
    assert stored(path) == [("r", 0), ("r", 1)]
