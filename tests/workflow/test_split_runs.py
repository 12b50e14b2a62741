"""Splits in a run: isolated branches, stops at any moment, what the log keeps, and what is refused."""

from __future__ import annotations

import asyncio
import contextvars
import random
from typing import Any

import pytest

from cano import (
    All,
    AnyOf,
    CancellationToken,
    CompensatableTask,
    ConfigurationError,
    FixedRetry,
    MemoryCheckpointStore,
    PartialTimeout,
    RouterTask,
    Split,
    SteppedTask,
    StreamTask,
    TaskConfig,
    TaskExecutionError,
    TimerTask,
    Workflow,
    WorkflowCancelledError,
    WorkflowObserver,
)
from cano.testing import RecordingObserver
from tests.models import stopped
from tests.splits import Branch, Hanging, fails, flow, gives, results, tasks
from tests.streams import turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


# -- isolation ----------------------------------------------------------------------------------------------------------

tag: contextvars.ContextVar[str] = contextvars.ContextVar("tag", default="unset")


async def test_branches_see_the_callers_context_variables_and_keep_their_own_changes() -> None:
    """BR-131."""

    async def branch(ctx: Any) -> str:
        before = tag.get()
        tag.set(f"{before}:{ctx.task}")
        await turns()
        return f"{before} {tag.get()}"

    async def one(name: str) -> None:
        tag.set(name)
        found = await results([Branch(branch, "b"), Branch(branch, "b")], All())
        assert found.values == [f"{name} {name}:b[0]", f"{name} {name}:b[1]"]
        assert tag.get() == name

    await asyncio.gather(*(one(f"run{n}") for n in range(5)))
    assert tag.get() == "unset"


async def test_each_branch_works_on_its_own_copy_of_the_data_which_is_dropped() -> None:
    seen: list[Any] = []

    async def branch(ctx: Any) -> int:
        ctx.data["list"].append(ctx.task)
        ctx.data["new"] = ctx.task
        await turns()
        return len(ctx.data["list"])

    def twice(ctx: Any) -> int:
        ctx.data["list"].append("tried")
        if ctx.attempt == 1:
            raise ValueError
        return len(ctx.data["list"])

    async def join(ctx: Any) -> str:
        seen.append((ctx.branches.values, ctx.data))
        return "done"

    split = Split([branch, branch, Branch(twice, config=TaskConfig(retry=FixedRetry(1, 0)))], join=All(), then="join")
    built = Workflow[str]().register("split", split).register("join", join).add_exit_state("done")
    await built.orchestrate("split", data={"list": ["first"]})
    assert seen == [([2, 2, 2], {"list": ["first"]})]


async def test_one_workflow_with_a_split_serves_many_runs_at_once() -> None:
    """BR-132."""
    seen: list[Any] = []

    async def branch(ctx: Any) -> int:
        await turns(random.randint(0, 5))
        ctx.data["number"] += 1
        return ctx.data["number"]

    async def join(ctx: Any) -> str:
        seen.append((ctx.data["number"], ctx.branches.values))
        return "done"

    split = Split([branch] * 3, join=All(), then="join", max_concurrency=2)
    built = Workflow[str]().register("split", split).register("join", join).add_exit_state("done")
    await asyncio.gather(*(built.orchestrate("split", data={"number": number}) for number in range(50)))
    assert sorted(seen) == [(number, [number + 1] * 3) for number in range(50)]


# -- stopping -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["token", "total timeout", "task.cancel()"])
async def test_a_stop_puts_every_branch_away_and_each_that_started_is_told_as_failed(how: str) -> None:
    hanging, told, token = Hanging(), RecordingObserver(), CancellationToken()
    branches = [gives(1, "quick"), *(hanging.branch() for _ in range(4))]
    split = Split(branches, join=All(), then="join", max_concurrency=3)
    built = flow(split, observers=[told], total_timeout=0.05 if how == "total timeout" else None)
    running = asyncio.create_task(built.orchestrate("split", token=token))
    await hanging.at_work.wait()
    await turns(10)
    await stopped(how, running, token)
    assert hanging.begun == hanging.ended == 3
    assert tasks(told, "success") == ["quick[0]"]
    assert tasks(told, "failure") == ["hangs[1]", "hangs[2]", "hangs[3]", "split"]
    assert len(tasks(told, "start")) == 5


