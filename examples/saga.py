"""A trip is booked in three steps; the payment fails, and `kill -9` hits in the middle of the rollback.

A step that completed is undone, last first. The log knows what is done and what is undone, so the resume goes
on with the rollback, and never forward. The car's cancellation is on record and not repeated. The hotel's was
not yet, so it comes again: it has to be idempotent. When all is undone, the original error surfaces.

Prints:
      book the flight: number 1
      book the hotel: number 2
      book the car: number 3
      pay
      cancel number 3, the car
      cancel number 2, the hotel
    killed by SIGKILL
      cancel number 2, the hotel
      cancel number 1, the flight
    run of pay raised CardDeclined (state pay, attempt 1); booked: []
"""

import asyncio
import os
import signal
import sqlite3
import tempfile
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from cano import CanoError, CompensatableTask, Context, DoNotRetry, SqliteCheckpointStore, Workflow

say = partial(print, flush=True)  # at once: what is buffered dies with the process

INSERT = "INSERT INTO booking (what) VALUES (?) ON CONFLICT (what) DO UPDATE SET what = what RETURNING number"


class CardDeclined(DoNotRetry): ...


class Book(CompensatableTask[str, int]):
    def __init__(self, agency: Path, what: str, then: str, dies: bool = False) -> None:
        self.agency, self.what, self.then, self.dies = agency, what, then, dies

    async def run(self, ctx: Context[None]) -> tuple[str, int]:
        ((number,),) = ask(self.agency, INSERT, self.what)
        say(f"  book the {self.what}: number {number}")
        return self.then, number  # both become durable in one row

    async def compensate(self, ctx: Context[None], output: int) -> None:
        ask(self.agency, "DELETE FROM booking WHERE number = ?", output)
        say(f"  cancel number {output}, the {self.what}")
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)  # the booking is gone, and the log does not know


async def pay(ctx: Context[None]) -> str:
    say("  pay")
    raise CardDeclined


def ask(agency: Path, statement: str, *values: object) -> list[Any]:
    with closing(sqlite3.connect(agency, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


def new_workflow(agency: Path, dies: bool) -> Workflow[str]:
    workflow = Workflow[str](checkpoint_store=SqliteCheckpointStore(agency.with_name("runs.db")))
    workflow.register("flight", Book(agency, "flight", "hotel"))
    workflow.register("hotel", Book(agency, "hotel", "car", dies))
    workflow.register("car", Book(agency, "car", "pay"))
    return workflow.register("pay", pay).add_exit_state("done")


def first_life(agency: Path) -> None:
    asyncio.run(new_workflow(agency, dies=True).orchestrate("flight", workflow_id="trip"))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        agency = Path(directory, "agency.db")
        ask(agency, "CREATE TABLE booking (number INTEGER PRIMARY KEY, what TEXT UNIQUE)")
        process = get_context("spawn").Process(target=first_life, args=(agency,), daemon=True)
        process.start()
        process.join()
        say(f"killed by {signal.Signals(-(process.exitcode or 0)).name}")
        try:
            asyncio.run(new_workflow(agency, dies=False).resume_from("trip"))
        except CanoError as error:
            say(f"{error}; booked: {ask(agency, 'SELECT what FROM booking')}")


if __name__ == "__main__":
    main()
