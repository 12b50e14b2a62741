"""Every model of task as type checkers see it, right and wrong. Read by mypy (strict) and pyright (strict), and never run.

A wrong next state, a wrong output or cursor type, a missing hook and a wrong use of `ctx.data` are errors in the editor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, auto
from typing import assert_type

from cano import (
    All,
    BatchTask,
    CloseReason,
    CompensatableTask,
    Context,
    Done,
    Err,
    More,
    Ok,
    Pending,
    PollTask,
    Ready,
    RouterTask,
    Split,
    SteppedTask,
    Stop,
    StreamTask,
    SubWorkflow,
    Task,
    TimerTask,
    Workflow,
)


class Step(StrEnum):
    WORK = auto()
    DONE = auto()


class Other(StrEnum):
    ELSEWHERE = auto()


@dataclass
class Totals:
    count: int = 0


# right -----------------------------------------------------------------------------------------------------------------


class Routes(RouterTask[Step]):
    async def route(self, ctx: Context[Totals]) -> Step:
        return Step.WORK if ctx.data.count else Step.DONE


class Waits(TimerTask[Step]):
    async def wait(self, ctx: Context[Totals]) -> float | timedelta | datetime:
        return timedelta(hours=1)

    async def after_wait(self, ctx: Context[Totals]) -> Step:
        return Step.DONE


class Batches(BatchTask[Step, int, str]):
    async def load(self, ctx: Context[Totals]) -> list[int]:
        return [1, 2]

    async def process_item(self, ctx: Context[Totals], item: int) -> str:
        return str(item)

    async def finish(self, ctx: Context[Totals], outcomes: list[Ok[str] | Err]) -> Step:
        for outcome in outcomes:
            if isinstance(outcome, Ok):
                assert_type(outcome.value, str)
            else:
                assert_type(outcome.error, Exception)
        return Step.DONE


class Books(CompensatableTask[Step, int]):
    async def run(self, ctx: Context[Totals]) -> tuple[Step, int]:
        return Step.DONE, 7

    async def compensate(self, ctx: Context[Totals], output: int) -> None:
        assert_type(output, int)


class Streams(StreamTask[Step, int, str, int]):
    async def open(self, ctx: Context[Totals], cursor: int | None) -> AsyncIterator[int]:
        yield 1

    async def process_item(self, ctx: Context[Totals], item: int) -> tuple[str, int]:
        return str(item), item

    async def flush_window(self, ctx: Context[Totals], outputs: list[str]) -> Stop[Step] | None:
        return None

    async def on_close(self, ctx: Context[Totals], reason: CloseReason) -> Step:
        return Step.DONE


async def branch(ctx: Context[Totals]) -> int:
    return ctx.data.count


flow = Workflow[Step, Totals]()
flow.register(Step.WORK, Routes()).register(Step.WORK, Waits()).register(Step.WORK, Batches()).register(Step.WORK, Books())
flow.register(Step.WORK, Split([branch, Routes()], join=All(), then=Step.DONE)).register(Step.WORK, Streams())
flow.register(Step.WORK, SubWorkflow(flow, Step.WORK))


@flow.register(Step.WORK)
async def decorated(ctx: Context[Totals]) -> Step:
    assert_type(ctx.data, Totals)
    return Step.DONE


# wrong -----------------------------------------------------------------------------------------------------------------


class WrongRoute(RouterTask[Step]):
    async def route(self, ctx: Context[Totals]) -> Other:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # wrong, on purpose
        return Other.ELSEWHERE


class WrongReady(PollTask[Step]):
    async def poll(self, ctx: Context[Totals]) -> Ready[Step] | Pending:
        return Ready(Other.ELSEWHERE)  # type: ignore[arg-type]  # pyright: ignore[reportReturnType]  # wrong, on purpose


class WrongCursor(SteppedTask[Step, int]):
    async def step(self, ctx: Context[Totals], cursor: int | None) -> More[int] | Done[Step]:
        return More("three")  # type: ignore[arg-type]  # pyright: ignore[reportReturnType]  # wrong, on purpose


class WrongCursorParameter(SteppedTask[Step, int]):
    async def step(self, ctx: Context[Totals], cursor: str | None) -> More[int] | Done[Step]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # wrong, on purpose
        return Done(Step.DONE)


class WrongPair(Streams):
    async def process_item(self, ctx: Context[Totals], item: int) -> tuple[str, int]:
        return str(item), "a cursor"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]  # wrong, on purpose


class WrongStop(Streams):
    async def flush_window(self, ctx: Context[Totals], outputs: list[str]) -> Stop[Step] | None:
        return Stop(Other.ELSEWHERE)  # type: ignore[arg-type]  # pyright: ignore[reportReturnType]  # wrong, on purpose


class WrongOutput(CompensatableTask[Step, int]):
    async def run(self, ctx: Context[Totals]) -> tuple[Step, int]:
        return Step.DONE, "seven"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]  # wrong, on purpose

    async def compensate(self, ctx: Context[Totals], output: int) -> None: ...


class WrongData(Task[Step]):
    async def run(self, ctx: Context[Totals]) -> Step:
        ctx.data.counter += 1  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]  # wrong, on purpose
        ctx.data.count = "one"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # wrong, on purpose
        return Step.DONE


class Elsewhere(Task[Other]):
    async def run(self, ctx: Context[Totals]) -> Other:
        return Other.ELSEWHERE


class MissesCompensate(CompensatableTask[Step, int]):
    async def run(self, ctx: Context[Totals]) -> tuple[Step, int]:
        return Step.DONE, 7


async def wants_other_data(ctx: Context[str]) -> Step:
    return Step.DONE


MissesCompensate()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]  # wrong, on purpose
flow.register(Step.WORK, Elsewhere())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
flow.register(Step.WORK, wants_other_data)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
flow.register(Step.WORK, Routes)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
flow.register(Step.WORK, Split([branch], join=All(), then=Other.ELSEWHERE))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose


@flow.register(Step.WORK)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
async def decorated_elsewhere(ctx: Context[Totals]) -> Other:
    return Other.ELSEWHERE


@flow.register(Step.WORK)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
async def decorated_with_other_data(ctx: Context[str]) -> Step:
    return Step.DONE


@flow.register(Step.WORK)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
def decorated_and_not_async(ctx: Context[Totals]) -> Step:
    return Step.DONE


async def main() -> None:
    await flow.orchestrate(Step.WORK, data=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
    await flow.orchestrate(Other.ELSEWHERE)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
    await flow.orchestrate(Step.WORK, if_exists="overwrite")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
    flow.orchestrate(Step.WORK)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]  # wrong, on purpose
