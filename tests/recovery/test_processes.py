"""Several processes on one log, and processes that are killed."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cano import CheckpointConflictError, SqliteCheckpointStore
from cano.recovery.schema import VERSION
from tests.recovery.logs import child, children, cursor, entry


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def ask(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


TOUCH = """
number = sys.argv[-1]
say("ready")
told()
async def touch(store, index):
    workflow_id = f"{number}-{index}"
    async with store.claim(workflow_id):
        assert await store.load_run(workflow_id) == []
        await store.append(workflow_id, entry(0))
        await store.append(workflow_id, entry(1))
async def main():
    stores = [SqliteCheckpointStore(sys.argv[1]) for _ in range(2)]
    await asyncio.gather(*(touch(stores[index % 2], index) for index in range(20)))
    for store in stores:
        await store.close()
asyncio.run(main())
"""


def test_a_new_file_may_be_touched_by_many_at_once(path: Path) -> None:
    """BR-62."""
    with children(4, TOUCH, path) as started:
        assert [each.hear() for each in started] == ["ready"] * 4
        for each in started:
            each.tell()
        for each in started:
            each.end_well()
    assert ask(path, "SELECT version FROM cano_schema") == [(VERSION,)]
    assert ask(path, "PRAGMA journal_mode") == [("wal",)]
    assert ask(path, "SELECT count(*), count(DISTINCT workflow_id) FROM cano_checkpoints") == [(160, 80)]


RUNS = """
number = sys.argv[-1]
say("ready")
told()
async def run(store, index):
    workflow_id = f"{number}-{index}"
    await store.append(workflow_id, entry(0))
    await store.append(workflow_id, cursor(1))
    for sequence in range(2, 40):
        await store.append(workflow_id, cursor(sequence, replaces=sequence - 1))
async def main():
    store = SqliteCheckpointStore(sys.argv[1])
    await asyncio.gather(*(run(store, index) for index in range(25)))
    await store.close()
asyncio.run(main())
"""


def test_two_processes_of_many_runs_share_a_file_and_every_final_cursor_is_right(path: Path) -> None:
    """BR-60."""
    with children(2, RUNS, path) as started:
        assert [each.hear() for each in started] == ["ready"] * 2
        for each in started:
            each.tell()
        for each in started:
            each.end_well()
    expected = [(f"{number}-{index}", sequence) for number in range(2) for index in range(25) for sequence in (0, 39)]
    assert ask(path, "SELECT workflow_id, sequence FROM cano_checkpoints ORDER BY 1, 2") == sorted(expected)
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]


CONTEST = """
number = sys.argv[-1]
say("ready")
told()
async def main():
    store = SqliteCheckpointStore(sys.argv[1])
    for sequence in range(60):
        try:
            await store.append("r", entry(sequence, f"by {number}"))
            say("won", sequence)
        except CheckpointConflictError:
            pass
    await store.close()
asyncio.run(main())
"""


def test_of_two_processes_that_append_the_same_sequence_exactly_one_wins_each_time(path: Path) -> None:
    with children(2, CONTEST, path) as started:
        assert [each.hear() for each in started] == ["ready"] * 2
        for each in started:
            each.tell()
        won = {
            f"by {number}": [int(line.split()[1]) for line in each.end_well().splitlines()] for number, each in enumerate(started)
        }
    log = asyncio.run(SqliteCheckpointStore(path).load_run("r"))
    assert [row.sequence for row in log] == list(range(60)) == sorted(won["by 0"] + won["by 1"])
    for row in log:
        assert row.sequence in won[row.state]


APPENDS = """
async def run(store, workflow_id, start):
    for sequence in range(start, 1_000_000):
        await store.append(workflow_id, entry(sequence, data=b"x" * 300))
        say(workflow_id, sequence)
async def main():
    store = SqliteCheckpointStore(sys.argv[1])
    starts = [len(await store.load_run(workflow_id)) for workflow_id in "abc"]
    await asyncio.gather(*(run(store, workflow_id, start) for workflow_id, start in zip("abc", starts)))
asyncio.run(main())
"""


def test_a_process_killed_again_and_again_leaves_a_dense_log_with_everything_it_acknowledged(path: Path) -> None:
    chance = random.Random(5)
    acknowledged = dict.fromkeys("abc", -1)
    for _ in range(5):
        with child(APPENDS, path) as killed:
            lines = [killed.hear() for _ in range(chance.randint(1, 60))]
            killed.kill()
            lines += killed.end()[1].splitlines()
        for line in lines:
            workflow_id, sequence = line.split()
            acknowledged[workflow_id] = int(sequence)
        for workflow_id, last in acknowledged.items():
            log = asyncio.run(SqliteCheckpointStore(path).load_run(workflow_id))
            assert log == [entry(sequence, data=b"x" * 300) for sequence in range(len(log))]
            assert last + 1 <= len(log) <= last + 2
    assert ask(path, "PRAGMA integrity_check") == [("ok",)]


REPLACES = """
async def main():
    store = SqliteCheckpointStore(sys.argv[1])
    last = (await store.load_run("r"))[-1].sequence
    for sequence in range(last + 1, 1_000_000):
        await store.append("r", cursor(sequence, replaces=sequence - 1))
        say(sequence)
asyncio.run(main())
"""


def test_a_process_killed_while_cursors_replace_each_other_leaves_exactly_one(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    asyncio.run(store.append("r", cursor(0)))
    for _ in range(3):
        with child(REPLACES, path) as killed:
            lines = [killed.hear() for _ in range(20)]
            killed.kill()
            lines += killed.end()[1].split()
        (row,) = asyncio.run(store.load_run("r"))
        assert row == cursor(row.sequence)
        assert int(lines[-1]) <= row.sequence <= int(lines[-1]) + 1


def test_whoever_comes_back_after_a_kill_fences_what_is_left_of_the_old_owner(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    stale = """
async def main():
    store = SqliteCheckpointStore(sys.argv[1])
    async with store.claim("r"):
        await store.append("r", entry(0))
        say("appended")
        told()
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    with child(stale, path) as owner:
        assert owner.hear() == "appended"
        owner.tell()
        assert owner.end()[0] == -9

    async def resume() -> None:
        async with store.claim("r"):
            assert await store.load_run("r") == [entry(0)]
            await store.append("r", entry(1))
            with pytest.raises(CheckpointConflictError):
                await store.append("r", entry(1, "of the old owner"))
        await store.close()

    asyncio.run(resume())
