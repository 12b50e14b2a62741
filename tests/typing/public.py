"""The public API as type checkers see it. Read by mypy (strict) and pyright (strict), and never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from enum import StrEnum, auto
from typing import Literal, assert_type

from cano import (
    CancellationToken,
    CheckpointStore,
    CloseReason,
    Context,
    Done,
    FailFast,
    MemoryCheckpointStore,
    More,
    Pending,
    PollTask,
    Ready,
    Resources,
    RetryOnError,
    SkipAndContinue,
    SqliteCheckpointStore,
    SteppedTask,
    Stop,
    StreamTask,
    Task,
    Window,
    Workflow,
)
from cano.testing import CrashPoint, every_crash_point


class Step(StrEnum):
    INGEST = auto()
    MERGE = auto()
    DONE = auto()


class Totals:
    count: int = 0


class Sink:
    async def write(self, rows: list[str]) -> None: ...


class Ingest(StreamTask[Step, tuple[int, str], str, int]):
    window = Window(count=500, seconds=timedelta(seconds=1))
    on_item_error = SkipAndContinue()

    async def open(self, ctx: Context[Totals], cursor: int | None) -> AsyncIterator[tuple[int, str]]:
        assert_type(cursor, int | None)
        yield 1, "line"

    async def process_item(self, ctx: Context[Totals], item: tuple[int, str]) -> tuple[str, int]:
        assert_type(ctx.data, Totals)
        ctx.data.count += 1
        return item[1], item[0]

    async def flush_window(self, ctx: Context[Totals], outputs: list[str]) -> Stop[Step] | None:
        assert_type(ctx.get("sink", Sink), Sink)
        await ctx.get("sink", Sink).write(outputs)
        return Stop(Step.DONE) if ctx.data.count > 10 else None

    async def on_close(self, ctx: Context[Totals], reason: CloseReason) -> Step:
        return Step.MERGE


class Plain(StreamTask[Step, int, int, int]):
    """Hooks that are no coroutines, and a property for an attribute."""

    on_item_error = RetryOnError(3)

    def __init__(self) -> None:
        self.window = Window(seconds=0.5)

    def open(self, ctx: Context, cursor: int | None) -> Iterable[int]:
        return range(10)

    def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
        return item, item

    def flush_window(self, ctx: Context, outputs: list[int]) -> None:
        return None

    def on_close(self, ctx: Context, reason: CloseReason) -> Step:
        return Step.DONE


class Merge(Task[Step]):
    async def run(self, ctx: Context[Totals]) -> Step:
        return Step.DONE


class Stops(Ingest):
    """A hook may say exactly which states it chooses: those are a diagram's edges."""

    async def flush_window(self, ctx: Context[Totals], outputs: list[str]) -> Stop[Literal[Step.DONE]] | None:
        return Stop(Step.DONE)


class Asks(PollTask[Step]):
    async def poll(self, ctx: Context) -> Ready[Literal[Step.MERGE]] | Pending:
        return Ready(Step.MERGE)


class Steps(SteppedTask[Step, int]):
    async def step(self, ctx: Context, cursor: int | None) -> More[int] | Done[Literal[Step.MERGE, Step.DONE]]:
        return Done(Step.MERGE) if cursor == 3 else More((cursor or 0) + 1)


async def function(ctx: Context[Totals]) -> Literal[Step.DONE]:
    return Step.DONE


async def wrong(ctx: Context[Totals]) -> str:
    return "done"


store: CheckpointStore = SqliteCheckpointStore("runs.db", synchronous="NORMAL")
flow = Workflow[Step, Totals](checkpoint_store=store, resources=Resources(sink=Sink()), total_timeout=timedelta(hours=1))
assert_type(flow.register(Step.INGEST, Ingest()).register(Step.MERGE, Merge()), Workflow[Step, Totals])
flow.register(Step.MERGE, function).add_exit_state(Step.DONE)
untyped = Workflow[Step](checkpoint_store=MemoryCheckpointStore()).register(Step.INGEST, Plain())


@flow.register(Step.MERGE)
async def decorated(ctx: Context[Totals]) -> Step:
    return Step.DONE


async def main() -> None:
    end = await flow.orchestrate(Step.INGEST, workflow_id="a", data=Totals(), token=CancellationToken(), if_exists="resume")
    assert_type(end, Step)
    assert_type(await flow.resume_from("a"), Step)
    assert_type(await decorated(untyped_context()), Step)


def untyped_context() -> Context[Totals]:
    raise RuntimeError


# what has to be an error in the editor ---------------------------------------------------------------------------------


class MissesHooks(StreamTask[Step, int, int, int]):
    async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
        return item, item


MissesHooks()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]  # wrong, on purpose
flow.register("merge", Merge())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
flow.register(Step.MERGE, wrong)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
flow.add_exit_state("done")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
Window(count="five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
SqliteCheckpointStore("runs.db", synchronous="OFF")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # wrong, on purpose
FailFast(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # wrong, on purpose


class WrongOutput(Ingest):
    async def process_item(self, ctx: Context[Totals], item: tuple[int, str]) -> tuple[int, int]:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # wrong, on purpose
        return 1, 1


class WrongState(Task[Step]):
    async def run(self, ctx: Context[Totals]) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]  # wrong, on purpose
        return "done"


# the kit for tests ---------------------------------------------------------------------------------------------------------


def around_a_list(sink: list[int]) -> Workflow[Step]:
    return flow


def around_a_set(sink: set[int]) -> Workflow[Step]:
    return flow


async def crash_points() -> None:
    assert_type(await every_crash_point(around_a_list, Step.INGEST), list[CrashPoint[list[int]]])
    assert_type(await every_crash_point(around_a_set, Step.INGEST, outside=set[int]), list[CrashPoint[set[int]]])
    assert_type(await every_crash_point(flow, Step.INGEST, between={"after"}), list[CrashPoint[None]])
    assert_type(await every_crash_point(flow, Step.INGEST, outside=list[int]), list[CrashPoint[list[int]]])
    await every_crash_point(around_a_set, Step.INGEST)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]  # it is given a list
    await every_crash_point(flow, Step.INGEST, between="after")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]  # no str
