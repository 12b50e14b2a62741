"""The state machine without trouble: states, tasks, transitions, contexts, concurrency."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from enum import Enum, StrEnum, auto
from functools import partial
from typing import Any

import pytest

from cano import (
    ConfigurationError,
    Context,
    MemoryCheckpointStore,
    NoRetry,
    SqliteCheckpointStore,
    Stop,
    Task,
    TaskConfig,
    TaskExecutionError,
    Window,
    Workflow,
    WorkflowError,
)
from tests.streams import Probe, machine, numbers, run

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Step(StrEnum):
    START = auto()
    WORK = auto()
    DONE = auto()


class Begin(Task[Step]):
    async def run(self, ctx: Context) -> Step:
        return Step.WORK


async def finish(ctx: Context) -> Step:
    return Step.DONE


def two_steps(**options: Any) -> Workflow[Step]:
    return Workflow[Step](**options).register(Step.START, Begin()).register(Step.WORK, finish).add_exit_state(Step.DONE)


async def test_a_run_goes_from_state_to_state_to_the_exit() -> None:
    assert await two_steps().orchestrate(Step.START) is Step.DONE


async def test_a_finished_run_leaves_no_log() -> None:
    store = MemoryCheckpointStore()
    assert await two_steps(checkpoint_store=store).orchestrate(Step.START, workflow_id="a") is Step.DONE
    assert await store.list_runs() == []


async def test_a_run_may_start_at_an_exit_state_and_exit_wins_over_a_handler() -> None:
    flow = two_steps()
    assert await flow.orchestrate(Step.DONE) is Step.DONE
    ran: list[str] = []

    async def never(ctx: Any) -> Step:
        ran.append("ran")
        return Step.DONE

    both = Workflow[Step]().register(Step.WORK, never).add_exit_state(Step.WORK, Step.DONE)
    assert await both.orchestrate(Step.WORK) is Step.WORK
    assert ran == []


async def test_self_loops_and_cycles_are_fine() -> None:
    rounds = 0

    async def again(ctx: Any) -> str:
        nonlocal rounds
        rounds += 1
        return "work" if rounds < 5 else "done"

    assert await run(again) == "done"
    assert rounds == 5


@pytest.mark.parametrize("chosen", [None, "nowhere", 5, Step.DONE, ["done"], "Done"])
async def test_a_task_that_chooses_no_known_state_fails_in_its_own_state_before_any_row(chosen: Any) -> None:
    store = MemoryCheckpointStore()

    async def confused(ctx: Any) -> Any:
        return chosen

    with pytest.raises(WorkflowError, match="confused chose .*registered: work; exit states: done, stopped") as caught:
        await run(confused, store)
    assert (caught.value.state, caught.value.attempt, caught.value.path) == ("work", 1, ("work",))
    assert [row.state for row in await store.load_run("r")] == ["work"]


async def test_a_plain_string_is_not_the_enum_member_that_equals_it() -> None:
    async def sloppy(ctx: Any) -> Any:
        return "done"

    flow = Workflow[Step]().register(Step.START, sloppy).add_exit_state(Step.DONE)
    with pytest.raises(WorkflowError):
        await flow.orchestrate(Step.START)


async def test_any_kind_of_async_callable_is_a_task_and_the_decorator_gives_it_back() -> None:
    class Callable:
        async def __call__(self, ctx: Context) -> str:
            return "done"

    async def two(flag: int, ctx: Context) -> str:
        return "done"

    for task in (Callable(), partial(two, 1)):
        assert await run(task) == "done"
    flow = Workflow[str]().add_exit_state("done")

    @flow.register("start")
    async def start(ctx: Context) -> str:
        return "done"

    assert start.__name__ == "start"
    assert await flow.orchestrate("start") == "done"


async def test_an_exception_of_a_task_is_the_cause_and_its_text_is_not_repeated() -> None:
    error = ValueError("secret-1")

    class Fails(Task[str]):
        config = TaskConfig(retry=NoRetry())

        async def run(self, ctx: Any) -> str:
            raise error

    with pytest.raises(TaskExecutionError) as caught:
        await run(Fails())
    assert caught.value.__cause__ is error
    assert "secret-1" not in str(caught.value)
    assert "secret-1" not in repr(caught.value)
    assert "run of Fails raised ValueError (state work, attempt 1)" in str(caught.value)


async def test_a_context_tells_what_it_has_to() -> None:
    seen: dict[str, Any] = {}

    async def look(ctx: Context) -> str:
        names = ("workflow_id", "state", "task", "attempt", "window_id", "branches", "transaction", "data")
        seen.update({name: getattr(ctx, name) for name in names})
        seen["resource"] = ctx["number"] + ctx.get("number", int)
        seen["fired"] = ctx.token.cancelled
        return "done"

    store = MemoryCheckpointStore()
    assert await run(look, store, resources={"number": 21}) == "done"
    assert seen == {
        "workflow_id": "r",
        "state": "work",
        "task": "look",
        "attempt": 1,
        "window_id": None,
        "branches": None,
        "transaction": None,
        "data": None,
        "resource": 42,
        "fired": False,
    }


async def test_without_an_id_every_run_gets_one_of_its_own() -> None:
    ids: list[str] = []

    async def look(ctx: Context) -> str:
        ids.append(ctx.workflow_id)
        return "done"

    flow = machine(look)
    await asyncio.gather(*(flow.orchestrate("work") for _ in range(3)))
    assert len(set(ids)) == 3


async def test_a_window_has_one_id_that_a_replay_keeps_and_no_other_window_has() -> None:
    ids: list[tuple[str, tuple[int, ...]]] = []

    class Named(Probe):
        async def flush_window(self, ctx: Context, outputs: list[int]) -> None:
            assert ctx.window_id is not None
            ids.append((ctx.window_id, tuple(outputs)))
            if outputs == [5, 6] and len(ids) == 3:
                raise ValueError

        async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
            assert ctx.window_id is None
            return item, item

    store = MemoryCheckpointStore()
    with pytest.raises(TaskExecutionError):
        await run(Named(numbers(1, 9)), store)
    assert await machine(Named(numbers(1, 9)), store).resume_from("r") == "done"
    replayed = [name for name, outputs in ids if outputs == (5, 6)]
    assert len(replayed) == 2
    assert len(set(replayed)) == 1
    assert len({name for name, _ in ids}) == 5


async def test_one_workflow_serves_many_runs_at_once_without_mixing_them() -> None:
    """BR-132."""
    store = MemoryCheckpointStore()

    class Sum(Probe):
        async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
            await asyncio.sleep(0)
            ctx.data["sum"] += item * ctx.data["factor"]
            return item, item

        async def on_close(self, ctx: Context, reason: Any) -> str:
            results[ctx.data["factor"]] = ctx.data["sum"]
            return "done"

    results: dict[int, int] = {}
    given = {"sum": 0, "factor": 0}
    flow = machine(Sum(numbers(1, 10)), store)
    await asyncio.gather(
        *(flow.orchestrate("work", workflow_id=f"run-{n}", data={**given, "factor": n}) for n in range(50)),
    )
    assert results == {n: 55 * n for n in range(50)}
    assert given == {"sum": 0, "factor": 0}


async def test_context_variables_reach_every_hook_and_do_not_leak_between_runs() -> None:
    """BR-131."""
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: dict[str, set[str]] = {"a": set(), "b": set()}

    def note(place: str, name: str) -> None:
        seen[name].add(f"{place}={variable.get()}")

    class Noting(Probe):
        async def open(self, ctx: Context, cursor: int | None) -> Any:
            note("open", ctx.workflow_id)
            for number in range(3):
                await asyncio.sleep(0.005)
                yield number

        async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
            note("process", ctx.workflow_id)
            return item, item

        async def flush_window(self, ctx: Context, outputs: list[int]) -> None:
            note("flush", ctx.workflow_id)

        async def on_close(self, ctx: Context, reason: Any) -> str:
            note("close", ctx.workflow_id)
            variable.set("changed")
            return "done"

    flow = machine(Noting(numbers(1, 2), window=Window(seconds=0.002)))

    async def one(name: str) -> None:
        variable.set(name)
        await flow.orchestrate("work", workflow_id=name)
        assert variable.get() == name

    await asyncio.gather(one("a"), one("b"))
    for name, places in seen.items():
        assert places == {f"{place}={name}" for place in ("open", "process", "flush", "close")}


async def test_two_members_with_one_label_are_refused_wherever_they_come_from() -> None:
    """BR-47."""

    class A(Enum):
        X = "x"

    class B(Enum):
        X = "x"

    flow = Workflow[Any]().register(A.X, finish)
    with pytest.raises(ConfigurationError, match="label X"):
        flow.register(B.X, finish)
    with pytest.raises(ConfigurationError, match="label X"):
        flow.add_exit_state(B.X)
    with pytest.raises(ConfigurationError, match="label X"):
        flow.add_exit_state("X")
    with pytest.raises(ConfigurationError, match="registered already"):
        flow.register(A.X, finish)
    assert flow.registered_states == frozenset({A.X})


async def test_a_stream_may_lead_to_another_and_back_each_visit_from_the_start() -> None:
    visits = 0

    def close(reason: Any) -> str:
        nonlocal visits
        visits += 1
        return "other" if visits < 3 else "done"

    async def other(ctx: Any) -> str:
        return "work"

    probe = Probe(numbers(1, 3), close=close)
    store = MemoryCheckpointStore()
    flow = machine(probe, store).register("other", other)
    assert await flow.orchestrate("work", workflow_id="r") == "done"
    assert probe.opened == [None, None, None]


async def test_a_workflow_and_its_store_work_in_several_event_loops(tmp_path: Any) -> None:
    """BR-66."""
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    probe = Probe(numbers(1, 5), flush=lambda outputs: Stop("stopped") if outputs == [5] else None)
    flow = machine(probe, store)
    results: list[str] = []

    def in_a_thread(name: str) -> None:
        for turn in range(2):
            results.append(asyncio.run(flow.orchestrate("work", workflow_id=f"{name}{turn}")))

    threads = [threading.Thread(target=in_a_thread, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    results.append(await flow.orchestrate("work", workflow_id="here"))
    while any(thread.is_alive() for thread in threads):
        await asyncio.sleep(0.005)
    assert results == ["stopped"] * 5
    await store.close()
