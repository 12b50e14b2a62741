"""What the tests of the command line share: a module of workflows, logs, and `cano` in this process or another."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cano import CheckpointRow, RowKind, SqliteCheckpointStore
from cano.cli import main

ROOT = Path(__file__).parents[2]
LOG = "runs.db"

SHOP = '''
import asyncio, os, time
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from pathlib import Path
from cano import *


class Step(StrEnum):
    READ = auto()
    FAIL = auto()
    UNDO = auto()
    SLEEP = auto()
    DONE = auto()


class Read(StreamTask[Step, int, int, int]):
    """Sums 1 to 5 in windows of two. Without the file `go` it waits after 3 and says so with the file `waiting`."""

    window = Window(count=2)

    async def open(self, ctx, cursor):
        for number in range((cursor or 0) + 1, 6):
            if number == 4 and not Path("go").exists():
                Path("waiting").touch()
                await asyncio.Event().wait()
            yield number

    async def process_item(self, ctx, item):
        return item, item

    async def flush_window(self, ctx, outputs):
        ctx.data = (ctx.data or 0) + sum(outputs)
        Path("sum").write_text(str(ctx.data))

    async def on_close(self, ctx, reason):
        return Step.DONE


class Fail(Task[Step]):
    """Fails unless the file `go` is there."""

    config = TaskConfig(retry=NoRetry())

    async def run(self, ctx):
        if not Path("go").exists():
            raise ValueError("the secret 4711")
        return Step.DONE


class Undo(CompensatableTask[Step, int]):
    async def run(self, ctx):
        return Step.FAIL, 1

    async def compensate(self, ctx, output):
        Path("undone").touch()


async def sleep(ctx):
    await asyncio.sleep(60)
    return Step.DONE


def filled(machine):
    machine.register(Step.READ, Read()).register(Step.FAIL, Fail()).register(Step.UNDO, Undo()).register(Step.SLEEP, sleep)
    return machine.add_exit_state(Step.DONE)


def made(**options):
    return filled(Workflow[Step, int](name="shop", checkpoint_store=SqliteCheckpointStore("runs.db"), **options))


workflow = made()
newer = made(workflow_version=2)
hasty = made(total_timeout=0.05)
storeless = filled(Workflow[Step, int](name="storeless"))


@dataclass(frozen=True)
class Order:
    number: int
    name: str


typed = Workflow[str, Order](name="typed")

@typed.register("start")
async def start(ctx):
    Path("order").write_text(repr(ctx.data))
    return "end"

typed.add_exit_state("end")


def needs_arguments(path):
    return workflow


async def asynchronous():
    return workflow


def broken():
    raise RuntimeError("the secret 4711")


def wrong():
    raise ConfigurationError("this workflow is wrong")


class Holder:
    inside = workflow


number = 7
'''


@dataclass(frozen=True)
class Answer:
    """What a command gave back."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cano = Callable[..., Answer]


class InProcess:
    """`cano` with these arguments, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Answer:
        self._capsys.readouterr()
        code = main(arguments)
        out, err = self._capsys.readouterr()
        return Answer(code, out, err)


def environment() -> dict[str, str]:
    """What a child is given. Its output is buffered: without a buffer Python does not see that a pipe was closed."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": ""}


started: list[subprocess.Popen[str]] = []
"""What `spawn` has started in this test; the fixture `shop` sees to it that none of it outlives the test."""


def spawn(directory: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """`python -m cano` with these arguments, as a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "cano", *arguments],
        cwd=directory,
        env=environment(),
        text=True,
        encoding="utf-8",
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
    )
    started.append(process)
    return process


def finished(process: subprocess.Popen[str]) -> Answer:
    out, err = process.communicate(timeout=30)
    return Answer(process.returncode, out, err)


def await_file(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the child has made a file."""
    patience = time.monotonic() + 20
    while not path.exists():
        assert process.poll() is None, finished(process)
        assert time.monotonic() < patience
        time.sleep(0.01)


def write(path: Path, *rows: tuple[str, CheckpointRow]) -> None:
    """Append rows to a log."""

    async def fill() -> None:
        async with SqliteCheckpointStore(path) as store:
            for workflow_id, row in rows:
                await store.append(workflow_id, row)

    asyncio.run(fill())


def entry(sequence: int, state: str = "READ", **fields: Any) -> CheckpointRow:
    return CheckpointRow(sequence, RowKind.STATE_ENTRY, state, "Read", **fields)


def cursor(sequence: int, **fields: Any) -> CheckpointRow:
    return CheckpointRow(sequence, RowKind.STEP_CURSOR, "READ", "Read", **fields)
