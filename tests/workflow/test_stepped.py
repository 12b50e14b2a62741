"""Stepped tasks: each step is written down before the next, and a resume goes on there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CancellationToken,
    CanoError,
    CursorError,
    Done,
    FixedRetry,
    MemoryCheckpointStore,
    More,
    RetryExhaustedError,
    RowKind,
    RunFencedError,
    SqliteCheckpointStore,
    SteppedTask,
    TaskConfig,
    TaskExecutionError,
    Workflow,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowTimeoutError,
)
from cano.testing import Crashed, RecordingObserver
from tests.models import dying, elapsed, stopped, until
from tests.streams import cursors, machine, run

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Steps(SteppedTask[str, int]):
    """Counts to `last` and then goes on; `before` may step in ahead of each step."""

    def __init__(self, last: int = 3, before: Callable[..., Any] | None = None, then: str = "done", **attributes: Any) -> None:
        self.last, self.before, self.then = last, before, then
        self.calls: list[int | None] = []
        self.attempts: list[int] = []
        for name, value in attributes.items():
            setattr(self, name, value)

    async def step(self, ctx: Any, cursor: int | None) -> Any:
        self.calls.append(cursor)
        self.attempts.append(ctx.attempt)
        changed = None if self.before is None else self.before(ctx, cursor)
        changed = await changed if asyncio.iscoroutine(changed) else changed
        if changed is not None:
            return changed
        reached = 0 if cursor is None else cursor
        return Done(self.then) if reached == self.last else More(reached + 1)


def at(place: int | None, error: Any) -> Callable[..., Any]:
    def before(ctx: Any, cursor: int | None) -> None:
        if cursor == place:
            raise error

    return before


async def failure(task: Any, store: Any = None, **options: Any) -> CanoError:
    with pytest.raises(CanoError) as caught:
        await run(task, store, **options)
    return caught.value


# -- the cursor ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
async def test_each_step_gets_the_cursor_of_the_one_before(durable: bool) -> None:
    task = Steps(4, then="stopped")
    assert await run(task, MemoryCheckpointStore() if durable else None) == "stopped"
    assert task.calls == [None, 1, 2, 3, 4]
    at_once = Steps(before=lambda ctx, cursor: Done("done"))
    assert await run(at_once) == "done"
    assert at_once.calls == [None]


async def test_a_step_is_written_down_before_the_next_and_its_row_replaces_the_one_before() -> None:
    store = MemoryCheckpointStore()
    stored: list[Any] = []

    async def before(ctx: Any, cursor: int | None) -> None:
        stored.append([(row.sequence, row.kind, row.blob) for row in await store.load_run("r")])

    await run(Steps(3, before), store)
    entry = (0, RowKind.STATE_ENTRY, None)
    assert stored == [[entry]] + [[entry, (step, RowKind.STEP_CURSOR, str(step).encode())] for step in (1, 2, 3)]


async def test_rows_do_not_pile_up_in_a_file_either(tmp_path: Any) -> None:
    """BR-71."""
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    most = 0

    async def before(ctx: Any, cursor: int | None) -> None:
        nonlocal most
        most = max(most, len(await store.load_run("r")))

    await run(Steps(200, before), store)
    await store.close()
    assert most == 2


async def test_a_step_gets_what_was_stored_and_not_the_object_it_returned() -> None:
    @dataclass(frozen=True)
    class Page:
        number: int
        token: str

    seen: list[Any] = []

    class Pages(SteppedTask[str, Page]):
        async def step(self, ctx: Any, cursor: Page | None) -> Any:
            seen.append(cursor)
            return Done("done") if cursor else More(Page(1, "a"))

    class Lists(SteppedTask[str, list[int]]):
        async def step(self, ctx: Any, cursor: list[int] | None) -> Any:
            seen.append(cursor)
            if cursor:
                return Done("done")
            mine.append(1)
            return More(mine)

    mine: list[int] = []
    await run(Pages())
    await run(Lists())
    assert seen == [None, Page(1, "a"), None, [1]]
    assert seen[3] is not mine


@pytest.mark.parametrize("durable", [True, False])
async def test_a_cursor_that_cannot_be_stored_fails_the_step_and_names_its_type_only(durable: bool) -> None:
    task = Steps(before=lambda ctx, cursor: More({"secret"}) if cursor == 2 else None)
    store = MemoryCheckpointStore() if durable else None
    error = await failure(task, store)
    assert isinstance(error, CursorError)
    assert "secret" not in str(error)
    assert task.calls == [None, 1, 2]
    if store is not None:
        assert await cursors(store) == ["2"]


@pytest.mark.parametrize("answer", ["done", 3, More, Done, (1, 2)])
async def test_a_wrong_answer_is_named_by_its_type(answer: Any) -> None:
    task = Steps(before=lambda ctx, cursor: answer)
    error = await failure(task, MemoryCheckpointStore())
    assert type(error) is TaskExecutionError
    assert f"must return More(cursor) or Done(state), not a {type(answer).__name__}" in str(error)
    assert task.calls == [None]


async def test_none_is_a_wrong_answer_too() -> None:
    class Forgets(SteppedTask[str, int]):
        async def step(self, ctx: Any, cursor: int | None) -> Any:
            pass

    assert "not a NoneType" in str(await failure(Forgets()))


async def test_a_step_that_chooses_no_state_fails_before_a_row_is_written() -> None:
    store = MemoryCheckpointStore()
    assert type(await failure(Steps(1, then="nowhere"), store)) is WorkflowError
    assert await cursors(store) == ["1"]


async def test_every_visit_starts_anew() -> None:
    task = Steps(2)
    task.before = lambda ctx, cursor: Done("work") if cursor == 2 and len(task.calls) < 6 else None
    assert await run(task, MemoryCheckpointStore()) == "done"
    assert task.calls == [None, 1, 2, None, 1, 2]


# -- attempts -----------------------------------------------------------------------------------------------------------


async def test_each_step_has_attempts_of_its_own_from_the_same_cursor() -> None:
    failed: list[int | None] = []

    def before(ctx: Any, cursor: int | None) -> None:
        if cursor in (1, 3) and failed.count(cursor) < 2:
            failed.append(cursor)
            raise ValueError

    task = Steps(5, before, config=TaskConfig(retry=FixedRetry(2, 0)))
    assert await run(task, MemoryCheckpointStore()) == "done"
    assert task.calls == [None, 1, 1, 1, 2, 3, 3, 3, 4, 5]
    assert task.attempts == [1, 1, 2, 3, 1, 1, 2, 3, 1, 1]


@pytest.mark.parametrize("durable", [True, False])
async def test_what_a_failed_attempt_did_to_the_data_is_discarded_back_to_the_last_step(durable: bool) -> None:
    seen: list[Any] = []

    def before(ctx: Any, cursor: int | None) -> None:
        seen.append((cursor, list(ctx.data)))
        ctx.data.append(cursor)
        if ctx.attempt == 1:
            raise ValueError

    task = Steps(2, before, config=TaskConfig(retry=FixedRetry(1, 0)))
    flow = machine(task, MemoryCheckpointStore() if durable else None)
    await flow.orchestrate("work", workflow_id="r", data=[])
    expected = [(None, []), (1, [None]), (2, [None, 1])]
    assert seen == [call for step in expected for call in (step, step)]


async def test_a_cursor_that_an_attempt_changed_in_place_is_whole_again_for_the_next() -> None:
    seen: list[Any] = []

    class Lists(SteppedTask[str, list[int]]):
        config = TaskConfig(retry=FixedRetry(1, 0))

        async def step(self, ctx: Any, cursor: list[int] | None) -> Any:
            if cursor is None:
                return More([1])
            seen.append(list(cursor))
            cursor.append(2)
            if ctx.attempt == 1:
                raise ValueError
            return Done("done")

    await run(Lists())
    assert seen == [[1], [1]]


async def test_a_step_whose_attempts_all_fail_leaves_its_cursor_and_a_resume_goes_on_there() -> None:
    store = MemoryCheckpointStore()
    task = Steps(6, at(4, ValueError()), config=TaskConfig(retry=FixedRetry(2, 0)))
    error = await failure(task, store)
    assert isinstance(error, RetryExhaustedError)
    assert (error.attempts, error.state) == (3, "work")
    assert task.calls == [None, 1, 2, 3, 4, 4, 4]
    assert await cursors(store) == ["4"]
    again = Steps(6)
    assert await machine(again, store).resume_from("r") == "done"
    assert again.calls == [4, 5, 6]
    assert await store.list_runs() == []


async def test_an_attempt_timeout_bounds_each_step_and_not_all_of_them() -> None:
    async def slow(ctx: Any, cursor: int | None) -> None:
        await asyncio.sleep(0.1)

    assert await run(Steps(5, slow, config=TaskConfig(attempt_timeout=0.4))) == "done"

    async def silent(ctx: Any, cursor: int | None) -> None:
        if cursor == 2:
            await asyncio.Event().wait()

    store = MemoryCheckpointStore()
    error = await failure(Steps(5, silent, config=TaskConfig(attempt_timeout=0.02, retry=FixedRetry(0, 0))), store)
    assert type(error) is AttemptTimeoutError
    assert await cursors(store) == ["2"]


# -- stopping -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["token", "task.cancel()", "total timeout"])
@pytest.mark.parametrize("where", ["step", "backoff"])
async def test_a_stop_interrupts_a_step_and_its_cursor_is_not_written(how: str, where: str) -> None:
    async def before(ctx: Any, cursor: int | None) -> None:
        if cursor == 2 and not going_on:
            if where == "backoff":
                raise ValueError
            ctx.data.append("half")
            await asyncio.Event().wait()
        ctx.data.append(cursor)

    going_on: list[bool] = []
    token, store = CancellationToken(), MemoryCheckpointStore()
    task = Steps(4, before, config=TaskConfig(retry=FixedRetry(5, 3600)))
    flow = machine(task, store, total_timeout=0.05 if how == "total timeout" else None)
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r", token=token, data=[]))
    await until(lambda: task.calls[-1:] == [2])
    await stopped(how, running, token)
    assert await cursors(store) == ["2"]
    going_on.append(True)
    seen: list[Any] = []

    async def last(ctx: Any) -> str:
        seen.append(ctx.data)
        return "done"

    again = Steps(4, before, then="last")
    assert await machine(again, store).register("last", last).resume_from("r") == "done"
    assert again.calls == [2, 3, 4]
    assert seen == [[None, 1, 2, 3, 4]]


async def test_instant_steps_neither_starve_the_loop_nor_miss_a_cancel() -> None:
    token, longest = CancellationToken(), 0.0
    loop = asyncio.get_running_loop()

    async def other() -> None:
        nonlocal longest
        last = loop.time()
        while True:
            await asyncio.sleep(0)
            longest, last = max(longest, loop.time() - last), loop.time()

    beside = asyncio.create_task(other())
    loop.call_later(0.2, token.cancel)
    task = Steps(10**9)
    for store in (None, MemoryCheckpointStore()):
        took, error = await elapsed(run(task, store, token=token))
        assert isinstance(error, WorkflowCancelledError)
        assert took < 2
    beside.cancel()
    assert len(task.calls) > 1000
    assert longest < 1


async def test_a_total_timeout_ends_instant_steps() -> None:
    took, error = await elapsed(run(Steps(10**9), total_timeout=0.05))
    assert isinstance(error, WorkflowTimeoutError)
    assert took < 2


async def test_a_token_fired_in_a_step_lets_it_end_and_keeps_its_cursor() -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()
    task = Steps(9, lambda ctx, cursor: token.cancel() if cursor == 3 else None)
    assert isinstance(await failure(task, store, token=token), WorkflowCancelledError)
    assert task.calls == [None, 1, 2, 3]
    assert await cursors(store) == ["4"]


# -- crashes and other owners -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_at_every_append_repeats_one_step_at_most_and_the_data_agrees(after: bool) -> None:
    async def first(ctx: Any) -> str:
        return "work"

    async def last(ctx: Any) -> str:
        ends.append(ctx.data)
        return "done"

    for place in range(7):
        store, ends = dying(place + 1, after=after), []
        task = Steps(4, lambda ctx, cursor: ctx.data.append(cursor), then="last")
        flow = machine(task, store).register("first", first).register("last", last)
        with pytest.raises(Crashed):
            await flow.orchestrate("first", workflow_id="r", data=[])
        known = await store.load_run("r") != []
        assert await (flow.resume_from("r") if known else flow.orchestrate("first", workflow_id="r", data=[])) == "done"
        assert ends[-1] == [None, 1, 2, 3, 4]
        repeated = len(task.calls) - 5
        assert repeated in (0, 1)
        assert list(dict.fromkeys(task.calls)) == [None, 1, 2, 3, 4]
        assert await store.list_runs() == []
    assert place == 6
    assert store.appends >= 7


async def test_a_step_that_crashes_is_done_again_from_its_cursor() -> None:
    store = MemoryCheckpointStore()
    for place in (None, 1, 2):
        task = Steps(2, at(place, Crashed()))
        flow = machine(task, store)
        with pytest.raises(Crashed):
            await (flow.orchestrate("work", workflow_id="r") if place is None else flow.resume_from("r"))
        assert task.calls[-1] == place
    assert await machine(again := Steps(2), store).resume_from("r") == "done"
    assert again.calls == [2]


async def test_a_stepped_task_that_another_owner_overtook_stops_at_its_next_step() -> None:
    class Unclaimed(MemoryCheckpointStore):
        claim = None  # type: ignore[assignment]  # a store that has no claims

    store = Unclaimed()
    other = Steps(4)

    async def before(ctx: Any, cursor: int | None) -> None:
        if cursor == 2:
            assert await machine(other, store).resume_from("r") == "done"

    task = Steps(4, before)
    assert isinstance(await failure(task, store), RunFencedError)
    assert (task.calls, other.calls) == ([None, 1, 2], [2, 3, 4])


async def test_concurrent_runs_do_not_mix_their_cursors() -> None:
    store, recorder = MemoryCheckpointStore(), RecordingObserver()

    async def before(ctx: Any, cursor: int | None) -> None:
        assert ctx.data == ([ctx.workflow_id] * (cursor or 0))
        ctx.data.append(ctx.workflow_id)
        await asyncio.sleep(0)

    flow = Workflow[str](checkpoint_store=store, observers=[recorder]).register("work", Steps(5, before)).add_exit_state("done")
    await asyncio.gather(*(flow.orchestrate("work", workflow_id=str(number), data=[]) for number in range(20)))
    assert len(recorder.of("checkpoint")) == 20 * 7
