"""Write the golden logs: one run of each model of task, stopped in the middle, as this release leaves it in its log.

    python -m tests.golden.write tests/golden/v2.db

They are kept, and `test_golden.py` resumes a copy of every one of them for ever. A file that is there is not written
again: a change of the row format gets a new file, a migration and a decision on record, and the old file stays.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum, auto
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from cano import (
    All,
    BatchTask,
    CloseReason,
    CompensatableTask,
    Context,
    Done,
    Err,
    More,
    NoRetry,
    Ok,
    Pending,
    PollTask,
    Ready,
    RouterTask,
    Split,
    SqliteCheckpointStore,
    SteppedTask,
    Stop,
    StreamTask,
    SubWorkflow,
    Task,
    TaskConfig,
    TimerTask,
    Window,
    Workflow,
)

ONCE = TaskConfig(retry=NoRetry())
FORWARD = datetime(2026, 1, 1, tzinfo=UTC)


class Step(StrEnum):
    """The states of every golden workflow."""

    FIRST = auto()
    SECOND = auto()
    DONE = auto()


class Data(BaseModel):
    """What every golden run keeps."""

    total: int = 0
    price: Decimal = Decimal("1.10")
    notes: list[str] = []


class Broken(BaseException):
    """The process that writes a golden run dies here; never raised by a resume."""


class Gate:
    """Whether the run is being written (and has to break) or resumed."""

    writing = True

    @classmethod
    def stop(cls) -> None:
        """End the run that is being written."""
        if cls.writing:
            raise Broken


class Stream(StreamTask[Step, int, int, tuple[int, Decimal]]):
    """Three windows of two; the third breaks while it is written."""

    window = Window(count=2)

    async def open(self, ctx: Context[Data], cursor: tuple[int, Decimal] | None) -> AsyncIterator[int]:
        for number in range(1 if cursor is None else cursor[0] + 1, 7):
            yield number

    async def process_item(self, ctx: Context[Data], item: int) -> tuple[int, tuple[int, Decimal]]:
        if item == 5:
            Gate.stop()
        return item, (item, Decimal(item) / 10)

    async def flush_window(self, ctx: Context[Data], outputs: list[int]) -> None:
        ctx.data.total += sum(outputs)

    async def on_close(self, ctx: Context[Data], reason: CloseReason) -> Step:
        return Step.DONE


class Decided(Stream):
    """Stops after its first window; what follows breaks."""

    async def flush_window(self, ctx: Context[Data], outputs: list[int]) -> Stop[Step]:
        ctx.data.total += sum(outputs)
        return Stop(Step.SECOND)


class Stepped(SteppedTask[Step, int]):
    """Counts to five in steps; the fourth breaks."""

    config = ONCE

    async def step(self, ctx: Context[Data], cursor: int | None) -> More[int] | Done[Step]:
        number = (cursor or 0) + 1
        if number == 4:
            Gate.stop()
        ctx.data.total += number
        return Done(Step.DONE) if number == 5 else More(number)


class Timer(TimerTask[Step]):
    """Waits until a moment that has passed; what it does then breaks."""

    async def wait(self, ctx: Context[Data]) -> datetime:
        assert Gate.writing, "the deadline is in the log"
        ctx.data.notes.append("asked")
        return FORWARD

    async def after_wait(self, ctx: Context[Data]) -> Step:
        Gate.stop()
        return Step.DONE


class Poll(PollTask[Step]):
    """Pending once, then breaks."""

    async def poll(self, ctx: Context[Data]) -> Ready[Step] | Pending:
        Gate.stop()
        return Ready(Step.DONE)


class Batch(BatchTask[Step, int, int]):
    """Adds up; breaks before it is finished."""

    config = ONCE

    async def load(self, ctx: Context[Data]) -> list[int]:
        return [1, 2, 3]

    async def process_item(self, ctx: Context[Data], item: int) -> int:
        return item

    async def finish(self, ctx: Context[Data], outcomes: list[Ok[int] | Err]) -> Step:
        Gate.stop()
        ctx.data.total += sum(outcome.value for outcome in outcomes if isinstance(outcome, Ok))
        return Step.DONE


class Route(RouterTask[Step]):
    """Leads on, and leaves no row."""

    config = ONCE

    async def route(self, ctx: Context[Data]) -> Step:
        return Step.SECOND


class Reserve(CompensatableTask[Step, dict[str, int]]):
    """A step that can be undone; what follows breaks."""

    config = ONCE

    async def run(self, ctx: Context[Data]) -> tuple[Step, dict[str, int]]:
        assert Gate.writing, "it was completed, and the log says so"
        ctx.data.total += 7
        return Step.SECOND, {"reservation": 7}

    async def compensate(self, ctx: Context[Data], output: dict[str, int]) -> None:
        Gate.stop()
        ctx.data.notes.append(f"undone {output['reservation']}")


class Fail(Task[Step]):
    """Always fails, so that what was done is undone."""

    config = ONCE

    async def run(self, ctx: Context[Data]) -> Step:
        raise ValueError


async def plain(ctx: Context[Data]) -> Step:
    """Breaks while it is written, then ends."""
    Gate.stop()
    ctx.data.notes.append("plain")
    return Step.DONE


async def merge(ctx: Context[Data]) -> Step:
    """Breaks while it is written, then adds up the branches of which the log tells."""
    Gate.stop()
    ctx.data.total += sum(ctx.branches.values)
    return Step.DONE


async def one(ctx: Context[Data]) -> int:
    """A branch."""
    return 1


async def two(ctx: Context[Data]) -> int:
    """A branch."""
    return 2


def golden(store: SqliteCheckpointStore) -> dict[str, Workflow[Step, Data]]:
    """A workflow for each golden run, by the id of the run."""

    def machine(first: Any, second: Any = None) -> Workflow[Step, Data]:
        flow = Workflow[Step, Data](name="golden", checkpoint_store=store, workflow_version=3)
        flow.register(Step.FIRST, first)
        if second is not None:
            flow.register(Step.SECOND, second)
        return flow.add_exit_state(Step.DONE)

    inner = machine(Stream())
    return {
        "plain": machine(Once(plain)),
        "router": machine(Route(), Once(plain)),
        "poll": machine(Poll()),
        "timer": machine(Timer()),
        "batch": machine(Batch()),
        "stepped": machine(Stepped()),
        "stream": machine(Stream()),
        "stop": machine(Decided(), Once(plain)),
        "split": machine(Split([one, two], join=All(), then=Step.SECOND), Once(merge)),
        "saga": machine(Reserve(), Once(plain)),
        "rollback": machine(Reserve(), Fail()),
        "nested": machine(SubWorkflow(inner, Step.FIRST, exits={Step.DONE: Step.DONE}, data=lambda ctx: Data())),
    }


class Once(Task[Step]):
    """A function that is tried once."""

    config = ONCE

    def __init__(self, function: Any) -> None:
        self.function = function
        self.name = function.__name__

    async def run(self, ctx: Context[Data]) -> Step:
        chosen: Step = await self.function(ctx)
        return chosen


async def write(path: Path) -> None:
    """Run every golden workflow until it breaks."""
    Gate.writing = True
    async with SqliteCheckpointStore(path) as store:
        for name, flow in golden(store).items():
            with suppress(Broken):
                await flow.orchestrate(Step.FIRST, workflow_id=name, data=Data())
                raise SystemExit(f"{name} was to break")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    if target.exists():
        raise SystemExit(f"{target.name} is kept as it is; choose another name")
    asyncio.run(write(target))
    for extra in ("-wal", "-shm", "-claims"):
        Path(f"{target}{extra}").unlink(missing_ok=True)
