"""A stream is killed in mid-window, with `kill -9`, and goes on where its last window was committed.

The process dies while it works on item 5. Items 1 to 3 are behind the cursor and never come again. Item 4
had been processed, but its window had not been flushed, so it is processed again. `ctx.data` is committed
together with the cursor, so the sum is right: each number is in it once.

Prints:
    open at the beginning
      process 1
      process 2
      process 3
      flush [1, 2, 3] so the sum is 6
      process 4
    killed by SIGKILL
    open after cursor 3
      process 4
      process 5
      process 6
      flush [4, 5, 6] so the sum is 21
      process 7
      process 8
      flush [7, 8] so the sum is 36
    -> DONE
"""

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from enum import StrEnum, auto
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from cano import CloseReason, Context, SqliteCheckpointStore, StreamTask, Window, Workflow

say = partial(print, flush=True)  # at once: what is buffered dies with the process


class Step(StrEnum):
    ADD_UP = auto()
    DONE = auto()


class AddUp(StreamTask[Step, int, int, int]):
    window = Window(count=3)

    def __init__(self, dies_at: int | None) -> None:
        self.dies_at = dies_at

    def open(self, ctx: Context[int], cursor: int | None) -> Iterator[int]:
        say("open", "at the beginning" if cursor is None else f"after cursor {cursor}")
        return iter(range((cursor or 0) + 1, 9))

    async def process_item(self, ctx: Context[int], item: int) -> tuple[int, int]:
        if item == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        say("  process", item)
        return item, item

    async def flush_window(self, ctx: Context[int], outputs: list[int]) -> None:
        ctx.data += sum(outputs)
        say("  flush", outputs, "so the sum is", ctx.data)

    async def on_close(self, ctx: Context[int], reason: CloseReason) -> Step:
        return Step.DONE


def new_workflow(database: Path, dies_at: int | None) -> Workflow[Step, int]:
    workflow = Workflow[Step, int](checkpoint_store=SqliteCheckpointStore(database))
    return workflow.register(Step.ADD_UP, AddUp(dies_at)).add_exit_state(Step.DONE)


def first_life(database: Path) -> None:
    workflow = new_workflow(database, dies_at=5)
    asyncio.run(workflow.orchestrate(Step.ADD_UP, workflow_id="sum-1", data=0))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory, "runs.db")
        process = get_context("spawn").Process(target=first_life, args=(database,), daemon=True)
        process.start()
        process.join()
        say("killed by", signal.Signals(-(process.exitcode or 0)).name)
        end = asyncio.run(new_workflow(database, dies_at=None).resume_from("sum-1"))
        say("->", end.name)


if __name__ == "__main__":
    main()
