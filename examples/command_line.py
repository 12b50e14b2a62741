"""Operate a workflow from the command line: `cano` runs it, shows its log, resumes it, and forgets a run.

The workflow is `examples.command_line:workflow`, which a shell would name in the same way. Its source is broken when
it first runs, so the run fails after its first window; then the source is mended, and the run resumed.

Prints:
    $ cano graph examples.command_line:workflow
    stateDiagram-v2
        state "COPY<br/>Copy" as COPY
        state "DONE" as DONE
        COPY --> DONE
        DONE --> [*]
    (exit code 0)
    $ cano run examples.command_line:workflow COPY --id copy-1
    copy-1: failed: task_execution: a read of the source of Copy raised OSError (state COPY, attempt 1) [resumable]
    (exit code 1)
    $ cano show runs.db copy-1 --values
    run copy-1 of copy: COPY, 1 window, progressed 0s ago, last error OSError (task_execution)
    SEQ  KIND         STATE  TASK  VISIT  NEXT  VERSION  BLOB  DATA
    0    STATE_ENTRY  COPY   Copy  0      -     0        -     -
    1    STEP_CURSOR  COPY   Copy  0      -     0        1 B   -
    1 blob: 3
    (exit code 0)
    $ cano resume examples.command_line:workflow copy-1
    copy-1: completed in DONE
    (exit code 0)
    $ cano clear runs.db copy-1 --yes
    cano: no run 'copy-1' in 'runs.db': it was never started, or has completed
    (exit code 5)
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, redirect_stderr
from datetime import UTC, datetime
from enum import StrEnum, auto
from pathlib import Path
from typing import Literal

from cano import CloseReason, Context, SqliteCheckpointStore, StreamTask, Window, Workflow
from cano.cli import main as cano
from cano.clock import replaced

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)  # time stands still, so that a slow machine prints the same ages


class Step(StrEnum):
    COPY = auto()
    DONE = auto()


class Copy(StreamTask[Step, int, int, int]):
    window = Window(count=3)

    def open(self, ctx: Context[None], cursor: int | None) -> Iterator[int]:
        for number in range((cursor or 0) + 1, 8):
            if number == 5 and not Path("mended").exists():
                raise OSError("the source is broken")
            yield number

    async def process_item(self, ctx: Context[None], item: int) -> tuple[int, int]:
        return item, item

    async def flush_window(self, ctx: Context[None], outputs: list[int]) -> None:
        with open("copies.txt", "a") as copies:
            copies.writelines(f"{output}\n" for output in outputs)

    async def on_close(self, ctx: Context[None], reason: CloseReason) -> Literal[Step.DONE]:
        return Step.DONE


def workflow() -> Workflow[Step]:
    machine = Workflow[Step](name="copy", checkpoint_store=SqliteCheckpointStore("runs.db"))
    return machine.register(Step.COPY, Copy()).add_exit_state(Step.DONE)


def shell(*arguments: str) -> None:
    print("$ cano", *arguments, flush=True)
    with redirect_stderr(sys.stdout):
        code = cano(arguments)
    print(f"(exit code {code})", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, chdir(directory), replaced(wall=lambda: NOON):
        shell("graph", "examples.command_line:workflow")
        shell("run", "examples.command_line:workflow", "COPY", "--id", "copy-1")
        shell("show", "runs.db", "copy-1", "--values")
        os.mkdir("mended")
        shell("resume", "examples.command_line:workflow", "copy-1")
        shell("clear", "runs.db", "copy-1", "--yes")


if __name__ == "__main__":
    main()
