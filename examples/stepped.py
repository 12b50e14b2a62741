"""A task in steps, killed with `kill -9` in mid-step, goes on with the step it was in.

`step` gets the cursor that the step before returned with `More`, and `ctx.data` as that step left it: both
are durable in one row before the next step begins. A step that fails is tried again alone.

Prints:
    migrate
      users 1 to 10, attempt 1
      users 11 to 20, attempt 1
      users 11 to 20, attempt 2
      users 21 to 25, attempt 1
      orders 1 to 10, attempt 1
    killed by SIGKILL
    resume
      orders 1 to 10, attempt 1
      orders 11 to 18, attempt 1
      43 rows in all
    -> DONE
"""

import asyncio
import os
import signal
import tempfile
from dataclasses import dataclass
from enum import StrEnum, auto
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from cano import Context, Done, FixedRetry, More, SqliteCheckpointStore, SteppedTask, TaskConfig, Workflow

say = partial(print, flush=True)  # at once: what is buffered dies with the process

ROWS = {"users": 25, "orders": 18}


class Step(StrEnum):
    MIGRATE = auto()
    DONE = auto()


@dataclass(frozen=True)
class Place:
    """How far the migration is: this table, up to this row."""

    table: str
    row: int


class Migrate(SteppedTask[Step, Place]):
    config = TaskConfig(retry=FixedRetry(retries=3, delay=0.01))

    def __init__(self, dies: bool) -> None:
        self.dies = dies

    async def step(self, ctx: Context[int], cursor: Place | None) -> More[Place] | Done[Step]:
        place = cursor or Place("users", 0)
        until = min(place.row + 10, ROWS[place.table])
        say(f"  {place.table} {place.row + 1} to {until}, attempt {ctx.attempt}")
        ctx.data += until - place.row
        if place == Place("users", 10) and ctx.attempt == 1:
            raise ConnectionError  # ctx.data is taken back to what it was
        if place == Place("orders", 0) and self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if until < ROWS[place.table]:
            return More(Place(place.table, until))
        if place.table == "users":
            return More(Place("orders", 0))
        say(f"  {ctx.data} rows in all")
        return Done(Step.DONE)


def new_workflow(database: Path, dies: bool) -> Workflow[Step, int]:
    workflow = Workflow[Step, int](checkpoint_store=SqliteCheckpointStore(database))
    return workflow.register(Step.MIGRATE, Migrate(dies)).add_exit_state(Step.DONE)


def first_life(database: Path) -> None:
    asyncio.run(new_workflow(database, dies=True).orchestrate(Step.MIGRATE, workflow_id="migration", data=0))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory, "runs.db")
        say("migrate")
        process = get_context("spawn").Process(target=first_life, args=(database,), daemon=True)
        process.start()
        process.join()
        say("killed by", signal.Signals(-(process.exitcode or 0)).name)
        say("resume")
        end = asyncio.run(new_workflow(database, dies=False).resume_from("migration"))
        say("->", end.name)


if __name__ == "__main__":
    main()
