"""Split and join: the earliest decision, nobody left behind, and the results in the hands of the state that follows."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from typing import Any

import pytest

from cano import (
    All,
    AnyOf,
    AttemptTimeoutError,
    BatchTask,
    CancellationToken,
    CanoError,
    FixedRetry,
    MemoryCheckpointStore,
    PartialResults,
    PartialTimeout,
    Percentage,
    PollTask,
    Quorum,
    Ready,
    RouterTask,
    Split,
    SubWorkflow,
    TaskConfig,
    TaskExecutionError,
    Workflow,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowObserver,
)
from cano.testing import RecordingObserver
from tests.splits import Branch, Hanging, fails, failure, flow, gives, results, tasks
from tests.streams import turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


# -- the joins ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("join", [All(), AnyOf(), Quorum(3), Percentage(0.75), PartialResults(2), Percentage(1.0)])
async def test_every_join_goes_on_when_enough_branches_succeed(join: Any) -> None:
    found = await results([gives(n) for n in range(3)], join)
    assert found.values == [0, 1, 2][: len(found.values)]
    assert len(found) == 3


@pytest.mark.parametrize(("join", "wanted"), [(AnyOf(), 1), (Quorum(2), 2), (Percentage(0.5), 2), (PartialResults(2), 2)])
async def test_a_join_that_is_met_waits_no_longer_and_the_losers_have_ended_before_the_next_state(join: Any, wanted: int) -> None:
    hanging = Hanging()
    ended: list[int] = []
    split = Split([gives(n) for n in range(wanted)] + [hanging.branch() for _ in range(4 - wanted)], join=join, then="join")
    built = Workflow[str]().register("split", split)

    @built.register("join")
    async def join_state(ctx: Any) -> str:
        ended.append(hanging.ended)
        assert [result.cancelled for result in ctx.branches] == [False] * wanted + [True] * (4 - wanted)
        return "done"

    await asyncio.wait_for(built.add_exit_state("done").orchestrate("split"), 5)
    assert hanging.begun == 4 - wanted
    assert ended == [hanging.begun]


@pytest.mark.parametrize(
    ("join", "failing"), [(All(), 1), (AnyOf(), 4), (Quorum(3), 2), (Percentage(0.75), 2), (PartialResults(4), 1)]
)
async def test_a_join_that_cannot_be_met_any_more_fails_at_once(join: Any, failing: int) -> None:
    hanging = Hanging()
    branches = [hanging.branch() for _ in range(4 - failing)] + [fails(ValueError(str(n))) for n in range(failing)]
    error = await asyncio.wait_for(failure(branches, join), 5)
    assert hanging.begun == hanging.ended == 4 - failing
    assert f"{type(join).__name__} was not met" in error.message


async def test_a_failure_counts_for_no_join_and_is_waited_past() -> None:
    gate = asyncio.Event()

    async def late(ctx: Any) -> str:
        await gate.wait()
        return "late"

    async def opens(ctx: Any) -> str:
        gate.set()
        return "early"

    found = await results([fails(ValueError()), Branch(late), Branch(opens)], PartialResults(2))
    assert found.values == ["late", "early"]
    assert isinstance(found[0].error, TaskExecutionError)


async def test_a_partial_timeout_takes_what_there_is_at_the_timeout_or_when_all_have_settled() -> None:
    hanging = Hanging()
    found = await results([gives(1), fails(ValueError()), hanging.branch()], PartialTimeout(), timeout=0.05)
    assert found.values == [1]
    assert [result.cancelled for result in found] == [False, False, True]
    assert hanging.ended == 1
    early = await asyncio.wait_for(results([gives(1), gives(2)], PartialTimeout(), timeout=timedelta(hours=1)), 5)
    assert early.values == [1, 2]
    error = await failure([fails(ValueError()), hanging.branch()], PartialTimeout(), timeout=0.05)
    assert "0 of 2" in error.message
    assert "timeout" in error.message


@pytest.mark.parametrize("join", [All(), Quorum(2), Percentage(1.0), PartialResults(2), AnyOf()])
async def test_a_timeout_before_the_condition_is_met_fails_and_says_so(join: Any) -> None:
    hanging = Hanging()
    branches = [hanging.branch(), hanging.branch() if isinstance(join, AnyOf) else gives(1)]
    error = await failure(branches, join, timeout=0.03)
    assert "at the timeout" in error.message
    assert error.__cause__ is None
    assert hanging.begun == hanging.ended


async def test_a_timeout_that_passes_in_the_very_turn_in_which_the_condition_is_met_is_a_success() -> None:
    loop = asyncio.get_running_loop()

    async def past_the_timeout(ctx: Any) -> int:
        began = loop.time()
        while loop.time() - began < 0.03:
            pass
        return 1

    found = await results([Branch(past_the_timeout)], All(), timeout=0.01)
    assert found.values == [1]


async def test_a_timeout_of_zero_lets_no_unfinished_branch_through() -> None:
    hanging = Hanging()
    error = await failure([hanging.branch()], All(), timeout=0)
    assert "at the timeout" in error.message
    assert hanging.begun == hanging.ended


async def test_a_split_without_branches_settles_at_once() -> None:
    assert list(await results([], All())) == []
    assert list(await results([], Percentage(0.5))) == []
    assert list(await results([], Quorum(0))) == []
    assert "0 of 0" in (await failure([], AnyOf())).message
    assert "0 of 0" in (await failure([], PartialTimeout(), timeout=1)).message


# -- what the next state sees -------------------------------------------------------------------------------------------


async def test_results_come_in_the_order_of_the_branches_by_place_and_by_name() -> None:
    order: list[int] = []

    def after(pause: int) -> Branch:
        async def run(ctx: Any) -> int:
            await turns(pause)
            order.append(pause)
            return pause

        return Branch(run, f"after{pause}")

    found = await results([after(9), after(3), after(6), fails(KeyError("x"), "bad")], Quorum(3))
    assert order == [3, 6, 9]
    assert [result.name for result in found] == ["after9[0]", "after3[1]", "after6[2]", "bad[3]"]
    assert [result.value for result in found] == [9, 3, 6, None]
    assert found.values == [9, 3, 6]
    assert [result.succeeded for result in found] == [True, True, True, False]
    assert found["after6[2]"] is found[2]
    assert found[1:3] == (found[1], found[2])
    assert isinstance(found["bad[3]"].error.__cause__, KeyError)
    assert found["bad[3]"].error.state == "split"
    with pytest.raises(KeyError, match="nobody"):
        found["nobody[0]"]
    with pytest.raises(IndexError):
        found[4]
    assert "9" not in repr(found[0]).replace("after9", "")


async def test_only_the_state_right_after_the_split_sees_the_results() -> None:
    seen: list[Any] = []

    async def look(ctx: Any) -> str:
        seen.append(ctx.branches)
        return {"first": "split", "join": "after", "after": "done"}[ctx.state]

    async def branch(ctx: Any) -> str:
        seen.append(ctx.branches)
        return ctx.task

    built = Workflow[str]().register("first", look).register("split", Split([branch], join=All(), then="join"))
    await built.register("join", look).register("after", look).add_exit_state("done").orchestrate("first")
    assert seen[:2] == [None, None]
    assert seen[2].values == ["branch[0]"]
    assert seen[3] is None


async def test_the_branches_of_a_split_and_the_items_of_a_batch_see_the_results_of_the_split_before() -> None:
    seen: list[Any] = []

    class Batch(BatchTask[str, int, None]):
        async def load(self, ctx: Any) -> list[int]:
            seen.append(ctx.branches.values)
            return [1]

        async def process_item(self, ctx: Any, item: int) -> None:
            seen.append(ctx.branches.values)

        async def finish(self, ctx: Any, outcomes: Any) -> str:
            return "done"

    async def second(ctx: Any) -> int:
        seen.append(ctx.branches.values)
        return 2

    built = Workflow[str]().register("split", Split([gives(1)], join=All(), then="again"))
    built.register("again", Split([second], join=All(), then="batch")).register("batch", Batch())
    await built.add_exit_state("done").orchestrate("split")
    assert seen == [[1], [2], [2]]


async def test_branches_may_be_of_any_mixture_of_types() -> None:
    class Route(RouterTask[str]):
        async def route(self, ctx: Any) -> str:
            return "routed"

    class Poll(PollTask[str]):
        async def poll(self, ctx: Any) -> Ready[str]:
            return Ready("polled")

    class Batch(BatchTask[str, int, int]):
        concurrency = 3

        async def load(self, ctx: Any) -> list[int]:
            return [1, 2, 3]

        async def process_item(self, ctx: Any, item: int) -> int:
            return item * item

        async def finish(self, ctx: Any, outcomes: Any) -> Any:
            return [outcome.value for outcome in outcomes]

    async def function(ctx: Any) -> None: ...

    inner = Workflow[str](name="inner").register("in", gives("out")).add_exit_state("out")
    found = await results([function, gives({"a": [1]}), Route(), Poll(), Batch(), SubWorkflow(inner, "in")], All())
    assert [result.name for result in found] == ["function[0]", "gives[1]", "Route[2]", "Poll[3]", "Batch[4]", "inner[5]"]
    assert [result.value for result in found] == [None, {"a": [1]}, "routed", "polled", [1, 4, 9], "out"]
    assert all(result.succeeded for result in found)


async def test_the_same_task_may_be_several_branches_each_with_its_own_context() -> None:
    async def who(ctx: Any) -> str:
        await turns()
        return ctx.task

    assert (await results([who] * 3, All())).values == ["who[0]", "who[1]", "who[2]"]


async def test_a_split_of_splits_is_a_split_of_workflows_and_the_inner_failure_ends_the_outer_join() -> None:
    """BR-124."""
    hanging = Hanging()

    def inner(*branches: Any) -> Any:
        built = Workflow[str](name="inner").register("fork", Split(branches, join=All(), then="out")).add_exit_state("out")
        return SubWorkflow(built, "fork")

    bad = inner(hanging.branch(), fails(ValueError("inner")))
    loop = asyncio.get_running_loop()
    began = loop.time()
    error = await failure([hanging.branch(), bad, hanging.branch()], All())
    assert loop.time() - began < 1
    assert hanging.begun == hanging.ended == 3
    assert isinstance(error.__cause__, WorkflowError)
    assert error.__cause__.state == "fork"
    assert str(error.__cause__.__cause__) == "inner"
    assert (await results([inner(gives(1)), inner(gives(2), gives(3))], All())).values == ["out", "out"]


# -- failures -----------------------------------------------------------------------------------------------------------


async def test_one_failure_is_the_cause_and_nothing_else_is_named() -> None:
    """BR-129."""
    hanging, raised = Hanging(), ValueError("the reason")
    error = await failure([hanging.branch(), fails(raised), hanging.branch()], All())
    assert error.__cause__ is raised
    assert error.category == "workflow"
    assert (error.state, error.path) == ("split", ("split",))
    assert "hangs" not in error.message
    assert "the reason" not in error.message
    assert "fails[1]" in error.message
    assert "ValueError" in error.message


async def test_several_failures_are_all_reachable_and_no_siblings_cancellation_is_among_them() -> None:
    """BR-129."""
    hanging = Hanging()
    error = await failure([fails(ValueError("a"), "a"), hanging.branch(), fails(KeyError("b"), "b")], Quorum(2))
    group = error.__cause__
    assert isinstance(group, BaseExceptionGroup)
    assert [type(cause) for cause in group.exceptions] == [ValueError, KeyError]
    assert "a[0]" in error.message
    assert "b[2]" in error.message


@pytest.mark.parametrize("leak", [asyncio.CancelledError, TimeoutError, StopAsyncIteration])
async def test_what_a_branch_leaks_is_an_ordinary_failure_of_that_branch(leak: type[BaseException]) -> None:
    found = await results([fails(leak()), gives(1)], AnyOf())
    assert found.values == [1]
    error = await failure([fails(leak()), gives(1)], All())
    assert isinstance(error.__cause__, leak)


async def test_a_branch_that_cancels_its_own_asyncio_task_fails_alone() -> None:
    async def cancels_itself(ctx: Any) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(0)

    async def slow(ctx: Any) -> int:
        await turns(10)
        return 1

    told = RecordingObserver()
    built = flow(Split([Branch(cancels_itself, "selfish"), Branch(slow, "slow")], join=Quorum(1), then="join"), observers=[told])
    assert await built.orchestrate("split") == "done"
    assert "selfish[0]" in tasks(told, "failure")
    error = await failure([Branch(cancels_itself, "selfish"), Branch(slow)], All())
    assert "selfish[0]" in error.message


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_any_other_base_exception_of_a_branch_passes_like_a_crash_and_the_others_are_put_away(
    error: type[BaseException],
) -> None:
    hanging, store = Hanging(), MemoryCheckpointStore()
    branches = [hanging.branch(), fails(error("stop")), hanging.branch()]
    with pytest.raises(error):
        await flow(Split(branches, join=AnyOf(), then="join"), store=store).orchestrate("split", workflow_id="r")
    assert hanging.begun == hanging.ended
    assert len(await store.load_run("r")) == 1


async def test_a_base_exception_of_a_loser_that_is_put_away_is_not_lost() -> None:
    at_work = asyncio.Event()

    async def loser(ctx: Any) -> None:
        at_work.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyboardInterrupt

    async def winner(ctx: Any) -> int:
        await at_work.wait()
        return 1

    with pytest.raises(KeyboardInterrupt):
        await flow(Split([Branch(loser), Branch(winner)], join=AnyOf(), then="join")).orchestrate("split")


async def test_an_ordinary_failure_of_a_loser_that_is_put_away_changes_nothing() -> None:
    at_work = asyncio.Event()

    async def loser(ctx: Any) -> None:
        at_work.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("cleaning up")

    async def winner(ctx: Any) -> int:
        await at_work.wait()
        return 1

    found = await results([Branch(loser), Branch(winner)], AnyOf())
    assert [result.cancelled for result in found] == [True, False]


# -- retries and limits of branches -------------------------------------------------------------------------------------


async def test_each_branch_is_retried_by_its_own_config_and_observers_are_told() -> None:
    attempts: list[int] = []
    retried: list[tuple[str, int]] = []

    class Watching(WorkflowObserver):
        def on_retry(self, event: Any) -> None:
            retried.append((event.task, event.attempt))

    def third_time(ctx: Any) -> str:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError
        return "third"

    config = TaskConfig(retry=FixedRetry(4, 0))
    seen: list[Any] = []
    split = Split([gives(1), Branch(third_time, "third", config), fails(ValueError())], join=Quorum(2), then="join")
    await flow(split, seen, observers=[Watching()]).orchestrate("split")
    assert seen[0].values == [1, "third"]
    assert attempts == [1, 2, 3]
    assert retried == [("third[1]", 1), ("third[1]", 2)]


async def test_a_branchs_attempt_timeout_is_its_failure_and_not_the_splits() -> None:
    hanging = Hanging()
    slow = hanging.branch("slow")
    slow.config = TaskConfig(retry=FixedRetry(1, 0), attempt_timeout=0.01)
    found = await results([slow, gives(1), Branch(lambda ctx: turns(50))], Quorum(2))
    assert found[0].cancelled or isinstance(found[0].error, CanoError)
    error = await failure([slow, gives(1)], All())
    assert isinstance(error.__cause__, AttemptTimeoutError)
    assert hanging.begun == hanging.ended


async def test_a_loser_that_turns_its_cancellation_into_another_error_is_not_retried() -> None:
    begun: list[int] = []
    at_work = asyncio.Event()

    async def stubborn(ctx: Any) -> None:
        begun.append(ctx.attempt)
        at_work.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError from None

    async def winner(ctx: Any) -> int:
        await at_work.wait()
        return 1

    config = TaskConfig(retry=FixedRetry(3, 0))
    await asyncio.wait_for(results([Branch(stubborn, config=config), Branch(winner)], AnyOf()), 5)
    assert begun == [1]


async def test_no_more_branches_than_max_concurrency_are_at_work_and_all_get_their_turn() -> None:
    at_work, most = 0, 0

    async def run(ctx: Any) -> int:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await turns(3)
        at_work -= 1
        return 1

    found = await results([Branch(run) for _ in range(10)], All(), max_concurrency=2)
    assert found.values == [1] * 10
    assert most == 2


async def test_a_branch_that_waits_for_its_turn_never_starts_once_the_join_is_decided() -> None:
    told, seen = RecordingObserver(), []
    split = Split([gives(n) for n in range(5)], join=AnyOf(), then="join", max_concurrency=1)
    await flow(split, seen, observers=[told]).orchestrate("split")
    assert [result.cancelled for result in seen[0]] == [False, True, True, True, True]
    assert tasks(told, "start") == ["gives[0]", "join", "split"]


async def test_slots_are_conserved_under_random_cancels_and_failures() -> None:
    """BR-95."""
    for seed in range(60):
        chance = random.Random(seed)
        limit, at_work, most, begun, ended = chance.randint(1, 5), 0, 0, 0, 0

        def branch(chance: random.Random = chance) -> Branch:
            pause, kind = chance.randint(0, 8), chance.random()

            async def run(ctx: Any) -> int:
                nonlocal at_work, most, begun, ended
                at_work, begun = at_work + 1, begun + 1
                most = max(most, at_work)
                try:
                    await turns(pause)
                    if kind < 0.15:
                        raise ValueError
                    if kind < 0.3:
                        raise asyncio.CancelledError
                    if kind < 0.4:
                        task = asyncio.current_task()
                        assert task is not None
                        task.cancel()
                        await asyncio.sleep(0)
                    return 1
                finally:
                    try:
                        await turns(chance.randint(0, 2))
                    finally:
                        at_work, ended = at_work - 1, ended + 1

            return Branch(run)

        token, seen = CancellationToken(), []
        split = Split([branch() for _ in range(40)], join=Quorum(0 if seed == 0 else 20), then="join", max_concurrency=limit)
        running = asyncio.create_task(flow(split, seen).orchestrate("split", token=token))
        if chance.random() < 0.5:
            await turns(chance.randint(0, 40))
            token.cancel()
        try:
            await asyncio.wait_for(running, 10)
            assert len(seen[0].values) >= split.join.n  # type: ignore[union-attr]  # a Quorum
        except (WorkflowError, WorkflowCancelledError):
            pass
        assert most <= limit
        assert at_work == 0
        assert begun == ended


async def test_a_thousand_branches_are_a_matter_of_a_moment() -> None:
    async def run(ctx: Any) -> str:
        await asyncio.sleep(random.random() * 0.05)
        return ctx.task

    loop = asyncio.get_running_loop()
    began = loop.time()
    found = await results([Branch(run, "b") for _ in range(1000)], All())
    assert found.values == [f"b[{place}]" for place in range(1000)]
    assert loop.time() - began < 10


async def test_a_router_after_a_split_sees_the_results_and_hands_them_on() -> None:
    seen: list[Any] = []

    class Judge(RouterTask[str]):
        async def route(self, ctx: Any) -> str:
            seen.append(ctx.branches.values)
            return "merge"

    async def one(ctx: Any) -> int:
        return 1

    async def merge(ctx: Any) -> str:
        seen.append(ctx.branches.values)
        return "done"

    flow = Workflow[str]().register("split", Split([one, one], join=All(), then="judge")).register("judge", Judge())
    assert await flow.register("merge", merge).add_exit_state("done").orchestrate("split") == "done"
    assert seen == [[1, 1], [1, 1]]


async def test_one_split_may_be_registered_in_several_workflows() -> None:
    async def one(ctx: Any) -> int:
        return 1

    split = Split([one], join=All(), then="done")
    for _ in range(2):
        assert await Workflow[str]().register("work", split).add_exit_state("done").orchestrate("work") == "done"
