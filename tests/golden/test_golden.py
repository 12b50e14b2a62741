"""Logs of earlier releases, and of this one: each golden run is resumed, and ends as if it had never been stopped."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cano import CheckpointStoreError, CompensationFailedError, SqliteCheckpointStore, TaskExecutionError, WorkflowObserver
from cano.recovery.schema import VERSION
from tests.golden.write import Data, Gate, Step, golden

HERE = Path(__file__).parent
LOGS = sorted(HERE.glob("v*.db"))

EXPECTED: dict[str, tuple[int, list[str]]] = {
    "plain": (0, ["plain"]),
    "router": (0, ["plain"]),
    "poll": (0, []),
    "timer": (0, ["asked"]),
    "batch": (6, []),
    "stepped": (15, []),
    "stream": (21, []),
    "stop": (3, ["plain"]),
    "split": (3, []),
    "saga": (7, ["plain"]),
    "nested": (0, []),
}


class Last(WorkflowObserver):
    """Reads the data of the last row before the log is cleared."""

    def __init__(self, path: Path, workflow_id: str) -> None:
        self.path, self.workflow_id = path, workflow_id
        self.data = Data()

    def on_checkpoint(self, event: Any) -> None:
        if event.workflow_id == self.workflow_id:
            with closing(sqlite3.connect(self.path)) as database:
                asked = "SELECT data FROM cano_checkpoints WHERE workflow_id = ? ORDER BY sequence DESC LIMIT 1"
                self.data = Data.model_validate_json(database.execute(asked, (self.workflow_id,)).fetchone()[0])


@pytest.fixture(params=LOGS, ids=lambda path: path.stem)
def log(request: Any, tmp_path: Path) -> Path:
    Gate.writing = False
    return Path(shutil.copy(request.param, tmp_path / "runs.db"))


def test_there_is_a_golden_log_of_the_schema_of_today() -> None:
    assert f"v{VERSION}" in [path.stem for path in LOGS]


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.asyncio
async def test_a_golden_run_is_resumed_and_ends_as_if_it_had_never_been_stopped(log: Path, name: str) -> None:
    async with SqliteCheckpointStore(log) as store:
        flow = golden(store)[name]
        last = Last(log, name)
        flow.observers = (last,)
        assert await flow.resume_from(name) is Step.DONE
        assert (last.data.total, last.data.notes) == EXPECTED[name]
        with pytest.raises(CheckpointStoreError):
            await flow.resume_from(name)


@pytest.mark.asyncio
async def test_a_golden_rollback_goes_on_and_surfaces_its_original_error(log: Path) -> None:
    async with SqliteCheckpointStore(log) as store:
        flow = golden(store)["rollback"]
        with pytest.raises(TaskExecutionError) as caught:
            await flow.resume_from("rollback")
        assert not isinstance(caught.value, CompensationFailedError)
        assert caught.value.state is Step.SECOND
        assert "rollback" not in await store.list_runs()


@pytest.mark.asyncio
async def test_every_golden_run_has_a_test(log: Path) -> None:
    async with SqliteCheckpointStore(log) as store:
        outer = {name for name in await store.list_runs() if "/" not in name}
        assert outer == {*EXPECTED, "rollback"} == set(golden(store))
        assert {run.workflow_id for run in await store.summaries()} == set(await store.list_runs())
