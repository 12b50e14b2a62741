"""A timer whose process is killed while it waits. The deadline is durable: a resume waits only for what is left.

The first process is killed by SIGKILL half-way. The second one is not asked again for how long to wait; the
timer rings when it would have rung anyway.

Prints:
    wait for 1.5 seconds
    the deadline is written down
    killed by SIGKILL
    ring; early: False, more than a second late: False
    -> DONE; the second process waited for less than 1.5 seconds: True
"""

import asyncio
import os
import signal
import tempfile
import time
from enum import StrEnum, auto
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from cano import Context, SqliteCheckpointStore, TimerTask, Workflow, WorkflowObserver
from cano.observer import Checkpointed

say = partial(print, flush=True)  # at once: what is buffered dies with the process

SECONDS = 1.5


class Step(StrEnum):
    COOL_DOWN = auto()
    DONE = auto()


class CoolDown(TimerTask[Step]):
    async def wait(self, ctx: Context[float]) -> float:
        say(f"wait for {SECONDS} seconds")
        ctx.data = time.time()  # written down with the deadline
        return SECONDS

    async def after_wait(self, ctx: Context[float]) -> Step:
        late = time.time() - ctx.data - SECONDS
        say(f"ring; early: {late < 0}, more than a second late: {late > 1}")
        return Step.DONE


class Killer(WorkflowObserver):
    """Kills its own process half-way through the wait."""

    def on_checkpoint(self, event: Checkpointed) -> None:
        if event.kind == "STEP_CURSOR":  # the deadline is durable
            say("the deadline is written down")
            asyncio.get_running_loop().call_later(SECONDS / 2, os.kill, os.getpid(), signal.SIGKILL)


def new_workflow(database: Path, *observers: WorkflowObserver) -> Workflow[Step, float]:
    workflow = Workflow[Step, float](checkpoint_store=SqliteCheckpointStore(database), observers=observers)
    return workflow.register(Step.COOL_DOWN, CoolDown()).add_exit_state(Step.DONE)


def first_life(database: Path) -> None:
    asyncio.run(new_workflow(database, Killer()).orchestrate(Step.COOL_DOWN, workflow_id="oven", data=0.0))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database = Path(directory, "runs.db")
        process = get_context("spawn").Process(target=first_life, args=(database,), daemon=True)
        process.start()
        process.join()
        say("killed by", signal.Signals(-(process.exitcode or 0)).name)
        began = time.monotonic()
        end = asyncio.run(new_workflow(database).resume_from("oven"))
        say(f"-> {end.name}; the second process waited for less than {SECONDS} seconds: {time.monotonic() - began < SECONDS}")


if __name__ == "__main__":
    main()
