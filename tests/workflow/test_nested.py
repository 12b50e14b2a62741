"""Nested workflows: a run inside a run, seen, stopped, failing and resumed as one."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Any

import pytest

from cano import All as AllOf
from cano import (
    AnyOf,
    BatchTask,
    CancellationToken,
    CanoError,
    CloseReason,
    CompensatableTask,
    ConfigurationError,
    Context,
    Done,
    MemoryCheckpointStore,
    More,
    NoRetry,
    Resource,
    RouterTask,
    Split,
    SqliteCheckpointStore,
    SteppedTask,
    StoreError,
    SubWorkflow,
    TaskConfig,
    TaskExecutionError,
    Window,
    Workflow,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowTimeoutError,
)
from cano.testing import Crashed, RecordingObserver
from tests.models import Cancelling, dying, elapsed, stopped, until
from tests.streams import Probe, cursors, numbers, then_silence, turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

HOUR = Window(seconds=3600)


def inner(task: Any, store: Any = None, **options: Any) -> Workflow[str]:
    """A workflow of that one task in state "deep", with the exit states "good" and "bad"."""
    flow = Workflow[str](checkpoint_store=store, name="inner", **options)
    return flow.register("deep", task).add_exit_state("good", "bad")


def outer(sub: Any, store: Any = None, **options: Any) -> Workflow[str]:
    """A workflow of that one task in state "work", with the exit states "done" and "stopped"."""
    flow = Workflow[str](checkpoint_store=store, name="outer", **options)
    return flow.register("work", sub).add_exit_state("done", "stopped")


def nest(task: Any, store: Any = None, data: Any = None, **options: Any) -> SubWorkflow:
    return SubWorkflow(inner(task, store, **options), "deep", exits={"good": "done", "bad": "stopped"}, data=data)


def answers(state: str) -> Any:
    async def task(ctx: Any) -> str:
        return state

    return task


class Steps(SteppedTask[str, int]):
    def __init__(self, last: int = 3, before: Any = None) -> None:
        self.last, self.before = last, before
        self.calls: list[int | None] = []

    async def step(self, ctx: Any, cursor: int | None) -> Any:
        self.calls.append(cursor)
        if self.before is not None:
            await self.before(ctx, cursor)
        reached = cursor or 0
        return Done("good") if reached == self.last else More(reached + 1)


# -- going in and out ---------------------------------------------------------------------------------------------------


async def test_the_outer_run_goes_on_by_the_exit_state_of_the_inner_one() -> None:
    assert await outer(nest(answers("good"))).orchestrate("work") == "done"
    assert await outer(nest(answers("bad"))).orchestrate("work") == "stopped"
    shared = Workflow[str]().register("deep", answers("done")).add_exit_state("done")
    assert await outer(SubWorkflow(shared, "deep")).orchestrate("work") == "done"


async def test_the_inner_run_has_data_and_resources_of_its_own() -> None:
    events: list[str] = []

    class Tool(Resource):
        async def setup(self) -> None:
            events.append("up")

        async def teardown(self) -> None:
            events.append("down")

    async def deep(ctx: Any) -> str:
        events.append("deep")
        assert ctx.data == {"from": 1}
        ctx.data["from"] = 2
        assert isinstance(ctx.get("tool"), Tool)
        return "good"

    async def last(ctx: Any) -> str:
        events.append("last")
        assert ctx.data == {"outer": [1]}
        assert "tool" not in ctx.resources
        return "done"

    def given(ctx: Context[Any]) -> Any:
        return {"from": ctx.data["outer"][0]}

    sub = SubWorkflow(inner(deep, resources={"tool": Tool()}), "deep", exits={"good": "last", "bad": "last"}, data=given)
    await outer(sub).register("last", last).orchestrate("work", data={"outer": [1]})
    assert events == ["up", "deep", "down", "last"]


async def test_observers_of_the_outer_run_see_the_inner_states_and_those_of_the_inner_run_only_theirs() -> None:
    outside, inside, both = RecordingObserver(), RecordingObserver(), RecordingObserver()
    flow = outer(nest(answers("good"), observers=[inside, both]), observers=[outside, both])
    await flow.orchestrate("work", workflow_id="r")
    entered = [(event.workflow, event.state) for event in outside.of("state_enter")]
    assert entered == [("outer", "work"), ("inner", "deep"), ("inner", "good"), ("outer", "done")]
    assert [name for name, event in zip(outside.names, outside.events, strict=True) if event.workflow == "outer"] == [
        *("run_start", "state_enter", "task_start", "task_success", "state_enter", "run_end"),
    ]
    assert {event.workflow for event in inside.events} == {"inner"}
    assert len({event.workflow_id for event in outside.events}) == 2
    assert len(both.events) == len(outside.events)


async def test_nested_workflows_nest() -> None:
    recorder = RecordingObserver()
    innermost = SubWorkflow(inner(answers("good")), "deep")
    middle = Workflow[str](name="middle").register("mid", innermost).add_exit_state("good", "bad")
    sub = SubWorkflow(middle, "mid", exits={"good": "done", "bad": "stopped"})
    assert await outer(sub, observers=[recorder]).orchestrate("work") == "done"
    assert [event.state for event in recorder.of("state_enter")] == ["work", "mid", "deep", "good", "good", "done"]


async def test_what_does_not_fit_is_refused_at_once_and_all_of_it() -> None:
    with pytest.raises(ConfigurationError, match="misses 1 exit states"):
        SubWorkflow(inner(answers("good")), "deep", exits={"good": "done"})
    with pytest.raises(ConfigurationError, match="initial state"):
        SubWorkflow(inner(answers("good")), "nowhere", exits={"good": "done", "bad": "done"})
    with pytest.raises(ConfigurationError, match="needs a Workflow"):
        SubWorkflow(answers("good"), "deep")
    flow = outer(SubWorkflow(inner(answers("good")), "deep", exits={"good": "nowhere", "bad": "done"}))
    flow.register("other", SubWorkflow(inner(answers("good")), "deep"))
    with pytest.raises(ConfigurationError) as caught:
        flow.validate()
    assert caught.value.message.count("neither registered nor an exit state") == 3
    assert "'nowhere'" in caught.value.message


async def test_a_state_of_another_enum_is_not_taken_for_one_of_ours() -> None:
    """BR-47."""

    class Mine(StrEnum):
        WORK = "work"
        DONE = "done"

    class Theirs(StrEnum):
        DEEP = "deep"
        DONE = "done"

    async def deep(ctx: Any) -> Theirs:
        return Theirs.DONE

    theirs = Workflow[Theirs]().register(Theirs.DEEP, deep).add_exit_state(Theirs.DONE)
    flow = Workflow[Mine]().register(Mine.WORK, SubWorkflow(theirs, Theirs.DEEP)).add_exit_state(Mine.DONE)
    with pytest.raises(ConfigurationError, match=r"leads to Theirs\.DONE"):
        await flow.orchestrate(Mine.WORK)


async def test_an_exit_state_added_later_is_missed_before_anything_runs() -> None:
    sub = nest(answers("late"))
    sub.workflow.add_exit_state("late")
    with pytest.raises(ConfigurationError, match="misses the exit state 'late'"):
        await outer(sub).orchestrate("work")


# -- failing ------------------------------------------------------------------------------------------------------------


async def test_an_error_keeps_its_inner_state_and_its_path_leads_through_both() -> None:
    raised = ValueError("x")
    recorder = RecordingObserver()

    async def fails(ctx: Any) -> str:
        raise raised

    fails_once = inner(answers("deeper"))
    fails_once.register("deeper", Failing(raised))
    sub = SubWorkflow(fails_once, "deep", exits={"good": "done", "bad": "stopped"})
    flow = outer(sub, observers=[recorder]).register("first", answers("work"))
    with pytest.raises(TaskExecutionError) as caught:
        await flow.orchestrate("first")
    error = caught.value
    assert error.__cause__ is raised
    assert (error.state, error.path) == ("deeper", ("first", "work", "deep", "deeper"))
    assert [event.error for event in recorder.of("task_failure")] == [error, error]


class Failing(RouterTask[str]):
    config = TaskConfig(retry=NoRetry())

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def route(self, ctx: Any) -> str:
        raise self.error


async def test_a_bad_state_and_an_error_of_ours_come_from_the_inner_run_as_they_are() -> None:
    for task, kind in ((answers("nowhere"), WorkflowError), (Failing(StoreError("no key")), StoreError)):
        with pytest.raises(kind) as caught:
            await outer(nest(task)).orchestrate("work")
        assert (caught.value.state, caught.value.path) == ("deep", ("work", "deep"))


async def test_a_timeout_or_cancel_of_the_inner_run_alone_is_a_failure_of_its_task() -> None:
    """BR-29."""

    async def for_ever(ctx: Any) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(TaskExecutionError) as caught:
        await outer(nest(for_ever, total_timeout=0.02), total_timeout=60).orchestrate("work")
    assert isinstance(caught.value.__cause__, WorkflowTimeoutError)
    assert (caught.value.state, caught.value.path) == ("work", ("work",))

    with pytest.raises(TaskExecutionError) as caught:
        await outer(nest(Failing(WorkflowCancelledError("not this run")))).orchestrate("work")
    assert (caught.value.state, caught.value.path) == ("deep", ("work", "deep"))


async def test_data_that_cannot_be_made_or_stored_fails_the_outer_state() -> None:
    def broken(ctx: Context[Any]) -> Any:
        raise KeyError("secret")

    with pytest.raises(TaskExecutionError, match="inner raised KeyError") as caught:
        await outer(nest(answers("good"), data=broken)).orchestrate("work")
    assert caught.value.state == "work"
    with pytest.raises(ConfigurationError) as refused:
        await outer(nest(answers("good"), data=lambda ctx: {"secret"})).orchestrate("work")
    assert (refused.value.state, refused.value.path) == ("work", ("work",))
    assert "secret" not in str(refused.value)


async def test_a_crash_of_the_inner_run_passes_through_both() -> None:
    recorder = RecordingObserver()
    with pytest.raises(Crashed):
        await outer(nest(Failing(Crashed())), observers=[recorder]).orchestrate("work")
    assert [event.outcome for event in recorder.of("run_end")] == ["crashed", "crashed"]


# -- stopping -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["token", "task.cancel()", "total timeout"])
async def test_a_stop_of_the_outer_run_drains_the_inner_stream(how: str) -> None:
    reached, token = asyncio.Event(), CancellationToken()
    store, inside = MemoryCheckpointStore(), MemoryCheckpointStore()
    probe = Probe(then_silence(3, reached), window=HOUR, close=lambda reason: "good")
    flow = outer(nest(probe, inside), store, total_timeout=0.1 if how == "total timeout" else None)
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r", token=token))
    await reached.wait()
    await stopped(how, running, token)
    assert probe.flushed == [[1, 2, 3]]
    assert probe.closed == [CloseReason.CANCELLED]
    (run_id,) = await inside.list_runs()
    assert await cursors(inside, run_id) == ["3"]
    again = Probe(numbers(1, 5), close=lambda reason: "good")
    assert await outer(nest(again, inside), store).resume_from("r") == "done"
    assert again.opened == [3]
    assert again.items == [4, 5]
    assert await inside.list_runs() == await store.list_runs() == []


@pytest.mark.parametrize("how", ["token", "total timeout"])
async def test_an_error_of_the_inner_drain_surfaces(how: str) -> None:
    reached, token = asyncio.Event(), CancellationToken()

    def full(outputs: list[int]) -> None:
        raise ValueError("full")

    probe = Probe(then_silence(3, reached), window=HOUR, flush=full)
    flow = outer(nest(probe), total_timeout=0.1 if how == "total timeout" else None)
    running = asyncio.create_task(flow.orchestrate("work", token=token))
    await reached.wait()
    if how == "token":
        token.cancel()
    with pytest.raises(TaskExecutionError) as caught:
        await running
    assert str(caught.value.__cause__) == "full"
    assert (caught.value.state, caught.value.path) == ("deep", ("work", "deep"))
    assert probe.closed == [CloseReason.CANCELLED]


async def test_an_aborted_drain_of_the_outer_run_ends_the_inner_drain() -> None:
    reached, flushing, token = asyncio.Event(), asyncio.Event(), CancellationToken()

    async def silent(outputs: list[int]) -> None:
        flushing.set()
        await asyncio.Event().wait()

    probe = Probe(then_silence(3, reached), window=HOUR, flush=silent)
    running = asyncio.create_task(outer(nest(probe, drain_timeout=None), drain_timeout=None).orchestrate("work", token=token))
    await reached.wait()
    token.cancel()
    await flushing.wait()
    running.cancel()
    await turns()
    running.cancel()
    took, error = await elapsed(running)
    assert isinstance(error, asyncio.CancelledError)
    assert took < 3
    assert probe.flushed == []


async def test_a_cancelled_token_starts_no_inner_run() -> None:
    token = CancellationToken()
    recorder = Cancelling(token)
    with pytest.raises(WorkflowCancelledError):
        await outer(nest(answers("good")), observers=[recorder]).orchestrate("work", token=token)
    assert len(recorder.of("run_start")) == 1


# -- resuming -----------------------------------------------------------------------------------------------------------


async def test_a_crash_of_the_inner_run_is_resumed_where_it_was() -> None:
    async def dies(ctx: Any, cursor: int | None) -> None:
        if cursor == 2:
            raise Crashed

    for inside, store in ((MemoryCheckpointStore(), MemoryCheckpointStore()), (shared := MemoryCheckpointStore(), shared)):
        first, second = Steps(4, dies), Steps(4)
        with pytest.raises(Crashed):
            await outer(nest(first, inside), store).orchestrate("work", workflow_id="r")
        assert await outer(nest(second, inside), store).resume_from("r") == "done"
        assert (first.calls, second.calls) == ([None, 1, 2], [2, 3, 4])
        assert await inside.list_runs() == await store.list_runs() == []


async def test_without_a_store_of_its_own_the_inner_run_is_repeated() -> None:
    async def dies(ctx: Any, cursor: int | None) -> None:
        if cursor == 2:
            raise Crashed

    store = MemoryCheckpointStore()
    with pytest.raises(Crashed):
        await outer(nest(Steps(4, dies)), store).orchestrate("work", workflow_id="r")
    again = Steps(4)
    assert await outer(nest(again), store).resume_from("r") == "done"
    assert again.calls == [None, 1, 2, 3, 4]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dies", ["inner", "outer"])
async def test_a_crash_at_every_append_repeats_one_step_at_most(dies: str, after: bool) -> None:
    places = 0
    for place in range(12):
        inside = dying(place + 1 if dies == "inner" else 0, after=after)
        store = dying(place + 1 if dies == "outer" else 0, after=after)
        steps, ran = Steps(3), []

        async def last(ctx: Any, ran: list[str] = ran) -> str:
            ran.append("last")
            return "done"

        sub = SubWorkflow(inner(steps, inside), "deep", exits={"good": "last", "bad": "last"})
        flow = outer(sub, store).register("last", last).register("first", answers("work"))
        try:
            end = await flow.orchestrate("first", workflow_id="r")
        except Crashed:
            places += 1
            known = await store.load_run("r") != []
            end = await (flow.resume_from("r") if known else flow.orchestrate("first", workflow_id="r"))
        assert end == "done"
        assert list(dict.fromkeys(steps.calls)) == [None, 1, 2, 3]
        assert len(steps.calls) <= 5
        assert len(ran) <= 2
        assert await store.list_runs() == []
        left = await inside.list_runs()
        assert left == [] or (dies == "outer" and after and place == 2)
    assert places == (5 if dies == "inner" else 4)


async def test_a_completed_inner_run_is_not_done_again_by_a_resume() -> None:
    inside, store, steps = MemoryCheckpointStore(), dying(2), Steps(3)
    with pytest.raises(Crashed):
        await outer(nest(steps, inside), store).orchestrate("work", workflow_id="r")
    assert len(await inside.list_runs()) == 1
    assert await outer(nest(steps, inside), store).resume_from("r") == "done"
    assert steps.calls == [None, 1, 2, 3]
    assert await inside.list_runs() == []


async def test_nor_by_a_resume_after_a_crash_in_a_router_that_follows() -> None:
    class Dies(RouterTask[str]):
        died = False

        async def route(self, ctx: Any) -> str:
            if not self.died:
                self.died = True
                raise Crashed
            return "done"

    inside, store, steps = MemoryCheckpointStore(), MemoryCheckpointStore(), Steps(3)
    sub = SubWorkflow(inner(steps, inside), "deep", exits={"good": "decide", "bad": "decide"})
    flow = outer(sub, store).register("decide", Dies())
    with pytest.raises(Crashed):
        await flow.orchestrate("work", workflow_id="r")
    assert await flow.resume_from("r") == "done"
    assert steps.calls == [None, 1, 2, 3]
    assert await inside.list_runs() == []


async def test_a_fresh_outer_run_does_not_go_on_with_an_old_inner_one() -> None:
    """BR-43."""

    async def dies(ctx: Any, cursor: int | None) -> None:
        assert ctx.data == ["old"]
        if cursor == 2:
            raise Crashed

    inside, store = MemoryCheckpointStore(), MemoryCheckpointStore()
    with pytest.raises(Crashed):
        await outer(nest(Steps(3, dies), inside, data=lambda ctx: ["old"]), store).orchestrate("work", workflow_id="r")

    async def new(ctx: Any, cursor: int | None) -> None:
        assert ctx.data == ["new"]

    steps = Steps(3, new)
    flow = outer(nest(steps, inside, data=lambda ctx: ["new"]), store)
    assert await flow.orchestrate("work", workflow_id="r", if_exists="discard") == "done"
    assert steps.calls == [None, 1, 2, 3]

    steps = Steps(3, dies)
    with pytest.raises(Crashed):
        await outer(nest(steps, inside, data=lambda ctx: ["old"])).orchestrate("work", workflow_id="r")
    steps = Steps(3, new)
    assert await outer(nest(steps, inside, data=lambda ctx: ["new"])).orchestrate("work", workflow_id="r") == "done"
    assert steps.calls == [None, 1, 2, 3]
    assert await inside.list_runs() == []


async def test_every_visit_has_an_inner_run_of_its_own() -> None:
    inside, store, seen = MemoryCheckpointStore(), MemoryCheckpointStore(), []

    async def deep(ctx: Any) -> str:
        seen.append(ctx.workflow_id)
        return "good" if len(seen) < 3 else "bad"

    sub = SubWorkflow(inner(deep, inside), "deep", exits={"good": "work", "bad": "done"})
    assert await outer(sub, store).orchestrate("work", workflow_id="r") == "done"
    assert len(set(seen)) == 3
    assert all(run_id.startswith("r/work.") for run_id in seen)


async def test_an_outer_id_or_label_that_leaves_no_room_for_an_inner_one_is_no_trouble() -> None:
    inside, store, seen = MemoryCheckpointStore(), MemoryCheckpointStore(), []

    async def deep(ctx: Any) -> str:
        seen.append(ctx.workflow_id)
        return "good"

    for label, run_id in (("work", "r" * 255), ("a\nlabel", "r"), ("w" * 300, "r")):
        flow = Workflow[str](checkpoint_store=store).register(label, nest(deep, inside)).add_exit_state("done", "stopped")
        assert await flow.orchestrate(label, workflow_id=run_id) == "done"
    assert len(set(seen)) == 3


async def test_concurrent_outer_runs_do_not_mix_their_inner_runs(tmp_path: Any) -> None:
    """BR-132."""
    inside, store = MemoryCheckpointStore(), SqliteCheckpointStore(tmp_path / "runs.db")
    seen: dict[str, list[int | None]] = {}

    async def before(ctx: Any, cursor: int | None) -> None:
        seen.setdefault(ctx.data["outer"], []).append(cursor)
        await asyncio.sleep(0)

    flow = outer(nest(Steps(4, before), inside, data=lambda ctx: {"outer": ctx.workflow_id}), store)
    await asyncio.gather(*(flow.orchestrate("work", workflow_id=f"r{number}") for number in range(20)))
    assert seen == {f"r{number}": [None, 1, 2, 3, 4] for number in range(20)}
    assert await inside.list_runs() == []
    await store.close()


async def test_a_rolled_back_outer_run_leaves_no_inner_log() -> None:
    inside, store, undone = MemoryCheckpointStore(), MemoryCheckpointStore(), []

    class Books(CompensatableTask[str, int]):
        async def run(self, ctx: Any) -> tuple[str, int]:
            return "work", 7

        async def compensate(self, ctx: Any, output: int) -> None:
            undone.append(output)

    class Decides(RouterTask[str]):
        config = TaskConfig(retry=NoRetry())

        async def route(self, ctx: Any) -> str:
            raise ValueError

    sub = SubWorkflow(inner(answers("good"), inside), "deep", exits={"good": "decide", "bad": "decide"})
    flow = outer(sub, store).register("book", Books()).register("decide", Decides())
    with pytest.raises(TaskExecutionError):
        await flow.orchestrate("book", workflow_id="r")
    assert undone == [7]
    assert await inside.list_runs() == await store.list_runs() == []


# -- as a branch --------------------------------------------------------------------------------------------------------


async def test_nested_workflows_are_branches_and_their_exit_states_the_values() -> None:
    recorder, seen = RecordingObserver(), []

    async def merge(ctx: Any) -> str:
        seen.append([(branch.name, branch.value) for branch in ctx.branches])
        return "done"

    sub, other = nest(answers("good")), SubWorkflow(inner(answers("bad")), "deep")
    flow = outer(Split([sub, sub, other], join=AllOf(), then="merge"), observers=[recorder]).register("merge", merge)
    await flow.orchestrate("work", workflow_id="r")
    assert seen == [[("inner[0]", "done"), ("inner[1]", "done"), ("inner[2]", "bad")]]
    ids = {event.workflow_id for event in recorder.of("run_start")}
    assert len(ids) == 4


async def test_branches_that_crashed_are_resumed_each_where_it_was() -> None:
    inside, store = MemoryCheckpointStore(), MemoryCheckpointStore()

    async def dies(ctx: Any, cursor: int | None) -> None:
        if cursor == 2:
            await until(lambda: fast.calls[-1:] == [1])
            raise Crashed

    async def waits(ctx: Any, cursor: int | None) -> None:
        if cursor == 1:
            await asyncio.Event().wait()

    slow, fast = Steps(3, dies), Steps(3, waits)

    def flow(*steps: Any) -> Workflow[str]:
        return outer(Split([nest(each, inside) for each in steps], join=AllOf(), then="done"), store)

    with pytest.raises(Crashed):
        await flow(slow, fast).orchestrate("work", workflow_id="r")
    assert (slow.calls, fast.calls) == ([None, 1, 2], [None, 1])
    assert len(await inside.list_runs()) == 2
    slow, fast = Steps(3), Steps(3)
    assert await flow(slow, fast).resume_from("r") == "done"
    assert (slow.calls, fast.calls) == ([2, 3], [1, 2, 3])
    assert await inside.list_runs() == []


async def test_a_losing_branch_drains_and_leaves_no_log() -> None:
    """BR-124."""
    inside, store, reached = MemoryCheckpointStore(), MemoryCheckpointStore(), asyncio.Event()
    loser = Probe(then_silence(3, reached), window=HOUR)

    async def wins(ctx: Any) -> str:
        await reached.wait()
        return "won"

    flow = outer(Split([nest(loser, inside), wins], join=AnyOf(), then="done"), store)
    assert await flow.orchestrate("work", workflow_id="r") == "done"
    assert loser.closed == [CloseReason.CANCELLED]
    assert loser.flushed == [[1, 2, 3]]
    assert await inside.list_runs() == []


async def test_a_failure_deep_in_nested_splits_reaches_the_outer_join() -> None:
    """BR-124, BR-129."""
    raised = ValueError("x")

    async def for_ever(ctx: Any) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    deep = inner(Split([Failing(raised), for_ever], join=AllOf(), then="good"))
    sub = SubWorkflow(deep, "deep")
    took, error = await elapsed(outer(Split([for_ever, sub, for_ever], join=AllOf(), then="done")).orchestrate("work"))
    assert isinstance(error, CanoError)
    assert took < 2
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)  # type: ignore[arg-type]  # it has one
    assert raised in causes


async def test_a_batch_in_an_inner_workflow_is_cancelled_with_the_outer_run() -> None:
    token, at_work = CancellationToken(), []

    class Batch(BatchTask[str, int, int]):
        concurrency = 3

        async def load(self, ctx: Any) -> Any:
            return range(9)

        async def process_item(self, ctx: Any, item: int) -> int:
            at_work.append(item)
            try:
                await asyncio.Event().wait()
            finally:
                at_work.remove(item)
            return item

        async def finish(self, ctx: Any, outcomes: Any) -> str:
            raise AssertionError

    running = asyncio.create_task(outer(nest(Batch())).orchestrate("work", token=token))
    await until(lambda: len(at_work) == 3)
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    assert at_work == []