@pytest.mark.parametrize("join", [All(), PartialTimeout()])
async def test_a_stop_in_the_instant_of_the_decision_leaves_nobody_behind(join: Any) -> None:
    for delay in range(25):
        token, hanging = CancellationToken(), Hanging()

        async def some(ctx: Any) -> int:
            await turns(6)
            return 1

        split = Split(
            [Branch(some), hanging.branch()], join=join if isinstance(join, PartialTimeout) else AnyOf(), then="join", timeout=60
        )
        running = asyncio.create_task(flow(split).orchestrate("split", token=token))
        await turns(delay)
        token.cancel()
        try:
            assert await asyncio.wait_for(running, 5) == "done"
        except WorkflowCancelledError:
            pass
        assert hanging.begun == hanging.ended


async def test_an_aborted_drain_cuts_a_branch_whose_clean_up_hangs() -> None:
    began, cleaning, cut = asyncio.Event(), asyncio.Event(), []

    async def clings(ctx: Any) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cut.append("cut")
                raise

    for how in ("second cancel", "drain_timeout"):
        began.clear()
        cleaning.clear()
        built = flow(Split([Branch(clings)], join=All(), then="join"), drain_timeout=0.05 if how == "drain_timeout" else 60)
        running = asyncio.create_task(built.orchestrate("split"))
        await began.wait()
        running.cancel()
        await cleaning.wait()
        if how == "second cancel":
            await turns()
            assert not running.done()
            running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(running, 5)
    assert cut == ["cut", "cut"]


async def test_a_first_stop_while_losers_clean_up_does_not_cut_them() -> None:
    cleaning, gate, ended, token = asyncio.Event(), asyncio.Event(), [], CancellationToken()
    at_work = asyncio.Event()

    async def loser(ctx: Any) -> None:
        at_work.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await gate.wait()
            ended.append("clean")

    async def winner(ctx: Any) -> None:
        await at_work.wait()

    running = asyncio.create_task(
        flow(Split([Branch(loser), Branch(winner)], join=AnyOf(), then="join")).orchestrate("split", token=token)
    )
    await cleaning.wait()
    token.cancel()
    await turns()
    gate.set()
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(running, 5)
    assert ended == ["clean"]


# -- the log ------------------------------------------------------------------------------------------------------------


async def test_a_resume_of_the_state_that_follows_finds_the_results_and_runs_no_branch_again() -> None:
    store, ran, seen = MemoryCheckpointStore(), [], []
    working = False

    def branch(ctx: Any) -> Any:
        ran.append(ctx.task)
        return {"n": [1, 2**80 + 1, None, "é", 1.5], "deep": _nested(400)}

    async def join(ctx: Any) -> str:
        seen.append(ctx.branches)
        if not working:
            raise KeyboardInterrupt
        return "done"

    split = Split(
        [Branch(branch), fails(ValueError("x"), "bad"), Hanging().branch()], join=PartialTimeout(), then="join", timeout=0.05
    )
    built = Workflow[str](checkpoint_store=store).register("split", split).register("join", join).add_exit_state("done")
    with pytest.raises(KeyboardInterrupt):
        await built.orchestrate("split", workflow_id="r")
    rows = await store.load_run("r")
    assert [(row.state, row.blob is not None) for row in rows] == [("split", False), ("join", True)]
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            await built.resume_from("r")
    working = True
    assert await built.resume_from("r") == "done"
    assert ran == ["branch[0]"]
    for found in seen:
        assert found.values == seen[0].values
        assert [result.name for result in found] == ["branch[0]", "bad[1]", "hangs[2]"]
        assert [result.cancelled for result in found] == [False, False, True]
        assert found["bad[1]"].error.message == seen[0]["bad[1]"].error.message
    assert await store.list_runs() == []


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


async def test_a_resume_in_the_split_runs_every_branch_again() -> None:
    store, ran, token = MemoryCheckpointStore(), [], CancellationToken()

    def branch(ctx: Any) -> int:
        ran.append(ctx.task)
        return 1

    hanging, seen = Hanging(), []
    running = asyncio.create_task(
        flow(Split([Branch(branch), hanging.branch()], join=All(), then="join"), store=store).orchestrate(
            "split", workflow_id="r", token=token
        )
    )
    await hanging.at_work.wait()
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    again = flow(Split([Branch(branch), Branch(branch)], join=All(), then="join"), seen, store)
    assert await again.resume_from("r") == "done"
    assert ran == ["branch[0]", "branch[0]", "branch[1]"]
    assert seen[0].values == [1, 1]


