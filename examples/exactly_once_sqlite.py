"""Exactly once: what a window writes and the cursor behind it are committed together, or not at all.

`transactional = True` runs `flush_window` inside the store's own transaction, `ctx.transaction`. Here the
process dies at the worst moment, when the second window's payments are written and the cursor is not.
Without a transaction they would be booked twice. Nothing in the table itself prevents that: it has no key.

Prints:
    open at the beginning
      book payments [1, 2, 3]
      book payments [4, 5, 6]
      die before the commit
    in the table: [1, 2, 3]
    open after cursor 3
      book payments [4, 5, 6]
      book payments [7, 8, 9]
      book payments [10]
    -> DONE; in the table: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
"""

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from enum import StrEnum, auto
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from cano import CloseReason, Context, SqliteCheckpointStore, StreamTask, Window, Workflow

say = partial(print, flush=True)  # at once: what is buffered dies with the process


class Step(StrEnum):
    BOOK = auto()
    DONE = auto()


class Book(StreamTask[Step, int, int, int]):
    window = Window(count=3)
    transactional = True

    def __init__(self, dies_in_window: int | None = None) -> None:
        self.dies_in_window = dies_in_window
        self.windows = 0

    def open(self, ctx: Context[None], cursor: int | None) -> Iterator[int]:
        say("open at the beginning" if cursor is None else f"open after cursor {cursor}")
        return iter(range((cursor or 0) + 1, 11))

    async def process_item(self, ctx: Context[None], item: int) -> tuple[int, int]:
        return item, item

    async def flush_window(self, ctx: Context[None], outputs: list[int]) -> None:
        say(f"  book payments {outputs}")
        rows = [(payment,) for payment in outputs]
        await ctx.transaction.executemany("INSERT INTO booked VALUES (?)", rows)
        self.windows += 1
        if self.windows == self.dies_in_window:
            say("  die before the commit")
            os._exit(1)

    async def on_close(self, ctx: Context[None], reason: CloseReason) -> Step:
        return Step.DONE


def new_workflow(database: Path, task: Book) -> Workflow[Step]:
    workflow = Workflow[Step](checkpoint_store=SqliteCheckpointStore(database))
    return workflow.register(Step.BOOK, task).add_exit_state(Step.DONE)


def first_life(database: Path) -> None:
    workflow = new_workflow(database, Book(dies_in_window=2))
    asyncio.run(workflow.orchestrate(Step.BOOK, workflow_id="payments"))


def booked(database: Path) -> list[int]:
    with closing(sqlite3.connect(database)) as connection:
        return [payment for (payment,) in connection.execute("SELECT payment FROM booked ORDER BY payment")]


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory, "bank.db")  # one file for the bank's table and the log
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE booked (payment INTEGER)")
        process = get_context("spawn").Process(target=first_life, args=(database,), daemon=True)
        process.start()
        process.join()
        say(f"in the table: {booked(database)}")
        end = asyncio.run(new_workflow(database, Book()).resume_from("payments"))
        say(f"-> {end.name}; in the table: {booked(database)}")


if __name__ == "__main__":
    main()
