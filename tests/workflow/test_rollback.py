"""Rollbacks: nothing cuts them, every outcome is told, and what is on record is neither forgotten nor done twice."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CancellationToken,
    CanoError,
    CheckpointRow,
    CheckpointStoreError,
    CompensationFailedError,
    CursorError,
    MemoryCheckpointStore,
    OrphanedCompensationError,
    RateLimitedError,
    ResourceNotFoundError,
    RetryExhaustedError,
    RowKind,
    RunFencedError,
    SqliteCheckpointStore,
    TaskConfig,
    TaskExecutionError,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowObserver,
    WorkflowTimeoutError,
    WorkflowVersionMismatchError,
)
from cano.testing import Crashed, FaultyStore
from tests.sagas import Failing, Unclaimed, begin, kinds, raises, saga
from tests.streams import turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

BOOM = raises(ValueError("boom"))


def undone(log: list[str]) -> list[str]:
    return [entry for entry in log if entry.startswith("-")]


# -- nothing cuts a compensation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["token", "task", "task twice", "drain_timeout", "abort", "total timeout"])
async def test_no_way_to_stop_cuts_a_compensation(how: str) -> None:
    """BR-127."""
    log, token, at_work = [], CancellationToken(), asyncio.Event()
    limit = 0.4 if how == "total timeout" else None  # enough for the steps, and not for the rollback

    async def take_time(ctx: Any, output: int) -> None:
        at_work.set()
        await asyncio.sleep((limit or 0.08) / 2.5)

    hooks = {name: {"undo": take_time} for name in ("a", "b", "c")}
    built = saga(
        log,
        last=BOOM,
        hooks=hooks,
        drain_timeout=0.01 if how == "drain_timeout" else 60,
        total_timeout=limit,
    )
    running = asyncio.create_task(begin(built, token=token))
    await at_work.wait()
    if how in ("token", "drain_timeout", "abort"):
        token.cancel()
    if how == "abort":
        token.abort()
    for _ in range({"task": 1, "task twice": 2}.get(how, 0)):
        running.cancel()
        await turns()
    with pytest.raises(asyncio.CancelledError if "task" in how else TaskExecutionError) as caught:
        await running
    assert undone(log) == ["-C 3", "-B 2", "-A 1"]
    if "task" in how:
        assert isinstance(caught.value.__cause__, TaskExecutionError)


@pytest.mark.parametrize("how", ["token", "drain_timeout", "task twice"])
async def test_a_second_stop_does_not_cut_the_rollback_that_a_first_one_began(how: str) -> None:
    """BR-127."""
    log, token, at_work = [], CancellationToken(), asyncio.Event()

    async def take_time(ctx: Any, output: int) -> None:
        at_work.set()
        await asyncio.sleep(0.03)

    hooks = {name: {"undo": take_time} for name in ("a", "b", "c")}
    built = saga(log, last=lambda ctx: asyncio.Event().wait(), hooks=hooks, drain_timeout=0.02 if how == "drain_timeout" else 60)
    running = asyncio.create_task(begin(built, token=token))
    while "last" not in log:
        await asyncio.sleep(0)
    running.cancel() if how == "task twice" else token.cancel()
    await at_work.wait()
    if how == "token":
        token.abort()
    elif how == "task twice":
        running.cancel()
        await turns()
        running.cancel()
    with pytest.raises(asyncio.CancelledError if how == "task twice" else WorkflowCancelledError):
        await running
    assert undone(log) == ["-C 3", "-B 2", "-A 1"]


@pytest.mark.parametrize("aborted", [False, True])
async def test_a_rollback_in_a_drain_is_sheltered_and_the_teardown_after_it_is_bounded_again(aborted: bool) -> None:
    log, token, cut = [], CancellationToken(), []

    class Resource:
        async def __aenter__(self) -> None: ...

        async def __aexit__(self, *exc: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cut.append("teardown")

    async def leaks(ctx: Any, output: int) -> None:
        await asyncio.sleep(0.04)
        raise asyncio.CancelledError

    async def hang(ctx: Any) -> None:
        log.append("hangs")
        try:
            await asyncio.Event().wait()
        finally:
            await turns()  # so that the drain's timer is running when the rollback begins

    hooks: Any = {"b": {"undo": leaks}, "c": {"run": hang if aborted else None}}
    built = saga(log, last=hang, hooks=hooks, drain_timeout=0.02, resources={"r": Resource()})
    running = asyncio.create_task(begin(built, token=token))
    while "hangs" not in log:
        await asyncio.sleep(0)
    await turns()
    token.cancel()
    with pytest.raises(CompensationFailedError) as caught:
        await asyncio.wait_for(running, 5)
    assert [error.category for error in caught.value.errors] == ["cancelled", "task_execution"]
    assert undone(log)[-1] == "-A 1"
    assert cut == ["teardown"]


async def test_compensation_timeout_cuts_what_is_going_on_and_reports_that_and_the_rest_as_orphans_with_their_outputs() -> None:
    """BR-127."""
    store, log = MemoryCheckpointStore(), []
    hooks = {"b": {"undo": lambda ctx, output: asyncio.Event().wait()}}
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(CompensationFailedError) as caught:
        await begin(saga(log, store, last=BOOM, hooks=hooks, compensation_timeout=0.05))
    assert loop.time() - began < 2
    original, cut, *orphans = caught.value.errors
    assert isinstance(original.__cause__, ValueError)
    assert isinstance(cut, AttemptTimeoutError)
    assert [(type(orphan), orphan.task, orphan.output) for orphan in orphans] == [
        (OrphanedCompensationError, "B", 2),
        (OrphanedCompensationError, "A", 1),
    ]
    assert undone(log) == ["-C 3"]
    assert await store.list_runs() == ["r"]
    log.clear()
    with pytest.raises(TaskExecutionError):
        await saga(log, store, last=BOOM, compensation_timeout=5).resume_from("r")
    assert log == ["-B 2", "-A 1"]


async def test_a_compensation_timeout_of_zero_orphans_every_step() -> None:
    log: list[str] = []
    with pytest.raises(CompensationFailedError) as caught:
        await begin(saga(log, last=BOOM, compensation_timeout=0))
    assert [orphan.output for orphan in caught.value.errors[1:]] == [3, 2, 1]
    assert undone(log) == []


async def test_a_compensations_own_attempt_timeout_is_its_failure_and_it_is_not_tried_again() -> None:
    log, begun = [], []

    async def hang(ctx: Any, output: int) -> None:
        begun.append(ctx.attempt)
        await asyncio.Event().wait()

    built = saga(log, last=BOOM, hooks={"b": {"undo": hang}}, compensation_timeout=60)
    built._states["b"].task.config = TaskConfig(attempt_timeout=0.02)
    with pytest.raises(CompensationFailedError) as caught:
        await begin(built)
    assert [type(error) for error in caught.value.errors] == [TaskExecutionError, AttemptTimeoutError]
    assert begun == [1]
    assert undone(log) == ["-C 3", "-A 1"]


# -- what is told -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leak", [ValueError, asyncio.CancelledError, TimeoutError])
async def test_failing_compensations_are_collected_behind_the_original_and_the_rest_still_run(leak: type[BaseException]) -> None:
    log: list[str] = []
    hooks = {"c": {"undo": raises(leak("c"))}, "a": {"undo": raises(KeyError("a"))}}
    with pytest.raises(CompensationFailedError) as caught:
        await begin(saga(log, last=BOOM, hooks=hooks))
    first, second, third = caught.value.errors
    assert str(first.__cause__) == "boom"
    assert (first.state, first.path) == ("last", ("a", "b", "c", "last"))
    assert isinstance(second.__cause__, leak)
    assert isinstance(third.__cause__, KeyError)
    assert (second.state, third.state) == ("c", "a")
    assert undone(log) == ["-B 2"]
    error = caught.value
    assert (error.category, error.state, error.path) == ("compensation_failed", "last", ("a", "b", "c", "last"))
    assert error.__cause__ is first


async def test_a_clean_rollback_clears_the_log_and_the_original_error_surfaces_as_itself() -> None:
    store = MemoryCheckpointStore()
    with pytest.raises(TaskExecutionError) as caught:
        await begin(saga([], store, last=BOOM))
    assert await store.list_runs() == []
    assert (caught.value.state, caught.value.attempt) == ("last", 1)
    assert str(caught.value.__cause__) == "boom"
    with pytest.raises(CheckpointStoreError, match="no checkpoint rows"):
        await saga([], store).resume_from("r")


async def test_a_dirty_rollback_keeps_the_log_and_a_resume_tries_again_only_what_failed() -> None:
    store, log, broken = MemoryCheckpointStore(), [], ["a", "c"]

    def maybe(ctx: Any, output: int) -> None:
        if ctx.state in broken:
            raise ConnectionError

    hooks = {name: {"undo": maybe} for name in ("a", "b", "c")}
    for _ in range(2):
        with pytest.raises(CompensationFailedError) as caught:
            await (begin(saga(log, store, last=BOOM, hooks=hooks)) if not log else saga(log, store, hooks=hooks).resume_from("r"))
        assert caught.value.errors[0].category == "task_execution"
        assert len(caught.value.errors) == 3
    assert log == ["+A", "+B", "+C", "last", "-B 2"]
    broken.remove("a")
    with pytest.raises(CompensationFailedError):
        await saga(log, store, hooks=hooks).resume_from("r")
    assert sum(row.kind is RowKind.ROLLBACK_STARTED for row in await store.load_run("r")) == 1
    broken.clear()
    with pytest.raises(TaskExecutionError) as last:
        await saga(log, store, hooks=hooks).resume_from("r")
    assert log[4:] == ["-B 2", "-A 1", "-C 3"]
    assert (last.value.state, last.value.path) == ("last", ("a", "b", "c", "last"))
    assert await store.list_runs() == []


async def test_observers_are_told_of_each_compensation_and_how_the_run_ended() -> None:
    told: list[Any] = []

    class Watching(WorkflowObserver):
        def on_compensation(self, event: Any) -> None:
            told.append((event.task, None if event.error is None else type(event.error.__cause__)))

        def on_task_failure(self, event: Any) -> None:
            told.append(("failed", event.task))

        def on_run_end(self, event: Any) -> None:
            told.append(("end", event.outcome))

    with pytest.raises(CompensationFailedError):
        await begin(saga([], last=BOOM, hooks={"b": {"undo": raises(KeyError())}}, observers=[Watching()]))
    assert told == [("failed", "last"), ("C", None), ("B", KeyError), ("A", None), ("end", "failed")]
    told.clear()
    token = CancellationToken()
    with pytest.raises(WorkflowCancelledError):
        await begin(saga([], last=lambda ctx: token.cancel(), observers=[Watching()]), token=token)
    assert told == [("C", None), ("B", None), ("A", None), ("end", "cancelled")]


async def test_a_cancel_whose_rollback_fails_carries_the_cancellation_first() -> None:
    token = CancellationToken()
    with pytest.raises(CompensationFailedError) as caught:
        await begin(saga([], last=lambda ctx: token.cancel(), hooks={"b": {"undo": BOOM}}), token=token)
    assert [error.category for error in caught.value.errors] == ["cancelled", "task_execution"]


async def test_a_total_timeout_whose_steps_are_undone_surfaces_as_the_timeout() -> None:
    with pytest.raises(WorkflowTimeoutError) as caught:
        await begin(saga([], last=lambda ctx: asyncio.Event().wait(), total_timeout=0.03))
    assert caught.value.limit == 0.03
    assert caught.value.elapsed >= 0.03


async def test_no_message_of_a_rollback_holds_an_output() -> None:
    hooks = {"c": {"undo": raises(KeyError("s3cret"))}, "b": {"run": lambda ctx: ("c", "s3cret")}}
    with pytest.raises(CompensationFailedError) as caught:
        await begin(saga([], last=BOOM, hooks=hooks, compensation_timeout=0))
    for error in (caught.value, *caught.value.errors):
        assert "s3cret" not in f"{error} {error!r}"


# -- the store fails, or is somebody else's -----------------------------------------------------------------------------


async def test_nothing_is_undone_before_that_is_on_record_and_the_run_can_then_go_forward() -> None:
    broken = True
    store = Failing(lambda row: broken and row.kind is RowKind.ROLLBACK_STARTED)
    log: list[str] = []
    with pytest.raises(CompensationFailedError, match="nothing was undone") as caught:
        await begin(saga(log, store, last=BOOM))
    first, second = caught.value.errors
    assert str(first.__cause__) == "boom"
    assert isinstance(second, CheckpointStoreError)
    assert undone(log) == []
    broken = False
    assert await saga(log, store).resume_from("r") == "done"
    assert log == ["+A", "+B", "+C", "last", "last"]


async def test_a_compensation_whose_row_fails_is_reported_done_again_by_a_resume_and_stops_no_other() -> None:
    broken = True
    store = Failing(lambda row: broken and row.kind is RowKind.COMPENSATED and row.state == "b")
    log: list[str] = []
    with pytest.raises(CompensationFailedError) as caught:
        await begin(saga(log, store, last=BOOM))
    assert [type(error) for error in caught.value.errors] == [TaskExecutionError, CheckpointStoreError]
    assert undone(log) == ["-C 3", "-B 2", "-A 1"]
    broken = False
    log.clear()
    with pytest.raises(TaskExecutionError):
        await saga(log, store).resume_from("r")
    assert log == ["-B 2"]


async def test_an_append_that_failed_although_it_took_place_does_not_fence_the_rollback() -> None:
    class Mumbling(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            await super().append(workflow_id, row)
            if row.kind is RowKind.COMPENSATION and row.state == "b":
                raise TimeoutError

    store, log = Mumbling(), []
    with pytest.raises(CheckpointStoreError):
        await begin(saga(log, store))
    assert log == ["+A", "+B", "-B 2", "-A 1"]
    assert await store.list_runs() == []


async def test_a_run_that_was_overtaken_undoes_nothing_and_leaves_the_log_alone() -> None:
    refused: list[int] = []

    class Refusing(Unclaimed):
        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            try:
                await super().append(workflow_id, row)
            except CheckpointStoreError:
                refused.append(row.sequence)
                raise

    store, log = Refusing(), []

    async def overtaken(ctx: Any) -> None:
        rows = await store.load_run("r")
        await store.append("r", CheckpointRow(rows[-1].sequence + 1, RowKind.STATE_ENTRY, "last", "other", visit=3))

    told: list[str] = []

    class Watching(WorkflowObserver):
        def on_compensation(self, event: Any) -> None:
            told.append(event.task)

    with pytest.raises(RunFencedError) as caught:
        await begin(saga(log, store, last=overtaken, observers=[Watching()]))
    assert undone(log) == told == []
    assert caught.value.state == "done"
    assert len(refused) == 1
    rows = await store.load_run("r")
    assert rows[-1].task == "other"

    async def overtaken_and_fails(ctx: Any) -> None:
        await overtaken(ctx)
        raise ValueError

    with pytest.raises(RunFencedError) as fenced:
        await saga(log, store, last=overtaken_and_fails).resume_from("r")
    assert undone(log) == []
    assert fenced.value.state == "last"
    assert (await store.load_run("r"))[-1].task == "other"


async def test_a_run_that_is_overtaken_in_mid_rollback_stops_undoing() -> None:
    store, log = Unclaimed(), []

    async def overtaken(ctx: Any, output: int) -> None:
        rows = await store.load_run("r")
        await store.append("r", CheckpointRow(rows[-1].sequence + 1, RowKind.COMPENSATED, "c", "C", blob=b"5", visit=2))

    with pytest.raises(RunFencedError):
        await begin(saga(log, store, last=BOOM, hooks={"c": {"undo": overtaken}}))
    assert undone(log) == ["-C 3"]
    assert await store.list_runs() == ["r"]
    log.clear()
    with pytest.raises(TaskExecutionError):
        await saga(log, store).resume_from("r")
    assert log == ["-B 2", "-A 1"]


async def test_of_two_that_resume_one_rollback_only_one_undoes_each_step() -> None:
    store, log = Unclaimed(), []
    hooks = {name: {"undo": raises(KeyError())} for name in ("a", "b", "c")}
    with pytest.raises(CompensationFailedError):
        await begin(saga(log, store, last=BOOM, hooks=hooks))
    log.clear()
    ends = await asyncio.gather(
        *(saga(log, store, hooks={"c": {"undo": lambda ctx, output: turns(3)}}).resume_from("r") for _ in range(2)),
        return_exceptions=True,
    )
    assert sorted(type(end).__name__ for end in ends) == ["RunFencedError", "TaskExecutionError"]
    assert sorted(undone(log)) == ["-A 1", "-B 2", "-C 3", "-C 3"]
    assert await store.list_runs() == []


async def test_a_stored_output_that_cannot_be_read_is_a_failure_and_its_compensation_is_not_called() -> None:
    store, log = MemoryCheckpointStore(), []
    with pytest.raises(KeyboardInterrupt):
        await begin(saga(log, store, last=raises(KeyboardInterrupt())))
    store._logs["r"] = [
        CheckpointRow(row.sequence, row.kind, row.state, row.task, b"{", row.next_state, row.visit)
        if row.kind is RowKind.COMPENSATION and row.state == "b"
        else row
        for row in store._logs["r"]
    ]
    with pytest.raises(CompensationFailedError) as caught:
        await saga(log, store, last=BOOM).resume_from("r")
    assert isinstance(caught.value.errors[1], CursorError)
    assert undone(log) == ["-C 3", "-A 1"]


async def test_a_damaged_record_of_a_rollback_is_refused_and_left_as_it_is() -> None:
    store, log = MemoryCheckpointStore(), []
    with pytest.raises(CompensationFailedError):
        await begin(saga(log, store, last=BOOM, hooks={"a": {"undo": BOOM}}))
    for blob in (b"", b"{", b"[]", b"{}", b"null", b'{"kind": 1}', None):
        store._logs["r"] = [
            CheckpointRow(row.sequence, row.kind, row.state, row.task, blob, visit=row.visit)
            if row.kind is RowKind.ROLLBACK_STARTED
            else row
            for row in store._logs["r"]
        ]
        before = await store.load_run("r")
        log.clear()
        with pytest.raises(CheckpointStoreError, match="damaged"):
            await saga(log, store).resume_from("r")
        assert log == []
        assert await store.load_run("r") == before


# -- on record ----------------------------------------------------------------------------------------------------------


def custom() -> CanoError:
    class Mine(RateLimitedError):
        category = "mine"

    return Mine("too fast", tier="gold", retry_after=2.5)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ValueError("secret"), (TaskExecutionError, "task_execution", {})),
        (
            RateLimitedError("slow down", tier="gold", retry_after=2.5),
            (RateLimitedError, "rate_limited", {"tier": "gold", "retry_after": 2.5}),
        ),
        (
            RateLimitedError("slow down", retry_after=float("inf")),
            (RateLimitedError, "rate_limited", {"retry_after": float("inf")}),
        ),
        (ResourceNotFoundError("no db"), (ResourceNotFoundError, "resource_not_found", {})),
        (RetryExhaustedError("three times", attempts=2**70), (RetryExhaustedError, "retry_exhausted", {"attempts": 2**70})),
        (
            WorkflowVersionMismatchError("v", stored=1, expected=2),
            (WorkflowVersionMismatchError, "workflow_version_mismatch", {"stored": 1}),
        ),
        (custom(), (RateLimitedError, "mine", {"tier": "gold", "retry_after": 2.5})),
        (WorkflowError("lone \ud800 surrogate"), (WorkflowError, "workflow", {})),
    ],
)
async def test_the_original_error_surfaces_again_after_a_restart(error: Exception, shown: Any) -> None:
    store, log = MemoryCheckpointStore(), []
    with pytest.raises(CompensationFailedError) as first:
        await begin(saga(log, store, last=raises(error), hooks={"a": {"undo": BOOM}}))
    before = first.value.errors[0]
    assert isinstance(before, CanoError)
    with pytest.raises(CanoError) as caught:
        await saga(log, store).resume_from("r")
    after = caught.value
    assert (after.category, after.state, after.attempt, after.path) == (before.category, "last", 1, ("a", "b", "c", "last"))
    assert str(after) == str(before)
    kind, category, fields = shown
    assert (type(after), after.category) == (kind, category)
    assert {name: getattr(after, name) for name in fields} == fields


async def test_a_cancel_that_asked_for_a_rollback_is_what_surfaces_when_a_resume_ends_it() -> None:
    store, log, token = MemoryCheckpointStore(), [], CancellationToken()
    built = saga(log, store, last=lambda ctx: token.cancel(rollback=True), hooks={"a": {"undo": BOOM}})
    with pytest.raises(CompensationFailedError):
        await begin(built, token=token)
    with pytest.raises(WorkflowCancelledError):
        await saga(log, store).resume_from("r")
    assert undone(log) == ["-C 3", "-B 2", "-A 1"]
    assert await store.list_runs() == []


async def test_a_run_that_was_rolling_back_never_moves_forward_whatever_the_workflow_would_do_now() -> None:
    store, log = MemoryCheckpointStore(), []
    with pytest.raises(CompensationFailedError):
        await begin(saga(log, store, last=BOOM, hooks={"a": {"undo": BOOM}}))
    log.clear()
    entered: list[Any] = []

    class Watching(WorkflowObserver):
        def on_state_enter(self, event: Any) -> None:
            entered.append(event.state)

        def on_task_start(self, event: Any) -> None:
            entered.append(event.task)

    with pytest.raises(CompensationFailedError):
        await saga(log, store, hooks={"a": {"undo": BOOM}}, observers=[Watching()]).resume_from("r")
    with pytest.raises(TaskExecutionError):
        await saga(log, store, observers=[Watching()]).orchestrate("a", workflow_id="r", if_exists="resume")
    assert log == ["-A 1"]
    assert entered == []


async def test_a_stop_before_a_resumed_rollback_changes_nothing_and_one_during_it_does_not_cut_it() -> None:
    store, log = MemoryCheckpointStore(), []
    with pytest.raises(CompensationFailedError):
        await begin(saga(log, store, last=BOOM, hooks={"a": {"undo": BOOM}}))
    before, token = await store.load_run("r"), CancellationToken()
    token.cancel()
    log.clear()
    with pytest.raises(WorkflowCancelledError):
        await saga(log, store).resume_from("r", token=token)
    assert await store.load_run("r") == before
    during = CancellationToken()

    async def cancels(ctx: Any, output: int) -> None:
        during.cancel()
        during.abort()
        await asyncio.sleep(0.01)

    with pytest.raises(TaskExecutionError):
        await saga(log, store, hooks={"a": {"undo": cancels}}).resume_from("r", token=during)
    assert log == ["-A 1"]


async def test_resources_are_up_while_a_rollback_runs_and_while_it_is_resumed() -> None:
    store, log = MemoryCheckpointStore(), []

    class Resource:
        async def __aenter__(self) -> Any:
            log.append("up")
            return "handle"

        async def __aexit__(self, *exc: Any) -> None:
            log.append("down")

    def undo(ctx: Any, output: int) -> None:
        assert ctx["r"] == "handle"
        log.append(ctx.get("r", str))
        if log.count("up") == 1:
            raise ValueError

    hooks = {name: {"undo": undo} for name in ("a", "b", "c")}
    with pytest.raises(CompensationFailedError):
        await begin(saga(log, store, last=BOOM, hooks=hooks, resources={"r": Resource()}))
    assert log[-4:] == ["handle", "handle", "handle", "down"]
    log.clear()
    log.append("up")
    with pytest.raises(TaskExecutionError):
        await saga(log, store, hooks=hooks, resources={"r": Resource()}).resume_from("r")
    assert log == ["up", "up", "handle", "-C 3", "handle", "-B 2", "handle", "-A 1", "down"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_a_base_exception_of_a_compensation_passes_like_a_crash_and_the_rest_is_left_for_a_resume(
    error: type[BaseException],
) -> None:
    store, log = MemoryCheckpointStore(), []
    with pytest.raises(error):
        await begin(saga(log, store, last=BOOM, hooks={"b": {"undo": raises(error())}}))
    assert undone(log) == ["-C 3"]
    log.clear()
    with pytest.raises(TaskExecutionError):
        await saga(log, store).resume_from("r")
    assert log == ["-B 2", "-A 1"]


async def test_any_other_base_exception_of_a_run_undoes_nothing() -> None:
    for store in (None, MemoryCheckpointStore()):
        log: list[str] = []
        with pytest.raises(KeyboardInterrupt):
            await begin(saga(log, store, last=raises(KeyboardInterrupt())))
        assert undone(log) == []


async def test_a_log_that_cannot_be_cleared_after_a_clean_rollback_changes_nothing_and_is_cleared_by_a_resume() -> None:
    class Sticky(MemoryCheckpointStore):
        stuck = True

        async def clear(self, workflow_id: str) -> None:
            if self.stuck:
                raise OSError
            await super().clear(workflow_id)

    told: list[str] = []

    class Watching(WorkflowObserver):
        def on_checkpoint_clear_failed(self, event: Any) -> None:
            told.append(event.error.category)

    store, log = Sticky(), []
    with pytest.raises(TaskExecutionError):
        await begin(saga(log, store, last=BOOM, observers=[Watching()]))
    assert told == ["checkpoint_store"]
    store.stuck = False
    log.clear()
    with pytest.raises(TaskExecutionError):
        await saga(log, store).resume_from("r")
    assert log == []
    assert await store.list_runs() == []


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("again", [0, 1, 2, 3])
async def test_a_crash_at_any_append_of_a_rollback_undoes_every_step_and_none_again_whose_row_was_written(
    at: int, after: bool, again: int
) -> None:
    """Appends of the rollback: it has begun, then one for each of three steps. The resume may crash as well."""
    store, log = MemoryCheckpointStore(), []
    with pytest.raises(Crashed):
        await begin(saga(log, FaultyStore(store, crash_at=7 + at, before=not after), last=BOOM))
    if at == 1 and not after:  # it was never on record that the run rolls back
        assert undone(log) == []
        assert await saga(log, store).resume_from("r") == "done"
        return
    on_record = [row.state for row in await store.load_run("r") if row.kind is RowKind.COMPENSATED]
    for crash in (again, 0):
        begun = len(log)
        faulty = FaultyStore(store, crash_at=crash or None, before=not after)
        try:
            await saga(log, faulty).resume_from("r")
            pytest.fail("moved forward")
        except Crashed:
            pass
        except TaskExecutionError as error:
            assert error.message == "run of last raised ValueError"
            assert (error.state, error.path, error.category) == ("last", ("a", "b", "c", "last"), "task_execution")
        assert not {f"-{state.upper()}" for state in on_record} & {entry[:2] for entry in log[begun:]}
        on_record = [row.state for row in await store.load_run("r") if row.kind is RowKind.COMPENSATED]
        if not await store.list_runs():
            break
    assert await store.list_runs() == []
    assert sorted(set(undone(log))) == ["-A 1", "-B 2", "-C 3"]
    assert len(undone(log)) <= 3 + (not after) * 2
    assert log[:4] == ["+A", "+B", "+C", "last"]
    assert not set(log[4:]) & {"+A", "+B", "+C", "last"}


async def test_a_rollback_in_sqlite_is_resumed_by_another_store_object(tmp_path: Any) -> None:
    log: list[str] = []
    first, second = SqliteCheckpointStore(tmp_path / "runs.db"), SqliteCheckpointStore(tmp_path / "runs.db")
    with pytest.raises(CompensationFailedError):
        await begin(saga(log, first, last=BOOM, hooks={"b": {"undo": BOOM}}))
    assert (await kinds(second))[-3:] == ["ROLLBACK_STARTED last", "COMPENSATED c", "COMPENSATED a"]
    with pytest.raises(TaskExecutionError):
        await saga(log, second).resume_from("r")
    assert undone(log) == ["-C 3", "-A 1", "-B 2"]
    assert await first.list_runs() == []
    await first.close()
    await second.close()
