"""Sagas beside splits and streams, and many at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import (
    All,
    CancellationToken,
    CheckpointStoreError,
    CompensatableTask,
    CompensationFailedError,
    DoNotRetry,
    MemoryCheckpointStore,
    NoRetry,
    RowKind,
    Split,
    SubWorkflow,
    TaskConfig,
    TaskExecutionError,
    Window,
    Workflow,
    WorkflowCancelledError,
    WorkflowError,
)
from tests.sagas import ONCE, Deed, Failing, Plain, begin, raises, saga
from tests.splits import fails, gives
from tests.streams import Probe, numbers, then_silence, turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


async def test_a_split_that_fails_undoes_the_steps_before_it_and_its_branches_contribute_nothing() -> None:
    for store in (None, MemoryCheckpointStore()):
        log: list[str] = []
        built = Workflow[str](checkpoint_store=store).register("a", Deed(log, "A", 1, "split"))
        built.register("split", Split([gives(1), fails(ValueError("x"))], join=All(), then="b"))
        built.register("b", Deed(log, "B", 2, "done")).add_exit_state("done")
        with pytest.raises(WorkflowError) as caught:
            await begin(built)
        assert isinstance(caught.value.__cause__, ValueError)
        assert log == ["+A", "-A 1"]


async def test_a_step_after_a_split_sees_its_results_but_its_compensation_does_not() -> None:
    log, seen = [], []

    def look(ctx: Any, *output: int) -> None:
        seen.append(None if ctx.branches is None else ctx.branches.values)

    built = Workflow[str]().register("a", Deed(log, "A", 1, "split", undo=look))
    built.register("split", Split([gives(1), gives(2)], join=All(), then="b"))
    built.register("b", Deed(log, "B", 2, "again", run=look, undo=look))
    built.register("again", Split([gives(3)], join=All(), then="c")).register("c", Deed(log, "C", 3, "nowhere", undo=look))
    with pytest.raises(WorkflowError):
        await begin(built.add_exit_state("done"))
    assert seen == [[1, 2], None, None, None]
    seen.clear()
    full = Failing(lambda row: row.state == "b" and row.kind is RowKind.STATE_ENTRY)
    built = Workflow[str](checkpoint_store=full).register("a", Deed(log, "A", 1, "split", undo=look))
    built.register("split", Split([gives(1)], join=All(), then="b")).register("b", Deed(log, "B", 2, "done")).add_exit_state(
        "done"
    )
    with pytest.raises(CheckpointStoreError):
        await begin(built)
    assert seen == [None]


@pytest.mark.parametrize("with_store", [False, True])
async def test_a_stream_that_is_cancelled_drains_first_and_then_the_steps_before_it_are_undone(with_store: bool) -> None:
    log, reached, token = [], asyncio.Event(), CancellationToken()
    store = MemoryCheckpointStore() if with_store else None
    stream = Probe(
        then_silence(3, reached),
        window=Window(count=10),
        flush=lambda outputs: log.append(f"flush {outputs}"),
        close=lambda reason: log.append(str(reason.name)),
    )
    built = Workflow[str](checkpoint_store=store).register("a", Deed(log, "A", 1, "stream")).register("stream", stream)
    running = asyncio.create_task(begin(built.add_exit_state("done"), token=token))
    await reached.wait()
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    drained = ["+A", "flush [1, 2, 3]", "CANCELLED"]
    assert log == (drained if with_store else [*drained, "-A 1"])


async def test_a_stream_that_fails_undoes_the_steps_before_it_and_then_its_log_is_gone() -> None:
    log, store = [], MemoryCheckpointStore()
    stream = Probe(numbers(1, 9), flush=lambda outputs: raises(ValueError())() if 5 in outputs else None)
    built = Workflow[str](checkpoint_store=store).register("a", Deed(log, "A", 1, "stream")).register("stream", stream)
    with pytest.raises(TaskExecutionError):
        await begin(built.add_exit_state("done"))
    assert stream.items == [1, 2, 3, 4]
    assert log == ["+A", "-A 1"]
    assert await store.list_runs() == []


async def test_forty_sagas_at_once_that_fail_everywhere_balance_to_zero() -> None:
    store = MemoryCheckpointStore()
    balance: dict[str, int] = {}

    class Move(CompensatableTask[str, int]):
        config = ONCE

        def __init__(self, place: int) -> None:
            self.place = place

        async def run(self, ctx: Any) -> tuple[str, int]:
            await turns(ctx.data["n"] % 3)
            if ctx.data["fails"] == self.place:
                raise DoNotRetry
            balance[ctx.workflow_id] = balance.get(ctx.workflow_id, 0) + self.place
            return f"s{self.place + 1}", self.place

        async def compensate(self, ctx: Any, output: int) -> None:
            await turns(ctx.data["n"] % 2)
            balance[ctx.workflow_id] -= output

    built = Workflow[str](checkpoint_store=store).add_exit_state("s6")
    for place in range(1, 6):
        built.register(f"s{place}", Move(place))
    data = [{"n": n, "fails": n % 7} for n in range(40)]
    ends = await asyncio.gather(
        *(built.orchestrate("s1", workflow_id=f"r{each['n']}", data=each) for each in data), return_exceptions=True
    )
    for each, end in zip(data, ends, strict=True):
        whole = each["fails"] in (0, 6)
        assert (end == "s6") == whole
        assert balance.get(f"r{each['n']}", 0) == (15 if whole else 0)
    assert await store.list_runs() == [f"r{n}" for n in sorted((n for n in range(40) if n % 7 == 1), key=str)]


async def test_a_nested_workflow_that_fails_undoes_its_own_steps_and_then_the_outer_ones_are_undone() -> None:
    log: list[str] = []
    inner = Workflow[str](name="inner").register("x", Deed(log, "X", 10, "y"))
    inner.register("y", Plain(log, "y", "", raises(ValueError()))).add_exit_state("out")
    outer = Workflow[str]().register("a", Deed(log, "A", 1, "in")).register("in", SubWorkflow(inner, "x", exits={"out": "done"}))
    with pytest.raises(TaskExecutionError) as caught:
        await begin(outer.add_exit_state("done"))
    assert log == ["+A", "+X", "y", "-X 10", "-A 1"]
    assert caught.value.path == ("a", "in", "x", "y")


async def test_retries_are_not_for_compensations() -> None:
    begun: list[int] = []

    def fail(ctx: Any, output: int) -> None:
        begun.append(output)
        raise ValueError

    built = saga([], last=raises(ValueError()), hooks={"b": {"undo": fail}})
    built._states["b"].task.config = TaskConfig()
    assert built._states["b"].task.config.retry != NoRetry()
    with pytest.raises(CompensationFailedError):
        await begin(built)
    assert begun == [2]
