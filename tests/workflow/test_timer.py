"""Timers: they wait until a moment, and a resume waits only for what is left of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CancellationToken,
    CanoError,
    FixedRetry,
    MemoryCheckpointStore,
    RowKind,
    SqliteCheckpointStore,
    TaskConfig,
    TaskExecutionError,
    TimerTask,
    Workflow,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)
from cano.testing import Crashed, FaultyStore, RecordingObserver
from tests.models import dying, elapsed, stopped, until
from tests.streams import machine, run

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

WEST = timezone(timedelta(hours=-12))
EAST = timezone(timedelta(hours=14))


class Timer(TimerTask[str]):
    def __init__(self, moment: Any, after: Callable[[Any], str] = lambda ctx: "done", **attributes: Any) -> None:
        self.moment, self.after = moment, after
        self.waits = self.went_on = 0
        for name, value in attributes.items():
            setattr(self, name, value)

    async def wait(self, ctx: Any) -> Any:
        self.waits += 1
        if isinstance(self.moment, type) and issubclass(self.moment, BaseException):
            raise self.moment
        return self.moment(ctx) if callable(self.moment) else self.moment

    async def after_wait(self, ctx: Any) -> str:
        self.went_on += 1
        return self.after(ctx)


def soon(ctx: Any) -> datetime:
    return datetime.now(WEST) + timedelta(seconds=0.06)


@pytest.mark.parametrize("moment", [0.06, timedelta(milliseconds=60), soon], ids=["seconds", "timedelta", "aware datetime"])
@pytest.mark.parametrize("durable", [True, False])
async def test_a_timer_waits_once_and_never_too_short(moment: Any, durable: bool) -> None:
    timer = Timer(moment, lambda ctx: "stopped")
    took, error = await elapsed(run(timer, MemoryCheckpointStore() if durable else None))
    assert error is None
    assert 0.055 <= took < 2
    assert (timer.waits, timer.went_on) == (1, 1)


@pytest.mark.parametrize(
    "moment",
    [
        0,
        0.0,
        timedelta(0),
        datetime(1999, 1, 1, tzinfo=EAST),
        datetime.min.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=EAST),
    ],
    ids=["0", "0.0", "timedelta", "1999", "the first", "before the first"],
)
async def test_what_is_past_waits_for_nothing(moment: Any) -> None:
    timer = Timer(moment)
    took, error = await elapsed(run(timer, MemoryCheckpointStore()))
    assert error is None
    assert took < 2
    assert timer.went_on == 1


class Nowhere(tzinfo):
    """A time zone that does not say where it is: its datetimes are naive."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None


@pytest.mark.parametrize("moment", [datetime(2030, 1, 1), datetime(2030, 1, 1, tzinfo=Nowhere())], ids=["none", "nowhere"])
async def test_a_naive_datetime_is_refused(moment: datetime) -> None:
    store, timer = MemoryCheckpointStore(), Timer(moment)
    with pytest.raises(TaskExecutionError, match="naive") as caught:
        await run(timer, store)
    assert "2030" not in str(caught.value)
    assert timer.went_on == 0
    assert len(await store.load_run("r")) == 1


@pytest.mark.parametrize("moment", [None, "1", -1, timedelta(seconds=-1), float("nan"), True, [1]], ids=repr)
async def test_what_is_no_moment_is_named_by_its_type(moment: Any) -> None:
    with pytest.raises(TaskExecutionError, match=f"not a {type(moment).__name__}") as caught:
        await run(Timer(moment))
    assert caught.value.state == "work"


