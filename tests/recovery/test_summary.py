"""What a log tells people about its runs: summaries, failures on note, and logs of the older schema."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cano import (
    CancellationToken,
    CheckpointStoreError,
    NoRetry,
    RowKind,
    SqliteCheckpointStore,
    Task,
    TaskConfig,
    TaskExecutionError,
    Window,
    Workflow,
    WorkflowCancelledError,
    clock,
)
from cano.recovery.store import Noting
from tests.recovery.logs import cursor, entry
from tests.streams import Probe, numbers, then_silence

pytestmark = pytest.mark.asyncio

GOLDEN = Path(__file__).parents[1] / "golden" / "v1.db"
MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


def flow(store: Any, task: Any, **options: Any) -> Workflow[str]:
    return Workflow[str](name="ingest", checkpoint_store=store, **options).register("work", task).add_exit_state("done")


def failing(item: int) -> None:
    if item == 7:
        raise ValueError


async def test_a_failed_run_is_summed_up_with_its_windows_its_moment_and_its_error(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    assert await store.summaries() == []
    with clock.replaced(wall=lambda: MOMENT), pytest.raises(TaskExecutionError):
        await flow(store, Probe(numbers(1, 9), process=failing)).orchestrate("work", workflow_id="r")
    (run,) = await store.summaries()
    assert (run.workflow_id, run.workflow, run.state, run.task, run.visit) == ("r", "ingest", "work", "Probe", 0)
    assert (run.rows, run.windows, run.kind, run.next_state) == (2, 3, RowKind.STEP_CURSOR, None)
    assert (run.error_type, run.error_category) == ("ValueError", "task_execution")
    assert run.written_at == run.failed_at == MOMENT
    assert not run.rolling_back
    await store.close()


async def test_a_run_that_completes_leaves_no_note_behind(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    probe = Probe(numbers(1, 9), process=failing)
    with pytest.raises(TaskExecutionError):
        await flow(store, probe).orchestrate("work", workflow_id="r")
    probe.hooks["process"] = None
    assert await flow(store, probe).resume_from("r") == "done"
    assert await store.summaries() == []
    await store.append("r", entry(0))
    (again,) = await store.summaries()
    assert again.error_type is None
    await store.close()


async def test_a_run_that_was_only_stopped_has_no_error_and_a_run_without_a_row_no_note(tmp_path: Path) -> None:
    store, token, reached = SqliteCheckpointStore(tmp_path / "runs.db"), CancellationToken(), asyncio.Event()
    running = asyncio.create_task(flow(store, Probe(then_silence(3, reached))).orchestrate("work", workflow_id="r", token=token))
    await reached.wait()
    (alive,) = await store.summaries()
    assert alive.workflow == "ingest"
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    (paused,) = await store.summaries()
    assert (paused.windows, paused.error_type) == (2, None)

    await store.note_failure("unknown", "ValueError", "generic")
    assert [run.workflow_id for run in await store.summaries()] == ["r"]
    await store.close()


async def test_transactional_windows_are_labelled_too(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    with pytest.raises(TaskExecutionError):
        probe = Probe(numbers(1, 9), process=failing, transactional=True)
        await flow(store, probe).orchestrate("work", workflow_id="r")
    (run,) = await store.summaries()
    assert (run.workflow, run.windows) == ("ingest", 3)
    assert run.written_at is not None
    await store.close()


async def test_a_name_lasts_as_long_as_the_claim(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    assert isinstance(store, Noting)
    async with store.claim("r"):
        store.introduce("r", "first")
        await store.append("r", entry(0))
    await store.append("r", cursor(1))
    assert [run.workflow for run in await store.summaries()] == [""]
    assert not store._names
    await store.close()


async def test_a_note_that_cannot_be_written_changes_nothing(tmp_path: Path, caplog: Any) -> None:
    class Forgetful(SqliteCheckpointStore):
        async def note_failure(self, workflow_id: str, error_type: str, category: str) -> None:
            raise OSError("secret")

    store = Forgetful(tmp_path / "runs.db")
    with pytest.raises(TaskExecutionError):
        await flow(store, Probe(numbers(1, 9), process=failing)).orchestrate("work", workflow_id="r")
    assert "could not be noted: OSError" in caplog.text
    assert "secret" not in caplog.text
    await store.close()


async def test_windows_are_counted_over_all_visits_and_through_resumes(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    visits = iter(["work", "work", "again"])

    class Sick(Task[str]):
        config = TaskConfig(retry=NoRetry())

        async def run(self, ctx: Any) -> str:
            raise ValueError

    looping = flow(store, Probe(numbers(1, 4), close=lambda reason: next(visits), window=Window(count=1)))
    with pytest.raises(TaskExecutionError):
        await looping.register("again", Sick()).orchestrate("work", workflow_id="r")
    (run,) = await store.summaries()
    assert (run.windows, run.visit, run.state) == (12, 3, "again")
    await store.close()


# -- the older schema ---------------------------------------------------------------------------------------------------


def content(path: Path) -> tuple[list[Any], list[Any]]:
    with closing(sqlite3.connect(path)) as database:
        return (
            database.execute("SELECT version FROM cano_schema").fetchall(),
            database.execute("SELECT * FROM cano_checkpoints ORDER BY workflow_id, sequence").fetchall(),
        )


@pytest.mark.parametrize("name", ["v1.db", "v2.db"])
async def test_looking_changes_not_a_byte(name: str, tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN.parent / name, tmp_path / "copy.db"))
    with closing(sqlite3.connect(path)) as database:  # as a backup is
        database.execute("PRAGMA journal_mode = DELETE")
    before = path.read_bytes()
    async with SqliteCheckpointStore(path) as store:
        assert len(await store.summaries()) == len(await store.list_runs()) == 13
        assert len(await store.load_run("stream")) == 2
        assert len(await store.summaries()) == 13
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["copy.db"]


async def test_an_older_log_can_be_looked_at_and_is_brought_up_to_date_by_the_first_write(tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN, tmp_path / "runs.db"))
    _, before = content(path)
    store = SqliteCheckpointStore(path)
    runs = {run.workflow_id: run for run in await store.summaries()}
    assert runs["stream"].written_at is None
    assert (runs["stream"].workflow, runs["stream"].windows, runs["stream"].workflow_version) == ("", 2, 3)
    assert runs["rollback"].rolling_back
    assert content(path) == ([(1,)], before)
    await store.append("new", entry(0))
    version, after = content(path)
    assert version == [(2,)]
    assert [row[: len(before[0])] for row in after if row[0] != "new"] == before
    assert {run.workflow_id: run for run in await store.summaries() if run.workflow_id != "new"} == runs
    await store.close()


async def test_many_that_write_to_an_older_log_at_once_bring_it_up_to_date_once(tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN, tmp_path / "runs.db"))
    stores = [SqliteCheckpointStore(path) for _ in range(8)]
    await asyncio.gather(*(store.append(f"run {number}", entry(0)) for number, store in enumerate(stores)))
    assert len(await stores[0].summaries()) == 13 + 8
    for store in stores:
        await store.close()


async def test_code_of_the_older_version_goes_on_writing_to_a_log_that_was_brought_up_to_date(tmp_path: Path) -> None:
    path = Path(shutil.copy(GOLDEN, tmp_path / "runs.db"))
    store = SqliteCheckpointStore(path)
    await store.append("new", entry(0))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(
            "INSERT INTO cano_checkpoints (workflow_id, sequence, kind, state, task, visit, workflow_version) "
            "VALUES ('old', 0, 'STATE_ENTRY', 'S', 't', 0, 0)"
        )
    (old,) = [run for run in await store.summaries() if run.workflow_id == "old"]
    assert old.written_at is None
    await store.close()


async def test_a_migration_that_dies_half_way_leaves_the_older_log(tmp_path: Path, monkeypatch: Any) -> None:
    from cano.recovery import lane

    path = Path(shutil.copy(GOLDEN, tmp_path / "runs.db"))
    good, before = dict(lane.MIGRATIONS), content(path)
    monkeypatch.setitem(lane.MIGRATIONS, 1, good[1] + "SELECT nonsense;\n")
    store = SqliteCheckpointStore(path)
    with pytest.raises(CheckpointStoreError):
        await store.append("new", entry(0))
    await store.close()
    assert content(path) == before
    monkeypatch.setitem(lane.MIGRATIONS, 1, good[1])
    await store.append("new", entry(0))
    assert len(await store.summaries()) == 14
    await store.close()


@pytest.mark.parametrize("damage", ["written_at = 'then'", "written_at = 1e300", "written_at = x'00'"])
async def test_a_run_whose_moment_cannot_be_read_is_not_damaged(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "runs.db"
    async with SqliteCheckpointStore(path) as store:
        await store.append("a", entry(0))
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute(f"UPDATE cano_checkpoints SET {damage}")
        (run,) = await store.summaries()
        assert (run.state, run.written_at, run.damaged) == ("STATE", None, False)


@pytest.mark.parametrize("damage", ["kind = 'NONSENSE'", "state = x'00'", "visit = 'many'", "visit = -5", "kind = 'STEP_CURSOR'"])
async def test_a_damaged_row_is_told_as_such_and_hides_no_other_run(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "runs.db"
    store = SqliteCheckpointStore(path)
    for run in ("a", "b", "c"):
        await store.append(run, entry(0))
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"UPDATE cano_checkpoints SET {damage} WHERE workflow_id = 'b'")
    runs = await store.summaries()
    assert [(run.workflow_id, run.damaged) for run in runs] == [("a", False), ("b", True), ("c", False)]
    assert runs[1].kind is None
    await store.close()


async def test_a_resume_is_no_progress_and_is_counted(tmp_path: Path) -> None:
    store, moments = SqliteCheckpointStore(tmp_path / "runs.db"), [MOMENT + timedelta(hours=hour) for hour in range(9)]
    probe = Probe(numbers(1, 9), process=failing)
    for attempt in range(3):
        with clock.replaced(wall=lambda attempt=attempt: moments[attempt]), pytest.raises(TaskExecutionError):
            await flow(store, probe).orchestrate("work", workflow_id="r", if_exists="resume")
    (run,) = await store.summaries()
    assert (run.progressed_at, run.written_at, run.failed_at) == (moments[0], moments[2], moments[2])
    assert (run.resumes, run.windows, run.rows) == (2, 3, 4)
    await store.close()


async def test_moments_are_in_utc(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    await store.append("r", entry(0))
    (run,) = await store.summaries()
    assert run.written_at is not None
    assert run.written_at.utcoffset() == timedelta(0)
    assert abs(run.written_at - clock.wall()) < timedelta(minutes=1)
    await store.close()
