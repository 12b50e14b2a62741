"""Sagas going forward: a step and its decision are one row, and what failed or was stopped is undone or paused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CancellationToken,
    CheckpointStoreError,
    CompensatableTask,
    CompensationFailedError,
    CursorError,
    FixedRetry,
    MemoryCheckpointStore,
    OrphanedCompensationError,
    RowKind,
    TaskConfig,
    TaskExecutionError,
    Workflow,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowObserver,
    WorkflowTimeoutError,
)
from tests.models import stopped
from tests.sagas import ONCE, Deed, Failing, Plain, begin, kinds, raises, saga
from tests.streams import turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


# -- forward ------------------------------------------------------------------------------------------------------------


async def test_a_step_its_output_and_its_decision_are_one_row() -> None:
    rows: list[Any] = []

    class Watching(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: Any) -> None:
            rows.append((str(row.kind), row.state, row.task, row.blob, row.next_state))
            await super().append(workflow_id, row)

    log: list[str] = []
    store = Watching()
    assert await begin(saga(log, store)) == "done"
    assert log == ["+A", "+B", "+C", "last"]
    assert rows[:4] == [
        ("STATE_ENTRY", "a", "A", None, None),
        ("COMPENSATION", "a", "A", b"1", "b"),
        ("STATE_ENTRY", "b", "B", None, None),
        ("COMPENSATION", "b", "B", b"2", "c"),
    ]
    assert await store.list_runs() == []


async def test_a_resume_goes_on_after_a_completed_step_and_never_runs_it_twice() -> None:
    store, log = MemoryCheckpointStore(), []
    with pytest.raises(KeyboardInterrupt):
        await begin(saga(log, store, last=raises(KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        await saga(log, store, last=raises(KeyboardInterrupt())).resume_from("r")
    assert await saga(log, store).resume_from("r") == "done"
    assert log == ["+A", "+B", "+C", "last", "last", "last"]


async def test_a_crash_right_after_the_row_of_a_step_goes_on_with_its_decision() -> None:
    class Stops(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: Any) -> None:
            await super().append(workflow_id, row)
            if row.kind is RowKind.COMPENSATION and row.state == "b":
                raise KeyboardInterrupt

    store, log = Stops(), []
    with pytest.raises(KeyboardInterrupt):
        await begin(saga(log, store))
    with pytest.raises(TaskExecutionError) as caught:
        await saga(log, store, last=raises(ValueError())).resume_from("r")
    assert log == ["+A", "+B", "+C", "last", "-C 3", "-B 2", "-A 1"]
    assert caught.value.path == ("a", "b", "c", "last")


async def test_a_step_is_retried_and_only_its_completion_counts() -> None:
    log: list[str] = []

    def second_time(ctx: Any) -> None:
        if ctx.attempt == 1:
            log.append("failed")
            raise ValueError

    built = saga(log, hooks={"b": {"run": second_time}}, last=raises(ValueError()))
    built._states["b"].task.config = TaskConfig(retry=FixedRetry(1, 0))
    with pytest.raises(TaskExecutionError):
        await begin(built)
    assert log == ["+A", "failed", "+B", "+C", "last", "-C 3", "-B 2", "-A 1"]


async def test_a_step_that_failed_or_timed_out_is_not_undone_but_those_before_it_are() -> None:
    log: list[str] = []
    with pytest.raises(TaskExecutionError):
        await begin(saga(log, hooks={"c": {"run": raises(ValueError())}}))
    assert log == ["+A", "+B", "-B 2", "-A 1"]
    built = saga(log, hooks={"c": {"run": lambda ctx: asyncio.Event().wait()}})
    built._states["c"].task.config = TaskConfig(retry=ONCE.retry, attempt_timeout=0.01)
    log.clear()
    with pytest.raises(AttemptTimeoutError):
        await begin(built)
    assert log == ["+A", "+B", "-B 2", "-A 1"]


@pytest.mark.parametrize("with_store", [False, True])
@pytest.mark.parametrize("failing", ["a", "b", "c", "last", None])
async def test_for_every_point_of_failure_exactly_what_was_completed_is_undone_last_first(
    failing: str | None, with_store: bool
) -> None:
    log: list[str] = []
    store = MemoryCheckpointStore() if with_store else None
    hooks = {failing: {"run": raises(ValueError())}} if failing in ("a", "b", "c") else {}
    built = saga(log, store, hooks=hooks, last=raises(ValueError()) if failing == "last" else None)
    if failing is None:
        assert await begin(built) == "done"
        assert log == ["+A", "+B", "+C", "last"]
        return
    with pytest.raises(TaskExecutionError) as caught:
        await begin(built)
    assert caught.value.state == failing
    assert isinstance(caught.value.__cause__, ValueError)
    done = {"a": 0, "b": 1, "c": 2, "last": 3}[failing]
    assert [entry for entry in log if entry.startswith("-")] == ["-C 3", "-B 2", "-A 1"][3 - done :]
    if store is not None:
        assert (await store.list_runs() == []) == (done > 0)


async def test_plain_states_between_steps_contribute_nothing() -> None:
    log: list[str] = []
    built = Workflow[str]().register("a", Deed(log, "A", 1, "p")).register("p", Plain(log, "P", "b"))
    built.register("b", Deed(log, "B", 2, "q")).register("q", Plain(log, "Q", "", raises(ValueError()))).add_exit_state("done")
    with pytest.raises(TaskExecutionError):
        await begin(built)
    assert log == ["+A", "P", "+B", "Q", "-B 2", "-A 1"]


async def test_a_step_visited_twice_is_undone_twice_with_each_output() -> None:
    log: list[str] = []
    store = MemoryCheckpointStore()

    class Count(CompensatableTask[str, int]):
        config = ONCE

        async def run(self, ctx: Any) -> tuple[str, int]:
            ctx.data["n"] += 1
            return ("a" if ctx.data["n"] < 3 else "b"), ctx.data["n"]

        async def compensate(self, ctx: Any, output: int) -> None:
            log.append(f"-{output}")

    built = Workflow[str](checkpoint_store=store).register("a", Count()).register("b", Plain(log, "b", "", raises(ValueError())))
    with pytest.raises(TaskExecutionError):
        await begin(built.add_exit_state("done"), data={"n": 0})
    assert log == ["b", "-3", "-2", "-1"]


async def test_sixty_steps_are_undone_in_reverse() -> None:
    log: list[str] = []
    built = Workflow[str]().add_exit_state("done").register("s60", Plain(log, "last", "", raises(ValueError())))
    for number in range(60):
        built.register(f"s{number}", Deed(log, f"S{number}", number, f"s{number + 1}"))
    with pytest.raises(TaskExecutionError):
        await begin(built, "s0")
    assert log[61:] == [f"-S{number} {number}" for number in reversed(range(60))]


@dataclass(frozen=True)
class Charge:
    amount: Decimal
    at: datetime
    parts: tuple[int, ...]


async def test_an_output_of_a_declared_type_comes_back_equal_and_of_that_type() -> None:
    charge = Charge(Decimal("1.10"), datetime(2026, 1, 2, tzinfo=UTC), (1, 2))
    seen: list[Any] = []

    class ByParameter(CompensatableTask[str, Charge]):
        config = ONCE

        async def run(self, ctx: Any) -> Any:
            return "b", charge

        async def compensate(self, ctx: Any, output: Charge) -> None:
            seen.append(output)

    class ByAnnotation(CompensatableTask[Any, Any]):
        config = ONCE

        async def run(self, ctx: Any) -> tuple[str, Decimal]:
            return "last", Decimal("2.50")

        async def compensate(self, ctx: Any, output: Decimal) -> None:
            seen.append(output)

    for store in (None, MemoryCheckpointStore()):
        built = Workflow[str](checkpoint_store=store).register("a", ByParameter()).register("b", ByAnnotation())
        built.register("last", Plain([], "last", "", raises(KeyboardInterrupt() if store else ValueError()))).add_exit_state(
            "done"
        )
        if store is None:
            with pytest.raises(TaskExecutionError):
                await begin(built)
            continue
        with pytest.raises(KeyboardInterrupt):
            await begin(built)
        again = Workflow[str](checkpoint_store=store).register("a", ByParameter()).register("b", ByAnnotation())
        again.register("last", Plain([], "last", "", raises(ValueError()))).add_exit_state("done")
        with pytest.raises(TaskExecutionError):
            await again.resume_from("r")
    assert seen == [Decimal("2.50"), charge] * 2
    assert [type(output) for output in seen] == [Decimal, Charge] * 2
    assert seen[1] is not charge


async def test_each_step_sees_and_stores_the_data_with_its_row() -> None:
    store, seen = MemoryCheckpointStore(), []

    def add(ctx: Any) -> None:
        ctx.data["done"].append(ctx.state)

    def look(ctx: Any, output: int) -> None:
        seen.append(list(ctx.data["done"]))
        ctx.data["done"].append(f"un{ctx.state}")

    hooks = {name: {"run": add, "undo": look} for name in ("a", "b", "c")}

    def fail(ctx: Any) -> None:
        ctx.data["done"].append("half")
        raise ValueError

    undone: list[Any] = []

    class Watching(WorkflowObserver):
        def on_checkpoint(self, event: Any) -> None:
            if event.kind == "COMPENSATED":
                undone.append(event.sequence)

    class Keeping(MemoryCheckpointStore):
        last: Any = None

        async def append(self, workflow_id: str, row: Any) -> None:
            self.last = row.data
            await super().append(workflow_id, row)

    store = Keeping()
    with pytest.raises(TaskExecutionError):
        await begin(saga([], store, hooks=hooks, last=fail, observers=[Watching()]), data={"done": []})
    assert seen == [["a", "b", "c"], ["a", "b", "c", "unc"], ["a", "b", "c", "unc", "unb"]]
    assert store.last == b'{"done":["a","b","c","unc","unb","una"]}'
    assert len(undone) == 3


# -- what a completed step may still get wrong --------------------------------------------------------------------------


@pytest.mark.parametrize("with_store", [False, True])
async def test_an_output_that_cannot_be_stored_is_undone_at_once_with_that_very_output(with_store: bool) -> None:
    log, thing = [], object()
    got: list[Any] = []
    store = MemoryCheckpointStore() if with_store else None
    told: list[tuple[str, Any]] = []

    class Watching(WorkflowObserver):
        def on_compensation(self, event: Any) -> None:
            told.append((event.task, event.error))

    hooks = {"b": {"run": lambda ctx: ("c", thing), "undo": lambda ctx, output: got.append(output)}}
    with pytest.raises(CursorError, match="output of B") as caught:
        await begin(saga(log, store, hooks=hooks, observers=[Watching()]))
    assert got == [thing]
    assert log[:2] == ["+A", "+B"]
    assert log[2].startswith("-B <object")
    assert log[3:] == ["-A 1"]
    assert caught.value.state == "b"
    assert told == [("B", None), ("A", None)]
    if store is not None:
        assert await store.list_runs() == []


async def test_an_undoing_at_once_that_fails_is_reported_with_the_output_and_keeps_the_log() -> None:
    store, log, thing = MemoryCheckpointStore(), [], object()
    hooks = {"b": {"run": lambda ctx: ("c", thing), "undo": raises(KeyError("no"))}}
    with pytest.raises(CompensationFailedError) as caught:
        await begin(saga(log, store, hooks=hooks))
    first, *others = caught.value.errors
    assert isinstance(first, CursorError)
    assert first.state == "b"
    assert caught.value.state == "b"
    assert any(isinstance(error.__cause__, KeyError) for error in others)
    orphans = [error for error in others if isinstance(error, OrphanedCompensationError)]
    assert [(orphan.task, orphan.output) for orphan in orphans] == [("B", thing)]
    assert log == ["+A", "+B", "-A 1"]
    assert await store.list_runs() == ["r"]
    assert not any(isinstance(error, CompensationFailedError) for error in caught.value.errors)


async def test_an_undoing_at_once_that_leaks_a_cancelled_error_has_failed_and_cancelled_nothing() -> None:
    hooks = {"b": {"run": lambda ctx: ("c", object()), "undo": raises(asyncio.CancelledError())}}
    with pytest.raises(CompensationFailedError):
        await begin(saga([], hooks=hooks))


@pytest.mark.parametrize("chosen", ["nowhere", None, 3])
async def test_a_step_that_completed_and_chose_no_state_is_undone_and_the_failure_is_its_own(chosen: Any) -> None:
    for store in (None, MemoryCheckpointStore()):
        log: list[str] = []
        with pytest.raises(WorkflowError, match="B chose") as caught:
            await begin(saga(log, store, hooks={"b": {"run": lambda ctx: (chosen, 2)}}))
        assert log == ["+A", "+B", "-B 2", "-A 1"]
        assert caught.value.state == "b"


@pytest.mark.parametrize("answer", ["c", ("c",), ("c", 1, 2), ["c", 1]])
async def test_a_step_must_return_a_pair(answer: Any) -> None:
    log: list[str] = []
    with pytest.raises(TaskExecutionError, match="pair"):
        await begin(saga(log, hooks={"b": {"run": lambda ctx: answer}}))
    assert log == ["+A", "+B", "-A 1"]


async def test_a_step_whose_row_could_not_be_written_is_undone_with_the_others() -> None:
    log: list[str] = []
    store = Failing(lambda row: row.kind is RowKind.COMPENSATION and row.state == "b")
    with pytest.raises(CheckpointStoreError) as caught:
        await begin(saga(log, store))
    assert isinstance(caught.value.__cause__, OSError)
    assert log == ["+A", "+B", "-B 2", "-A 1"]
    assert await store.list_runs() == []


async def test_data_that_cannot_be_stored_after_a_step_undoes_that_step() -> None:
    log: list[str] = []

    def spoil(ctx: Any) -> None:
        ctx.data["odd"] = object()

    with pytest.raises(TaskExecutionError, match=r"ctx\.data"):
        await begin(saga(log, MemoryCheckpointStore(), hooks={"b": {"run": spoil}}), data={"n": 1})
    assert log == ["+A", "+B", "-B 2", "-A 1"]


# -- whose compensator --------------------------------------------------------------------------------------------------


async def test_compensators_belong_to_states_not_to_names() -> None:
    for with_store in (False, True):
        store = MemoryCheckpointStore() if with_store else None
        log: list[str] = []
        undone: list[Any] = []
        built = Workflow[str](checkpoint_store=store)

        class Marked(Deed):
            mark = ""

            async def compensate(self, ctx: Any, output: int) -> None:
                undone.append((self.mark, ctx.state, output))  # noqa: B023 - called before the next `undone`

        for state, output, then in (("a", 1, "b"), ("b", 2, "last")):
            deed = Marked(log, "Same", output, then)
            deed.mark = state
            built.register(state, deed)
        built.register("last", Plain(log, "last", "", raises(KeyboardInterrupt() if store else ValueError()))).add_exit_state(
            "done"
        )
        if store is None:
            with pytest.raises(TaskExecutionError):
                await begin(built)
        else:
            with pytest.raises(KeyboardInterrupt):
                await begin(built)
            built._states["last"].task.function = raises(ValueError())
            with pytest.raises(TaskExecutionError):
                await built.resume_from("r")
        assert undone == [("b", "b", 2), ("a", "a", 1)]


async def test_a_renamed_state_undoes_what_was_done_under_its_old_name() -> None:
    store, log = MemoryCheckpointStore(), []
    with pytest.raises(KeyboardInterrupt):
        await begin(saga(log, store, last=raises(KeyboardInterrupt())))
    built = Workflow[str](checkpoint_store=store, aliases={"a": "alpha"}).register("alpha", Deed(log, "Alpha", 0, "b"))
    built.register("b", Deed(log, "B", 2, "c")).register("c", Deed(log, "C", 3, "last"))
    built.register("last", Plain(log, "last", "", raises(ValueError()))).add_exit_state("done")
    log.clear()
    with pytest.raises(TaskExecutionError):
        await built.resume_from("r")
    assert log == ["last", "-C 3", "-B 2", "-Alpha 1"]


async def test_a_step_whose_state_lost_its_compensator_is_reported_with_its_output_and_the_rest_are_undone() -> None:
    store, log = MemoryCheckpointStore(), []
    with pytest.raises(KeyboardInterrupt):
        await begin(saga(log, store, last=raises(KeyboardInterrupt())))
    built = Workflow[str](checkpoint_store=store).register("a", Deed(log, "A", 0, "b")).register("b", Plain(log, "b", "c"))
    built.register("last", Plain(log, "last", "", raises(ValueError()))).register("c", Deed(log, "C", 3, "last"))
    log.clear()
    with pytest.raises(CompensationFailedError) as caught:
        await built.add_exit_state("done").resume_from("r")
    assert log == ["last", "-C 3", "-A 1"]
    (orphan,) = caught.value.errors[1:]
    assert isinstance(orphan, OrphanedCompensationError)
    assert (orphan.task, orphan.output) == ("B", b"2")
    assert await store.list_runs() == ["r"]


# -- stopping -----------------------------------------------------------------------------------------------------------


def silent(ctx: Any) -> Any:
    return asyncio.Event().wait()


@pytest.mark.parametrize("how", ["token", "task.cancel()", "total timeout"])
async def test_with_a_store_a_stop_pauses_nothing_is_undone_and_a_resume_goes_on(how: str) -> None:
    store, log, token = MemoryCheckpointStore(), [], CancellationToken()
    built = saga(log, store, last=silent, total_timeout=0.05 if how == "total timeout" else None)
    running = asyncio.create_task(begin(built, token=token))
    while "last" not in log:
        await asyncio.sleep(0)
    await stopped(how, running, token)
    assert log == ["+A", "+B", "+C", "last"]
    assert len(await kinds(store)) == 7
    assert await saga(log, store).resume_from("r") == "done"
    assert log == ["+A", "+B", "+C", "last", "last"]


@pytest.mark.parametrize("how", ["token", "rollback token", "task.cancel()", "total timeout"])
async def test_without_a_store_or_when_asked_to_a_stop_undoes_what_was_done(how: str) -> None:
    store = MemoryCheckpointStore() if how == "rollback token" else None
    log, token = [], CancellationToken()
    built = saga(log, store, last=silent, total_timeout=0.05 if how == "total timeout" else None)
    running = asyncio.create_task(begin(built, token=token))
    while "last" not in log:
        await asyncio.sleep(0)
    if "token" in how:
        token.cancel(rollback=how == "rollback token")
    if how == "task.cancel()":
        running.cancel()
    expected = {"task.cancel()": asyncio.CancelledError, "total timeout": WorkflowTimeoutError}
    with pytest.raises(expected.get(how, WorkflowCancelledError)):
        await running
    assert log == ["+A", "+B", "+C", "last", "-C 3", "-B 2", "-A 1"]
    if store is not None:
        assert await store.list_runs() == []


@pytest.mark.parametrize("place", ["between", "claim", "setup"])
async def test_a_paused_run_is_rolled_back_by_a_resume_whose_token_asks_for_it_whatever_the_timing(place: str) -> None:
    token = CancellationToken()

    class Slow(MemoryCheckpointStore):
        async def load_run(self, workflow_id: str) -> Any:
            if place == "claim":
                token.cancel(rollback=True)
                await turns()
            return await super().load_run(workflow_id)

    store, log = Slow(), []
    pause = CancellationToken()
    with pytest.raises(WorkflowCancelledError):
        await begin(saga(log, store, last=lambda ctx: pause.cancel()), token=pause)

    class Resource:
        async def __aenter__(self) -> Any:
            if place == "setup":
                token.cancel(rollback=True)
                await turns()
            log.append("up")
            return self

        async def __aexit__(self, *exc: Any) -> None:
            log.append("down")

    if place == "between":
        token.cancel(rollback=True)
    log.clear()
    with pytest.raises(WorkflowCancelledError) as caught:
        await saga(log, store, resources={"r": Resource()}).resume_from("r", token=token)
    assert "resume_from" not in str(caught.value)  # there is nothing left to go on with
    assert [entry for entry in log if entry.startswith("-")] == ["-C 3", "-B 2", "-A 1"]
    assert log.count("up") == log.count("down")
    assert await store.list_runs() == []


async def test_a_paused_run_whose_rollback_was_not_clean_is_rolled_back_by_the_next_resume() -> None:
    store, log, pause, token = MemoryCheckpointStore(), [], CancellationToken(), CancellationToken()
    with pytest.raises(WorkflowCancelledError):
        await begin(saga(log, store, last=lambda ctx: pause.cancel()), token=pause)
    token.cancel(rollback=True)
    log.clear()
    with pytest.raises(CompensationFailedError):
        await saga(log, store, hooks={name: {"undo": raises(KeyError())} for name in "abc"}).resume_from("r", token=token)
    with pytest.raises(WorkflowCancelledError):
        await saga(log, store).resume_from("r")
    assert log == ["-C 3", "-B 2", "-A 1"]
    assert await store.list_runs() == []


@pytest.mark.parametrize("how", ["token", "total timeout", "task.cancel()"])
async def test_a_running_step_is_not_interrupted_and_nothing_starts_after_it(how: str) -> None:
    """BR-127."""
    log, token, at_work, gate = [], CancellationToken(), asyncio.Event(), asyncio.Event()

    async def slow(ctx: Any) -> None:
        at_work.set()
        await gate.wait()

    async def take_time(ctx: Any, output: int) -> None:
        await asyncio.sleep(0.02)

    hooks: Any = {name: {"undo": take_time} for name in ("a", "b", "c")}
    hooks["c"]["run"] = slow
    built = saga(log, hooks=hooks, total_timeout=0.02 if how == "total timeout" else None)
    running = asyncio.create_task(begin(built, token=token))
    await at_work.wait()
    if how == "token":
        token.cancel()
    elif how == "task.cancel()":
        running.cancel()
    else:
        await asyncio.sleep(0.04)
    await turns()
    assert not running.done()
    gate.set()
    expected = {"token": WorkflowCancelledError, "task.cancel()": asyncio.CancelledError, "total timeout": WorkflowTimeoutError}
    with pytest.raises(expected[how]):
        await running
    assert log == ["+A", "+B", "+C", "-C 3", "-B 2", "-A 1"]


async def test_a_plain_task_after_steps_is_interrupted_and_they_are_undone() -> None:
    """BR-127."""
    log, token = [], CancellationToken()
    running = asyncio.create_task(begin(saga(log, last=silent), token=token))
    while "last" not in log:
        await asyncio.sleep(0)
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    assert log[4:] == ["-C 3", "-B 2", "-A 1"]


async def test_a_cancel_ends_the_wait_before_another_attempt_of_a_step() -> None:
    log, token = [], CancellationToken()
    built = saga(log, hooks={"b": {"run": raises(ValueError())}})
    built._states["b"].task.config = TaskConfig(retry=FixedRetry(3, 3600))
    running = asyncio.create_task(begin(built, token=token))
    await turns(20)
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(running, 5)
    assert log == ["+A", "-A 1"]


async def test_a_step_in_an_aborted_drain_is_cut_and_those_before_it_are_undone() -> None:
    log: list[str] = []
    built = saga(log, hooks={"c": {"run": silent}}, drain_timeout=0.03)
    token = CancellationToken()
    running = asyncio.create_task(begin(built, token=token))
    while log != ["+A", "+B"]:
        await asyncio.sleep(0)
    await turns()
    token.cancel()
    with pytest.raises(WorkflowCancelledError, match="mid-drain|cancelled"):
        await asyncio.wait_for(running, 5)
    assert log == ["+A", "+B", "-B 2", "-A 1"]


@pytest.mark.parametrize("written", [False, True])
async def test_an_abort_while_a_steps_row_is_written_still_rolls_that_step_back(written: bool) -> None:
    """The append took place or it did not; either way the step was done."""
    at_work, log = asyncio.Event(), []

    class Slow(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: Any) -> None:
            if row.kind is not RowKind.COMPENSATION or row.state != "b":
                return await super().append(workflow_id, row)
            at_work.set()
            try:
                await asyncio.Event().wait()
            finally:
                if written:
                    await super().append(workflow_id, row)

    store, token = Slow(), CancellationToken()
    running = asyncio.create_task(begin(saga(log, store), token=token))
    await at_work.wait()
    token.cancel(rollback=True)
    await turns()
    token.abort()
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(running, 5)
    assert log == ["+A", "+B", "-B 2", "-A 1"]
    assert await store.list_runs() == []
