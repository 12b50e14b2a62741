"""Routers, which decide and leave no row; and polls, which ask until something is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from cano import (
    AttemptTimeoutError,
    CancellationToken,
    CanoError,
    ConfigurationError,
    DoNotRetry,
    FailFast,
    FixedRetry,
    MemoryCheckpointStore,
    Pending,
    PollTask,
    Ready,
    RetryExhaustedError,
    RetryOnError,
    RouterTask,
    RowKind,
    SkipAndContinue,
    TaskConfig,
    TaskExecutionError,
    Workflow,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowTimeoutError,
)
from cano.testing import Crashed, RecordingObserver
from tests.models import elapsed, stopped, until
from tests.streams import machine, run

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Router(RouterTask[str]):
    def __init__(self, choose: Callable[[Any], Any], **attributes: Any) -> None:
        self.choose = choose
        self.routed = 0
        for name, value in attributes.items():
            setattr(self, name, value)

    async def route(self, ctx: Any) -> str:
        self.routed += 1
        return self.choose(ctx)


def raises(error: Any) -> Callable[[Any], Any]:
    def choose(ctx: Any) -> Any:
        raise error

    return choose


# -- routers ------------------------------------------------------------------------------------------------------------


async def test_a_router_leaves_no_row_takes_no_sequence_and_is_seen() -> None:
    recorder, store = RecordingObserver(), MemoryCheckpointStore()

    async def first(ctx: Any) -> str:
        return "decide"

    async def last(ctx: Any) -> str:
        raise Crashed

    flow = Workflow[str](checkpoint_store=store, observers=[recorder]).add_exit_state("done")
    flow.register("first", first).register("decide", Router(lambda ctx: "last", name="chooser")).register("last", last)
    with pytest.raises(Crashed):
        await flow.orchestrate("first", workflow_id="r")
    rows = await store.load_run("r")
    assert [(row.sequence, row.kind, row.state) for row in rows] == [
        (0, RowKind.STATE_ENTRY, "first"),
        (1, RowKind.STATE_ENTRY, "last"),
    ]
    assert [event.state for event in recorder.of("state_enter")] == ["first", "decide", "last"]
    assert [event.task for event in recorder.of("task_success")] == ["first", "chooser"]


async def test_a_resume_repeats_the_router_and_what_it_did_to_the_data_is_kept_with_the_next_row() -> None:
    store = MemoryCheckpointStore()
    ran: list[str] = []
    dies = [True, True]

    async def first(ctx: Any) -> str:
        ran.append("first")
        ctx.data["first"] = True
        return "decide"

    def choose(ctx: Any) -> str:
        ran.append("decide")
        ctx.data["routed"] = ctx.data.get("routed", 0) + 1
        if dies[0]:
            dies[0] = False
            raise Crashed
        return "last"

    async def last(ctx: Any) -> str:
        ran.append("last")
        assert ctx.data == {"first": True, "routed": 1}
        if dies[1]:
            dies[1] = False
            raise Crashed
        return "done"

    flow = Workflow[str](checkpoint_store=store).add_exit_state("done")
    flow.register("first", first).register("decide", Router(choose)).register("last", last)
    with pytest.raises(Crashed):
        await flow.orchestrate("first", workflow_id="r", data={})
    with pytest.raises(Crashed):
        await flow.resume_from("r")
    assert ran == ["first", "decide", "first", "decide", "last"]
    assert await flow.resume_from("r") == "done"
    assert ran[5:] == ["last"]


async def test_a_run_may_begin_end_and_go_round_with_routers() -> None:
    store = MemoryCheckpointStore()

    def choose(ctx: Any) -> str:
        ctx.data["rounds"] += 1
        return "work" if ctx.data["rounds"] < 500 else "done"

    router = Router(choose)
    assert await machine(router, store).orchestrate("work", workflow_id="r", data={"rounds": 0}) == "done"
    assert router.routed == 500
    assert await store.list_runs() == []


async def test_routers_going_round_for_ever_neither_starve_the_loop_nor_outlive_a_cancel() -> None:
    token = CancellationToken()
    asyncio.get_running_loop().call_later(0.02, token.cancel)
    took, error = await elapsed(run(Router(lambda ctx: "work"), token=token))
    assert isinstance(error, WorkflowCancelledError)
    assert took < 2


async def test_a_router_that_chooses_no_state_fails_where_it_is() -> None:
    with pytest.raises(WorkflowError, match="Router chose 'nowhere'") as caught:
        await run(Router(lambda ctx: "nowhere"))
    assert caught.value.state == "work"


async def test_a_router_is_retried_as_its_config_says() -> None:
    router = Router(raises(ValueError), config=TaskConfig(retry=FixedRetry(2, 0)))
    with pytest.raises(RetryExhaustedError):
        await run(router)
    assert router.routed == 3


# -- polls --------------------------------------------------------------------------------------------------------------


class Poll(PollTask[str]):
    """The n-th poll does what the n-th step says, the last one for ever: return it, raise it, or call it."""

    def __init__(self, *steps: Any, **attributes: Any) -> None:
        self.steps = steps
        self.polls = 0
        for name, value in attributes.items():
            setattr(self, name, value)

    async def poll(self, ctx: Any) -> Any:
        self.polls += 1
        step = self.steps[min(self.polls, len(self.steps)) - 1]
        if isinstance(step, type) and issubclass(step, BaseException):
            raise step
        return await step(ctx) if callable(step) else step


async def for_ever(ctx: Any) -> Any:
    await asyncio.Event().wait()


async def failure(task: Any, **options: Any) -> CanoError:
    with pytest.raises(CanoError) as caught:
        await run(task, **options)
    return caught.value


@pytest.mark.parametrize("pending", [Pending(), Pending(0.001), Pending(timedelta(milliseconds=1))])
async def test_a_poll_is_asked_until_it_is_ready(pending: Pending) -> None:
    task = Poll(pending, pending, Ready("stopped"))
    assert await run(task) == "stopped"
    assert task.polls == 3
    once = Poll(Ready("done"))
    assert await run(once) == "done"
    assert once.polls == 1


async def test_others_have_a_turn_between_any_two_polls() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    task = Poll(*[Pending(0)] * 200, Ready("done"))
    await run(task)
    beside.cancel()
    assert turns >= 200


async def test_a_poll_waits_as_long_as_it_said() -> None:
    took, error = await elapsed(run(Poll(Pending(0.03), Pending(timedelta(milliseconds=30)), Ready("done"))))
    assert error is None
    assert 0.055 <= took < 2


async def test_a_failing_poll_fails_fast_with_its_own_error() -> None:
    task = Poll(ValueError, Ready("done"))
    error = await failure(task)
    assert type(error) is TaskExecutionError
    assert isinstance(error.__cause__, ValueError)
    assert task.polls == 1
    assert isinstance(task.on_poll_error, FailFast)


async def test_so_many_errors_in_a_row_are_tolerated_and_a_pending_starts_the_count_anew() -> None:
    tolerant = RetryOnError(2)
    task = Poll(ValueError, ValueError, Pending(), ValueError, ValueError, Ready("done"), on_poll_error=tolerant)
    assert await run(task) == "done"
    assert task.polls == 6
    task = Poll(ValueError, KeyError, LookupError, Ready("done"), on_poll_error=tolerant)
    error = await failure(task)
    assert type(error) is TaskExecutionError
    assert type(error.__cause__) is LookupError
    assert task.polls == 3


async def test_after_a_tolerated_error_the_last_delay_is_waited_for_again() -> None:
    task = Poll(Pending(0.03), ValueError, Ready("done"), on_poll_error=RetryOnError(1))
    took, error = await elapsed(run(task))
    assert error is None
    assert took >= 0.055


@pytest.mark.parametrize("kind", [DoNotRetry, ConfigurationError])
async def test_what_cannot_get_better_is_not_tolerated(kind: Any) -> None:
    """BR-90."""
    task = Poll(kind, Ready("done"), on_poll_error=RetryOnError(5))
    error = await failure(task)
    assert isinstance(error if kind is ConfigurationError else error.__cause__, kind)
    assert task.polls == 1


async def test_what_is_no_exception_is_not_tolerated() -> None:
    """BR-25."""
    task = Poll(asyncio.CancelledError, Ready("done"), on_poll_error=RetryOnError(5))
    error = await failure(task)
    assert isinstance(error.__cause__, asyncio.CancelledError)
    interrupted = Poll(KeyboardInterrupt, Ready("done"), on_poll_error=RetryOnError(5))
    with pytest.raises(KeyboardInterrupt):
        await run(interrupted)
    assert task.polls == interrupted.polls == 1


async def test_an_attempt_timeout_bounds_the_whole_of_the_asking() -> None:
    for steps in [(Pending(0),), (Pending(3600),), (for_ever,)]:
        task = Poll(*steps, config=TaskConfig(attempt_timeout=0.05))
        took, error = await elapsed(run(task))
        assert type(error) is AttemptTimeoutError
        assert 0.05 <= took < 2


async def swallows(ctx: Any) -> Any:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return Pending(0)


async def translates(ctx: Any) -> Any:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        raise ValueError from None


@pytest.mark.parametrize("stubborn", [swallows, translates])
@pytest.mark.parametrize("what", ["cancel", "timeout", "total timeout"])
async def test_a_poll_that_makes_something_else_of_its_cancel_is_not_asked_again(stubborn: Any, what: str) -> None:
    """BR-25."""
    token = CancellationToken()
    config = TaskConfig(attempt_timeout=0.02 if what == "timeout" else None)
    task = Poll(stubborn, on_poll_error=RetryOnError(10**6), config=config)
    if what == "cancel":
        asyncio.get_running_loop().call_later(0.02, token.cancel)
    limit = 0.02 if what == "total timeout" else None
    took, error = await elapsed(run(task, token=token, total_timeout=limit, drain_timeout=5))
    expected = {"cancel": WorkflowCancelledError, "timeout": AttemptTimeoutError, "total timeout": WorkflowTimeoutError}
    assert type(error) is expected[what]
    assert took < 2
    assert task.polls == 1


@pytest.mark.parametrize("how", ["token", "task.cancel()", "total timeout"])
async def test_a_stop_between_two_polls_ends_the_wait_at_once(how: str) -> None:
    token, task = CancellationToken(), Poll(Pending(3600))
    running = asyncio.create_task(run(task, token=token, total_timeout=0.05 if how == "total timeout" else None))
    await until(lambda: task.polls)
    await stopped(how, running, token)


@pytest.mark.parametrize("answer", [None, "done", True, 1.0, Ready])
async def test_a_wrong_answer_is_named_by_its_type(answer: Any) -> None:
    async def poll(ctx: Any) -> Any:
        return answer

    task = Poll(poll, on_poll_error=RetryOnError(5))
    error = await failure(task)
    assert f"must return Ready(state) or Pending(delay), not a {type(answer).__name__}" in str(error)
    assert (error.state, task.polls) == ("work", 1)


async def test_a_resume_asks_anew_and_a_ready_state_has_to_be_known() -> None:
    store = MemoryCheckpointStore()
    task = Poll(Pending(), KeyboardInterrupt, Pending(), Ready("done"))
    with pytest.raises(KeyboardInterrupt):
        await run(task, store)
    assert await machine(task, store).resume_from("r") == "done"
    assert task.polls == 4
    with pytest.raises(WorkflowError):
        await run(Poll(Ready("nowhere")))


async def test_nonsense_is_refused_at_once() -> None:
    for delay in (-1, float("nan"), "1", None, True):
        with pytest.raises(ConfigurationError):
            Pending(delay)  # type: ignore[arg-type]  # wrong, on purpose
    with pytest.raises(ConfigurationError):
        machine(Poll(Ready("done"), on_poll_error=SkipAndContinue()))
    with pytest.raises(ConfigurationError):
        machine(Poll(Ready("done"), config=FixedRetry(1, 1)))