@pytest.mark.parametrize("value", [{1, 2}, object(), (1, 2), float("nan"), {1: 2}, b"x", "\ud800"])
async def test_with_a_store_a_value_that_cannot_be_kept_is_refused_in_the_split_by_the_name_of_its_branch(value: Any) -> None:
    store, entered = MemoryCheckpointStore(), []

    class Watching(WorkflowObserver):
        def on_state_enter(self, event: Any) -> None:
            entered.append(event.state)

    split = Split([gives(1), gives(value, "odd")], join=All(), then="join")
    with pytest.raises(TaskExecutionError, match=r"odd\[1\].*JSON-native") as caught:
        await flow(split, store=store, observers=[Watching()]).orchestrate("split", workflow_id="r")
    assert caught.value.state == "split"
    assert entered == ["split"]
    assert type(value).__name__ in caught.value.message
    assert [row.state for row in await store.load_run("r")] == ["split"]
    assert (await results([gives(value)], All())).values == [value] or value != value


async def test_where_no_row_would_hold_them_a_store_refuses_no_values() -> None:
    class Route(RouterTask[str]):
        async def route(self, ctx: Any) -> str:
            assert ctx.branches.values == [{1}]
            return "done"

    for then in ("route", "done"):
        built = Workflow[str](checkpoint_store=MemoryCheckpointStore()).register("route", Route())
        built.register("split", Split([gives({1})], join=All(), then=then)).add_exit_state("done")
        assert await built.orchestrate("split", workflow_id="r") == "done"


async def test_a_split_and_its_branches_write_one_row() -> None:
    class Watching(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: Any) -> None:
            rows.append((row.sequence, row.state, row.task))
            await super().append(workflow_id, row)

    rows: list[Any] = []
    await flow(Split([gives(n) for n in range(3)], join=All(), then="join"), store=Watching()).orchestrate(
        "split", workflow_id="r"
    )
    assert rows == [(0, "split", "split"), (1, "join", "join"), (2, "done", "")]


# -- what is refused ----------------------------------------------------------------------------------------------------


class Compensated(CompensatableTask[str, int]):
    async def run(self, ctx: Any) -> tuple[str, int]: ...  # type: ignore[empty-body]  # it never runs

    async def compensate(self, ctx: Any, output: int) -> None: ...


class Stepped(SteppedTask[str, int]):
    async def step(self, ctx: Any, cursor: Any) -> Any: ...


class Timer(TimerTask[str]):
    async def wait(self, ctx: Any) -> Any: ...

    async def after_wait(self, ctx: Any) -> Any: ...


class Stream(StreamTask[str, int, int, int]):
    def open(self, ctx: Any, cursor: Any) -> Any: ...

    def process_item(self, ctx: Any, item: Any) -> Any: ...

    def flush_window(self, ctx: Any, outputs: Any) -> Any: ...

    def on_close(self, ctx: Any, reason: Any) -> Any: ...


@pytest.mark.parametrize("task", [Compensated(), Stepped(), Timer(), Stream(), Split([], join=All(), then="join")])
async def test_a_task_that_writes_rows_of_its_own_cannot_be_a_branch(task: Any) -> None:
    with pytest.raises(ConfigurationError, match="branch 1: a .* cannot be a branch"):
        Workflow[str]().register("split", Split([gives(1), task], join=All(), then="join"))


async def test_other_problems_of_a_split_are_reported_before_anything_runs() -> None:
    with pytest.raises(ConfigurationError, match="must be an iterable of branches, not a Branch"):
        Split(gives(1), join=All(), then="join")  # type: ignore[arg-type]  # wrong, on purpose
    with pytest.raises(ConfigurationError, match="branch 0: a int is no task"):
        Workflow[str]().register("split", Split([1], join=All(), then="join"))
    with pytest.raises(ConfigurationError, match="not the class"):
        Workflow[str]().register("split", Split([Compensated], join=All(), then="join"))
    with pytest.raises(ConfigurationError, match="state must be"):
        Workflow[Any]().register("split", Split([], join=All(), then=3))
    nowhere = Workflow[str]().register("split", Split([gives(1)], join=All(), then="nowhere")).add_exit_state("done")
    with pytest.raises(ConfigurationError, match="neither registered nor an exit state"):
        await nowhere.orchestrate("split")