@pytest.mark.parametrize(
    "moment",
    [float("inf"), 1e300, 10**400, timedelta.max, datetime.max.replace(tzinfo=UTC), datetime.max.replace(tzinfo=WEST)],
    ids=["inf", "1e300", "10**400", "timedelta.max", "the last", "beyond the last"],
)
async def test_a_huge_wait_is_a_wait_that_is_stored_and_can_be_cancelled(moment: Any) -> None:
    token, store, timer = CancellationToken(), MemoryCheckpointStore(), Timer(moment)
    for attempt in range(2):
        token, recorder = CancellationToken(), RecordingObserver()
        flow = machine(timer, store, observers=[recorder])
        going = flow.resume_from("r", token=token) if attempt else flow.orchestrate("work", workflow_id="r", token=token)
        running = asyncio.create_task(going)
        await until(lambda recorder=recorder, attempt=attempt: len(recorder.of("checkpoint")) == 2 - attempt)
        await asyncio.sleep(0.01)
        token.cancel()
        took, error = await elapsed(running)
        assert isinstance(error, WorkflowCancelledError)
        assert took < 2
    assert (timer.waits, timer.went_on) == (1, 0)


# -- the deadline is durable --------------------------------------------------------------------------------------------


async def test_a_resume_waits_only_for_what_is_left_and_does_not_ask_again(tmp_path: Any) -> None:
    for store in (MemoryCheckpointStore(), SqliteCheckpointStore(tmp_path / "runs.db")):
        loop, token, recorder = asyncio.get_running_loop(), CancellationToken(), RecordingObserver()
        timer = Timer(0.8)
        running = asyncio.create_task(run(timer, store, token=token, observers=[recorder]))
        await until(lambda recorder=recorder: len(recorder.of("checkpoint")) == 2)
        await asyncio.sleep(0.6)
        token.cancel()
        with pytest.raises(WorkflowCancelledError):
            await running
        assert [row.kind for row in await store.load_run("r")] == [RowKind.STATE_ENTRY, RowKind.STEP_CURSOR]
        again, began = Timer(3600), loop.time()
        assert await machine(again, store).resume_from("r") == "done"
        assert loop.time() - began < 0.7
        assert (again.waits, again.went_on) == (0, 1)
    await store.close()  # type: ignore[union-attr]  # the store of SQLite


async def test_a_resume_after_the_deadline_waits_for_nothing() -> None:
    store = dying(2, after=True)
    with pytest.raises(Crashed):
        await run(Timer(0.03), store)
    await asyncio.sleep(0.03)
    again = Timer(3600)
    took, error = await elapsed(machine(again, store).resume_from("r"))
    assert error is None
    assert took < 2
    assert (again.waits, again.went_on) == (0, 1)


async def test_a_deadline_that_did_not_become_durable_is_asked_for_again() -> None:
    store = dying(2)
    with pytest.raises(Crashed):
        await run(Timer(3600), store)
    again = Timer(0.01)
    assert await machine(again, store).resume_from("r") == "done"
    assert again.waits == 1


async def test_a_failed_after_wait_is_repeated_by_a_resume_without_another_wait() -> None:
    store, broken = MemoryCheckpointStore(), [True]

    def after(ctx: Any) -> str:
        if broken.pop():
            raise ValueError
        return "done"

    timer = Timer(0.01, after)
    with pytest.raises(TaskExecutionError):
        await run(timer, store)
    broken.append(False)
    assert await machine(timer, store).resume_from("r") == "done"
    assert (timer.waits, timer.went_on) == (1, 2)


async def test_what_wait_did_to_the_data_is_stored_with_the_deadline() -> None:
    store = dying(2, after=True)

    def moment(ctx: Any) -> float:
        ctx.data["asked"] = True
        return 0.01

    def after(ctx: Any) -> str:
        assert ctx.data == {"asked": True}
        return "done"

    timer = Timer(moment, after)
    with pytest.raises(Crashed):
        await machine(timer, store).orchestrate("work", workflow_id="r", data={})
    assert await machine(timer, store).resume_from("r") == "done"


async def test_every_visit_of_a_timer_waits_anew() -> None:
    timer = Timer(0.02)
    timer.after = lambda ctx: "work" if timer.went_on < 3 else "done"
    took, error = await elapsed(run(timer, MemoryCheckpointStore()))
    assert error is None
    assert took >= 0.055
    assert timer.waits == 3


