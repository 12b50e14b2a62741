"""Flows with a store: an id for each fire or one for all, unfinished runs, and runs that somebody else has."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cano import (
    Done,
    MemoryCheckpointStore,
    More,
    RunOwnedError,
    SqliteCheckpointStore,
    SteppedTask,
    TaskExecutionError,
    Workflow,
    WorkflowCancelledError,
    WorkflowVersionMismatchError,
)
from cano.scheduler.backoff import Backoff
from cano.scheduler.scheduler import Scheduler
from cano.scheduler.status import Phase
from cano.testing import VirtualTimeLoop
from tests.scheduler.runs import Runs, play

QUIET = Backoff(initial=0, jitter=0)


def test_a_fixed_id_goes_on_with_the_unfinished_run_first_and_never_conflicts() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        store = MemoryCheckpointStore()
        runs = Runs(ValueError(), 0.0, store=store)
        scheduler = Scheduler().manual(
            "job", runs.workflow, "start", workflow_id="only", backoff=QUIET, data=lambda due: loop.time()
        )
        async with scheduler:
            failed = scheduler.trigger("job")
            with pytest.raises(TaskExecutionError):
                await failed
            assert await store.load_run("only")
            await asyncio.sleep(10)
            outcomes = [failed.outcome]
            for _ in range(2):
                fire = scheduler.trigger("job")
                assert await fire == "done"
                outcomes.append(fire.outcome)
            assert await store.load_run("only") == []
        assert [(outcome.kind, outcome.resumed) for outcome in outcomes if outcome is not None] == [
            ("failed", False),
            ("completed", True),
            ("completed", False),
        ]
        assert runs.ids == ["only"] * 3
        assert runs.data == [0.0, 0.0, 10.0], "a resumed run keeps its own data"

    play(main)


def test_a_cancelled_run_of_a_fixed_id_is_paused_and_gone_on_with() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        class Count(SteppedTask[str, int]):
            async def step(self, ctx: Any, cursor: int | None) -> Any:
                steps.append(cursor)
                await asyncio.sleep(1)
                return Done("done") if cursor == 4 else More((cursor or 0) + 1)

        steps: list[int | None] = []
        workflow: Workflow[str] = Workflow(checkpoint_store=MemoryCheckpointStore())
        workflow.register("start", Count()).add_exit_state("done")
        scheduler = Scheduler().manual("job", workflow, "start", workflow_id="only")
        async with scheduler:
            fire = scheduler.trigger("job")
            await asyncio.sleep(2.5)
            fire.cancel()
            with pytest.raises(WorkflowCancelledError):
                await fire
            assert scheduler.status("job").phase is Phase.IDLE
            assert await scheduler.trigger("job") == "done"
        assert steps == [None, 1, 2, 2, 3, 4]

    play(main)


def test_each_fire_has_an_id_of_its_own_and_a_failed_one_stays_to_be_resumed() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        store = MemoryCheckpointStore()
        runs = Runs(ValueError(), 0.0, store=store)
        scheduler = Scheduler().cron("job", runs.workflow, "start", "0 * * * *", backoff=QUIET)
        async with scheduler:
            await asyncio.sleep(2 * 3600 + 1)
        assert runs.ids == ["job-20240101T010000Z", "job-20240101T020000Z"]
        assert await runs.workflow.resume_from("job-20240101T010000Z") == "done"

    play(main)


def test_a_run_that_somebody_else_has_is_skipped_neither_failure_nor_success() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        store = MemoryCheckpointStore()
        runs = Runs(ValueError(), 50.0, 0.0, store=store)
        options: dict[str, Any] = {"workflow_id": "shared", "backoff": Backoff(initial=100, jitter=0, trip_after=2)}
        scheduler = Scheduler().manual("one", runs.workflow, "start", **options)
        scheduler.manual("two", runs.workflow, "start", **options)
        async with scheduler:
            await asyncio.gather(scheduler.trigger("two"), return_exceptions=True)
            scheduler.trigger("one")
            await asyncio.sleep(1)
            for _ in range(3):
                with pytest.raises(RunOwnedError):
                    await scheduler.trigger("two")
            status = scheduler.status("two")
            assert status.last is not None
            assert (status.phase, status.streak, status.skipped, status.last.kind) == (Phase.BACKOFF, 1, 3, "skipped")
            counters = scheduler.counters["two"]
            assert (counters.failed, counters.skipped, sum(counters.buckets)) == (1, 3, 1)
        assert runs.most == 1

    play(main)


def test_a_log_of_another_version_is_a_failure_that_backs_off() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        store = MemoryCheckpointStore()
        old, new = Runs(ValueError(), store=store), Runs(store=store, workflow_version=1)
        scheduler = (
            Scheduler()
            .manual("old", old.workflow, "start", workflow_id="x")
            .manual("new", new.workflow, "start", workflow_id="x")
        )
        async with scheduler:
            await asyncio.gather(scheduler.trigger("old"), return_exceptions=True)
            with pytest.raises(WorkflowVersionMismatchError):
                await scheduler.trigger("new")
            status = scheduler.status("new")
            assert status.last is not None
            assert (status.phase, status.last.category) == (Phase.BACKOFF, "workflow_version_mismatch")
        assert new.count == 0

    play(main)


CHILD = """
import asyncio, sys
from cano import Done, More, SqliteCheckpointStore, SteppedTask, Workflow
from cano.scheduler.scheduler import Scheduler

class Count(SteppedTask):
    async def step(self, ctx, cursor: int | None):
        print("step", cursor, flush=True)
        if len(sys.argv) > 2 and cursor == 3:
            await asyncio.Event().wait()
        return Done("done") if cursor == 5 else More((cursor or 0) + 1)

async def main():
    workflow = Workflow(checkpoint_store=SqliteCheckpointStore(sys.argv[1])).register("start", Count()).add_exit_state("done")
    scheduler = Scheduler().every("job", workflow, "start", 3600, fixed="rate", workflow_id="only")
    async with scheduler:
        while scheduler.status("job").last is None:
            await asyncio.sleep(0.01)
        last = scheduler.status("job").last
        print(last.kind, last.resumed, flush=True)

asyncio.run(main())
"""


def test_a_process_that_is_killed_goes_on_where_it_was_when_it_is_started_again(tmp_path: Path) -> None:
    """BR-102: and the first fire of the new process is that resume."""
    path = str(tmp_path / "runs.db")
    command = [sys.executable, "-W", "error", "-c", CHILD, path]
    with subprocess.Popen([*command, "stick"], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(4)]
            assert lines == ["step None\n", "step 1\n", "step 2\n", "step 3\n"]
            second = Scheduler()
            refused = asyncio.run(_while_it_lives(second, path))
            assert refused == "skipped"
        finally:
            os.kill(child.pid, signal.SIGKILL)
    again = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=30, check=True)
    assert again.stdout.splitlines() == ["step 3", "step 4", "step 5", "completed True"]


async def _while_it_lives(scheduler: Scheduler, path: str) -> str:
    workflow: Workflow[str] = Workflow(checkpoint_store=SqliteCheckpointStore(path))

    async def never(ctx: Any) -> str:
        raise AssertionError

    workflow.register("start", never).add_exit_state("done")
    scheduler.manual("job", workflow, "start", workflow_id="only")
    async with scheduler:
        with pytest.raises(RunOwnedError):
            await scheduler.trigger("job")
        last = scheduler.status("job").last
        assert last is not None
        return last.kind
