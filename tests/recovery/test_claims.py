"""Claims: exclusive between tasks, stores, threads and processes; gone with the block, and with the process."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from cano import CheckpointStoreError, RunOwnedError, SqliteCheckpointStore
from tests.recovery.logs import child, children, entry, in_threads


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def held(store: SqliteCheckpointStore, workflow_id: str = "r") -> bool:
    """Whether somebody holds the claim."""
    try:
        async with store.claim(workflow_id):
            return False
    except RunOwnedError as error:
        assert str(error) == f"run {workflow_id!r} is being worked on by somebody alive; wait for it to end"
        return True


HOLD = """
async def main():
    try:
        async with SqliteCheckpointStore(sys.argv[1]).claim("r"):
            say("held")
            told()
        say("released")
    except RunOwnedError:
        say("refused")
asyncio.run(main())
"""


@pytest.mark.asyncio
async def test_a_claim_is_exclusive_between_tasks_and_store_objects_however_the_file_is_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.with_name("link.db").symlink_to(path)
    path.parent.joinpath("folder").mkdir()
    monkeypatch.chdir(path.parent)
    names = [path, "runs.db", path.parent / "folder" / ".." / "runs.db", path.with_name("link.db")]
    stores = [SqliteCheckpointStore(name) for name in names]
    for holder in stores:
        async with holder.claim("r"):
            for store in stores:
                assert await held(store)
                assert await asyncio.ensure_future(held(store))
                assert not await held(store, "another run")
                assert not await held(store, "R")
        assert not await held(holder)
    assert not await held(SqliteCheckpointStore(path.with_name("other.db")))


def test_a_claim_is_exclusive_between_threads_with_event_loops_of_their_own(path: Path) -> None:
    store, outcomes = SqliteCheckpointStore(path), []
    tried = threading.Barrier(6)

    async def work() -> None:
        try:
            async with store.claim("r"):
                outcomes.append("held")
                tried.wait()
        except RunOwnedError:
            outcomes.append("refused")
            tried.wait()

    in_threads(6, lambda number: asyncio.run(work()))
    assert sorted(outcomes) == ["held"] + ["refused"] * 5


def test_threads_that_claim_and_release_all_the_time_never_hold_one_run_twice(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    inside, successes = {"a": 0, "b": 0}, []

    async def work(number: int) -> None:
        for turn in range(60):
            workflow_id = "ab"[(turn + number) % 2]
            try:
                async with store.claim(workflow_id):
                    inside[workflow_id] += 1
                    assert inside[workflow_id] == 1
                    await asyncio.sleep(0)
                    inside[workflow_id] -= 1
                    successes.append(number)
            except RunOwnedError:
                pass

    in_threads(4, lambda number: asyncio.run(work(number)))
    assert len(set(successes)) > 1  # who gets how many is for the machine to say


def test_a_claim_is_exclusive_between_processes_and_ends_with_its_block(path: Path) -> None:
    with children(3, HOLD, path) as started:
        words = [each.hear() for each in started]
        assert sorted(words) == ["held", "refused", "refused"]
        assert asyncio.run(held(SqliteCheckpointStore(path)))
        assert not asyncio.run(held(SqliteCheckpointStore(path), "another run"))
        holder = started[words.index("held")]
        holder.tell()
        assert holder.hear() == "released"
        assert not asyncio.run(held(SqliteCheckpointStore(path)))
        for each in started:
            each.end_well()


@pytest.mark.asyncio
async def test_a_claim_that_has_ended_is_free_for_others_although_its_process_holds_more(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    async with store.claim("another run"):
        async with store.claim("r"):
            pass
        with child(HOLD, path) as holder:
            assert holder.hear() == "held"
            assert await held(store)
            holder.tell()
            holder.end_well()


def test_a_claim_dies_at_once_with_a_process_that_is_killed(path: Path) -> None:
    with child(HOLD, path) as holder:
        assert holder.hear() == "held"
        assert asyncio.run(held(SqliteCheckpointStore(path)))
        holder.kill()
        assert not asyncio.run(held(SqliteCheckpointStore(path)))


@pytest.mark.parametrize(
    "error", [KeyError(), asyncio.CancelledError(), KeyboardInterrupt()], ids=lambda error: type(error).__name__
)
@pytest.mark.asyncio
async def test_a_claim_ends_with_its_block_however_that_ends(path: Path, error: BaseException) -> None:
    store = SqliteCheckpointStore(path)
    for _ in range(2):
        with pytest.raises(type(error)):
            async with store.claim("r"):
                raise error
        assert not await held(store)
    holding = asyncio.Event()

    async def hold() -> None:
        async with store.claim("r"):
            holding.set()
            await asyncio.Event().wait()

    holder = asyncio.ensure_future(hold())
    await holding.wait()
    assert await held(store)
    holder.cancel()
    await asyncio.wait((holder,))
    assert not await held(store)


@pytest.mark.asyncio
async def test_a_refused_claim_takes_nothing_from_its_holder(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    async with store.claim("r"), store.claim("other"):
        for _ in range(3):
            assert await held(store)
    assert not await held(store)


FORKS = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
path = sys.argv[1]

def ask():
    async def main():
        try:
            async with SqliteCheckpointStore(path).claim("r"):
                return "free"
        except RunOwnedError:
            return "held"
    return asyncio.run(main())

def fork(work):
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = work() or 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0

async def parent():
    try:
        async with SqliteCheckpointStore(path).claim("r"):
            parent_pid = os.getpid()
            fork(lambda: say("child sees", ask()))
            early = os.fork()
            if early == 0:
                os.read(over, 1)
                say("early child sees", ask())
                os._exit(0)
            leaving = os.fork()
            if leaving == 0:
                return  # leaves the block in the child
            assert os.waitpid(leaving, 0)[1] == 0
            say("held")
            told()
    except BaseException:
        if os.getpid() == parent_pid:
            raise
        os._exit(1)
    finally:
        if os.getpid() != parent_pid:
            os._exit(0)
    os.write(tell, b" ")
    assert os.waitpid(early, 0)[1] == 0
over, tell = os.pipe()
asyncio.run(parent())
fork(lambda: say("late child sees", ask()))
"""


