"""Sagas and all that goes with them, with a crash at every durable write and under kill -9."""

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
    All,
    CheckpointRow,
    Done,
    MemoryCheckpointStore,
    More,
    RowKind,
    Split,
    SteppedTask,
    TaskExecutionError,
    Window,
    Workflow,
)
from cano.testing import Crashed
from tests.models import dying
from tests.sagas import ONCE, Deed, Plain, raises
from tests.splits import Branch
from tests.streams import Probe, numbers

# -- a crash at every append of a workflow of many models ---------------------------------------------------------------


class Steps(SteppedTask[str, int]):
    """Three steps, each written down when it is done."""

    config = ONCE

    def __init__(self, log: list[str]) -> None:
        self.log = log

    async def step(self, ctx: Any, cursor: int | None) -> More[int] | Done[str]:
        number = (cursor or 0) + 1
        if number > 3:
            return Done("stream")
        self.log.append(f"step {number}")
        ctx.data["steps"] += 1
        return More(number)


def many(log: list[str], store: Any, last: Any = None) -> Workflow[str]:
    """Two sagas' steps round a split, a stepped task and a stream."""

    async def join(ctx: Any) -> str:
        log.append(f"join {ctx.branches.values}")
        ctx.data["joined"] = ctx.branches.values
        return "steps"

    def branch(ctx: Any) -> str:
        log.append(ctx.task)
        return str(ctx.task)

    def flush(outputs: list[int]) -> None:
        log.extend(f"item {item}" for item in outputs)

    def count(ctx: Any) -> None:
        ctx.data["deeds"] += 1

    def check(ctx: Any) -> Any:
        log.append(f"data {ctx.data}")
        return None if last is None else last(ctx)

    built = Workflow[str](checkpoint_store=store)
    built.register("a", Deed(log, "A", 1, "fork", run=count))
    built.register("fork", Split([Branch(branch, "x"), Branch(branch, "y")], join=All(), then="join"))
    built.register("join", join).register("steps", Steps(log))
    built.register("stream", Probe(numbers(1, 5), window=Window(count=2), flush=flush, close=lambda reason: "b"))
    built.register("b", Deed(log, "B", 2, "last", run=count)).register("last", Plain(log, "last", "done", check))
    return built.add_exit_state("done")


DATA = {"steps": 0, "deeds": 0, "joined": None}
TOTAL = {"steps": 3, "deeds": 2, "joined": ["x[0]", "y[1]"]}


def appends(last: Any = None) -> int:
    """How many rows the whole of it writes."""
    written: list[CheckpointRow] = []

    class Counting(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            written.append(row)
            await super().append(workflow_id, row)

    try:
        asyncio.run(many([], Counting(), last).orchestrate("a", workflow_id="r", data=DATA))
    except TaskExecutionError:
        pass
    return len(written)


async def until_it_ends(store: Any, build: Any) -> None:
    """Start the run, and resume it as often as it crashes."""
    for _ in range(50):
        try:
            if await store.list_runs():
                await build().resume_from("r")
            else:
                await build().orchestrate("a", workflow_id="r", data=DATA)
            return
        except Crashed:
            continue
    pytest.fail("it never ended")


def often(log: list[str], entry: str) -> int:
    return sum(told == entry for told in log)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, appends() + 1))
def test_a_crash_at_any_append_of_many_models_in_a_row_loses_nothing_and_repeats_only_what_was_not_on_record(
    at: int, after: bool
) -> None:
    log: list[str] = []
    store = dying(at, after=after)
    asyncio.run(until_it_ends(store, lambda: many(log, store)))
    once = ["+A", "+B", *(f"step {n}" for n in (1, 2, 3)), *(f"item {n}" for n in range(1, 6)), "x[0]", "y[1]", "last"]
    repeated = [entry for entry in once if often(log, entry) > 1]
    assert all(often(log, entry) >= 1 for entry in once)
    assert all(often(log, entry) <= 2 for entry in once)
    assert len(repeated) <= (0 if after else 2)  # what one append stands for: a step, a window of two, two branches
    assert {entry for entry in log if entry.startswith("data")} == {f"data {TOTAL}"}
    assert {entry for entry in log if entry.startswith("join")} == {"join ['x[0]', 'y[1]']"}
    assert not [entry for entry in log if entry.startswith("-")]
    assert asyncio.run(store.list_runs()) == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, appends(raises(ValueError())) + 1))