# -- failing and stopping -----------------------------------------------------------------------------------------------


async def test_wait_and_after_wait_fail_without_another_attempt() -> None:
    timer = Timer(ValueError)
    with pytest.raises(TaskExecutionError, match="wait of Timer raised ValueError"):
        await run(timer)
    assert (timer.waits, timer.went_on) == (1, 0)

    def fails(ctx: Any) -> str:
        raise KeyError

    timer = Timer(0, fails)
    with pytest.raises(TaskExecutionError, match="after_wait of Timer raised KeyError"):
        await run(timer)
    assert (timer.waits, timer.went_on) == (1, 1)


async def test_retries_of_after_wait_do_not_wait_again() -> None:
    def flaky(ctx: Any) -> str:
        if ctx.attempt < 3:
            raise ValueError
        return "done"

    timer = Timer(0.3, flaky, config=TaskConfig(retry=FixedRetry(2, 0)))
    took, error = await elapsed(run(timer))
    assert error is None
    assert took < 0.85
    assert (timer.waits, timer.went_on) == (1, 3)


async def test_an_attempt_timeout_bounds_the_wait() -> None:
    timer = Timer(3600, config=TaskConfig(attempt_timeout=0.05))
    took, error = await elapsed(run(timer))
    assert type(error) is AttemptTimeoutError
    assert 0.05 <= took < 2
    assert timer.went_on == 0


@pytest.mark.parametrize("how", ["token", "task.cancel()", "total timeout"])
async def test_a_stop_ends_the_wait_at_once_and_a_resume_goes_on_waiting(how: str) -> None:
    token, store, recorder, timer = CancellationToken(), MemoryCheckpointStore(), RecordingObserver(), Timer(3600)
    limit = 0.05 if how == "total timeout" else None
    running = asyncio.create_task(run(timer, store, token=token, observers=[recorder], total_timeout=limit))
    await until(lambda: len(recorder.of("checkpoint")) == 2)
    await stopped(how, running, token)
    with pytest.raises(WorkflowTimeoutError):
        await machine(timer, store, total_timeout=0.05).resume_from("r")
    assert (timer.waits, timer.went_on) == (1, 0)


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_at_every_append_round_a_timer_loses_nothing(after: bool) -> None:
    async def first(ctx: Any) -> str:
        ctx.data["seen"].append("first")
        return "wait"

    def moment(ctx: Any) -> float:
        ctx.data["seen"].append("wait")
        return 0.01

    def then(ctx: Any) -> str:
        ctx.data["seen"].append("after")
        return "last"

    for at in range(6):
        store, seen = dying(at + 1, after=after), []

        async def last(ctx: Any, seen: list[Any] = seen) -> str:
            seen.append(list(ctx.data["seen"]))
            return "done"

        flow = Workflow[str](checkpoint_store=store).register("first", first).register("wait", Timer(moment, then))
        flow.register("last", last).add_exit_state("done")
        try:
            end = await flow.orchestrate("first", workflow_id="r", data={"seen": []})
        except Crashed:
            known = await store.load_run("r") != []
            end = await (flow.resume_from("r") if known else flow.orchestrate("first", workflow_id="r", data={"seen": []}))
        assert end == "done"
        assert seen[-1] == ["first", "wait", "after"]
    assert store.appends == 5


async def test_a_stored_deadline_that_is_damaged_is_an_error_and_not_asked_for_again() -> None:
    from dataclasses import replace

    store = MemoryCheckpointStore()
    with pytest.raises(Crashed):
        await run(Timer(3600), FaultyStore(store, crash_at=2, before=False))
    store._logs["r"][-1] = replace(store._logs["r"][-1], blob=b'"soon"')
    timer = Timer(0)
    with pytest.raises(CanoError, match="deadline"):
        await machine(timer, store).resume_from("r")
    assert (timer.waits, timer.went_on) == (0, 0)