def test_a_forked_child_neither_inherits_nor_releases_a_claim(path: Path) -> None:
    with child(FORKS, path) as forking:
        assert forking.hear() == "child sees held"
        assert forking.hear() == "held"
        assert asyncio.run(held(SqliteCheckpointStore(path)))
        forking.tell()
        assert forking.hear() == "early child sees free"
        assert forking.hear() == "late child sees free"
        forking.end_well()


@pytest.mark.asyncio
async def test_a_claim_writes_nothing_but_an_empty_file_beside_the_log(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    async with store.claim("r"):
        assert [(file.name, file.stat().st_size) for file in path.parent.iterdir()] == [("runs.db-claims", 0)]
    async with store.claim("r"):
        await store.append("r", entry(0))
    await store.close()
    assert sorted(file.name for file in path.parent.iterdir()) == ["runs.db", "runs.db-claims"]


@pytest.mark.asyncio
async def test_a_claims_file_that_cannot_be_used_is_a_store_error(path: Path) -> None:
    path.with_name("runs.db-claims").mkdir()
    with pytest.raises(CheckpointStoreError, match="cannot use the claims file beside the log: Is a directory"):
        async with SqliteCheckpointStore(path).claim("r"):
            pass


@pytest.mark.asyncio
async def test_claims_leave_no_open_files_behind(path: Path) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    store, other = SqliteCheckpointStore(path), SqliteCheckpointStore(path)
    before = count()
    for number in range(1_000):
        async with store.claim(f"run {number}"):
            if number % 10 == 0:
                assert await held(other, f"run {number}")
    assert count() == before
    claims: list[Any] = [store.claim(f"run {number}") for number in range(1_000)]
    for each in claims:
        await each.__aenter__()
    assert count() == before + 1
    assert await held(other, "run 999")
    for each in claims:
        await each.__aexit__(None, None, None)
    assert count() == before
    assert not await held(other, "run 999")


@pytest.mark.parametrize("workflow_id", ["'; --", "%", "a\x00b", "a\nb", "x" * 10_000, "\ud800", ""])
@pytest.mark.asyncio
async def test_any_id_can_be_claimed(path: Path, workflow_id: str) -> None:
    store = SqliteCheckpointStore(path)
    async with store.claim(workflow_id):
        assert await held(store, workflow_id)
        assert not await held(store, workflow_id + "x")
    assert not await held(store, workflow_id)