def test_a_crash_at_any_append_of_such_a_run_that_fails_in_the_end_undoes_each_step_and_never_goes_forward_again(
    at: int, after: bool
) -> None:
    log: list[str] = []
    store = dying(at, after=after)
    with pytest.raises(TaskExecutionError, match="run of last raised ValueError") as caught:
        asyncio.run(until_it_ends(store, lambda: many(log, store, raises(ValueError()))))
    assert caught.value.state == "last"
    assert caught.value.path == ("a", "fork", "join", "steps", "stream", "b", "last")
    undoing = log.index("-B 2")
    assert often(log[:undoing], "+A") in (1, 2)
    assert not [entry for entry in log[undoing:] if not entry.startswith("-")]
    assert sorted(set(log[undoing:])) == ["-A 1", "-B 2"]
    assert len(log[undoing:]) <= (2 if after else 3)
    assert log[undoing:].index("-B 2") < log[undoing:].index("-A 1")
    assert asyncio.run(store.list_runs()) == []


# -- kill -9 ------------------------------------------------------------------------------------------------------------

CHILD = """
import asyncio, sys
from cano import SqliteCheckpointStore, TaskExecutionError
from tests.sagas import raises, saga

path, sink, hang = sys.argv[1], open(sys.argv[2], "a", buffering=1), sys.argv[3]

class Told(list):
    def append(self, entry):
        sink.write(entry + chr(10))

async def main():
    store = SqliteCheckpointStore(path)

    async def stop(*arguments):
        print("at", arguments[0].task, flush=True)
        await asyncio.Event().wait()

    hooks = {} if hang == "none" else {hang.lower(): {"undo": stop}}
    built = saga(Told(), store, last=raises(ValueError()), hooks=hooks)
    try:
        if await store.list_runs():
            await built.resume_from("r")
        else:
            await built.orchestrate("a", workflow_id="r")
    except TaskExecutionError as error:
        print("ended", error.message, error.state, *error.path, error.category, flush=True)
    print("left", await store.list_runs(), flush=True)

asyncio.run(main())
"""


def child(tmp_path: Path, hang: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(tmp_path / "runs.db"), str(tmp_path / "sink.txt"), hang]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)


def test_a_rollback_that_is_killed_in_each_compensation_goes_on_in_the_next_process(tmp_path: Path) -> None:
    for victim in ("C", "B", "A"):
        running = child(tmp_path, victim)
        assert running.stdout is not None
        assert running.stdout.readline() == f"at {victim}\n"
        running.send_signal(signal.SIGKILL)
        running.communicate()
    output, _ = child(tmp_path, "none").communicate(timeout=30)
    assert output == "ended run of last raised ValueError last a b c last task_execution\nleft []\n"
    assert (tmp_path / "sink.txt").read_text().split("\n") == ["+A", "+B", "+C", "last", "-C 3", "-B 2", "-A 1", ""]


KILLED = """
import os, signal, sys
from cano import SqliteCheckpointStore

class Killed(SqliteCheckpointStore):
    left = int(sys.argv[4])
    async def append(self, workflow_id, row):
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1
        await super().append(workflow_id, row)
"""


@pytest.mark.parametrize("at", [8, 9, 10])
def test_a_process_killed_between_a_compensation_and_its_row_repeats_that_one_only(tmp_path: Path, at: int) -> None:
    code = KILLED + CHILD.replace("SqliteCheckpointStore(path)", "Killed(path)")
    command = [sys.executable, "-c", code, str(tmp_path / "runs.db"), str(tmp_path / "sink.txt"), "none", str(at)]
    assert subprocess.run(command, check=False, env=os.environ).returncode == -signal.SIGKILL
    output, _ = child(tmp_path, "none").communicate(timeout=30)
    assert output.startswith("ended run of last raised ValueError last a b c last")
    undone = [entry for entry in (tmp_path / "sink.txt").read_text().split("\n") if entry.startswith("-")]
    twice = ["-C 3", "-B 2", "-A 1"][at - 8]
    assert sorted(undone) == sorted(["-C 3", "-B 2", "-A 1", twice])


def test_a_step_whose_process_died_before_its_row_runs_again_and_is_undone_once() -> None:
    log: list[str] = []

    class Dies(MemoryCheckpointStore):
        dead = False

        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            if row.kind is RowKind.COMPENSATION and row.state == "b" and not self.dead:
                self.dead = True
                raise Crashed
            await super().append(workflow_id, row)

    store = Dies()
    with pytest.raises(TaskExecutionError):
        asyncio.run(until_it_ends(store, lambda: many(log, store, raises(ValueError()))))
    assert often(log, "+B") == 2
    assert [entry for entry in log if entry.startswith("-")] == ["-B 2", "-A 1"]
