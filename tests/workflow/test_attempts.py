"""The attempts of a task: which failures get another one, when, and how it surfaces if none succeeds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import All as AllOf
from cano import (
    AttemptTimeoutError,
    BatchTask,
    CancellationToken,
    CanoError,
    ConfigurationError,
    CursorError,
    DoNotRetry,
    ExponentialBackoff,
    FixedRetry,
    MemoryCheckpointStore,
    ResourceNotFoundError,
    ResourceTypeMismatchError,
    RetryExhaustedError,
    RetryOnError,
    RouterTask,
    Split,
    StoreError,
    Task,
    TaskConfig,
    TaskExecutionError,
    Workflow,
    WorkflowCancelledError,
)
from cano.testing import Crashed, RecordingObserver
from tests.models import Cancelling, elapsed, stopped, until
from tests.streams import Probe, machine, numbers, run

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

AT_ONCE = TaskConfig(retry=FixedRetry(3, 0))
AN_HOUR = TaskConfig(retry=FixedRetry(10, 3600))


class Scripted(Task[str]):
    """Attempt n does what the n-th step says: raise it, await it if it is a coroutine function, or return it."""

    def __init__(self, *steps: Any, config: TaskConfig = AT_ONCE) -> None:
        self.steps, self.config = steps, config
        self.attempts: list[int] = []

    async def run(self, ctx: Any) -> str:
        self.attempts.append(ctx.attempt)
        step = self.steps[min(len(self.attempts), len(self.steps)) - 1]
        if isinstance(step, BaseException) or (isinstance(step, type) and issubclass(step, BaseException)):
            raise step
        return await step(ctx) if callable(step) else step


async def for_ever(ctx: Any) -> str:
    await asyncio.Event().wait()
    raise AssertionError


async def failure(task: Any, store: Any = None, **options: Any) -> CanoError:
    with pytest.raises(CanoError) as caught:
        await run(task, store, **options)
    return caught.value


# -- how often ----------------------------------------------------------------------------------------------------------


async def test_a_task_that_fails_twice_and_then_succeeds_has_three_attempts() -> None:
    task = Scripted(ValueError, KeyError, "done")
    assert await run(task) == "done"
    assert task.attempts == [1, 2, 3]


async def test_when_no_attempt_succeeds_the_last_exception_is_the_cause() -> None:
    last = ValueError("the last")
    task = Scripted(ValueError("1"), ValueError("2"), ValueError("3"), last)
    error = await failure(task)
    assert isinstance(error, RetryExhaustedError)
    assert (error.attempts, error.category, error.attempt, error.state) == (4, "retry_exhausted", 4, "work")
    assert error.__cause__ is last
    assert "ValueError" in str(error)
    assert "the last" not in str(error)
    assert task.attempts == [1, 2, 3, 4]


async def test_a_task_without_retries_fails_with_its_own_error() -> None:
    raised = ValueError()
    for config in (TaskConfig(retry=FixedRetry(0, 0)), TaskConfig(retry=ExponentialBackoff(0))):
        task = Scripted(raised, config=config)
        error = await failure(task)
        assert type(error) is TaskExecutionError
        assert error.__cause__ is raised
        assert task.attempts == [1]


async def test_an_error_of_ours_that_a_hook_raised_is_itself_the_cause() -> None:
    raised = StoreError("no such key")
    raised.__cause__ = KeyError("k")
    error = await failure(Scripted(raised))
    assert isinstance(error, RetryExhaustedError)
    assert error.__cause__ is raised
    assert "StoreError" in error.message


async def test_functions_and_routers_and_batches_have_the_default_retries() -> None:
    default = [1, 2, 3, 4]
    seen: dict[str, list[int]] = {"function": [], "router": [], "batch": []}

    async def function(ctx: Any) -> str:
        seen["function"].append(ctx.attempt)
        raise ValueError

    class Router(RouterTask[str]):
        async def route(self, ctx: Any) -> str:
            seen["router"].append(ctx.attempt)
            raise ValueError

    class Batch(BatchTask[str, int, int]):
        async def load(self, ctx: Any) -> list[int]:
            seen["batch"].append(ctx.attempt)
            return []

        async def process_item(self, ctx: Any, item: int) -> int:
            return item

        async def finish(self, ctx: Any, outcomes: Any) -> str:
            raise ValueError

    errors = await asyncio.gather(failure(function), failure(Router()), failure(Batch()))
    assert [error.attempts for error in errors] == [4, 4, 4]  # type: ignore[attr-defined]  # they are RetryExhaustedErrors
    assert seen == {"function": default, "router": default, "batch": default}


async def test_retries_do_not_multiply() -> None:
    """BR-90: a branch with n retries runs n + 1 times, whatever the split; a stream ignores the retries of a task."""
    branch = Scripted(ValueError)
    flow = Workflow[str]().register("work", Split([branch], join=AllOf(), then="done")).add_exit_state("done")
    with pytest.raises(CanoError):
        await flow.orchestrate("work")
    assert branch.attempts == [1, 2, 3, 4]

    def bad(item: int) -> None:
        if item == 2:
            raise ValueError

    probe = Probe(numbers(1, 3), process=bad, config=AT_ONCE)
    assert isinstance(await failure(probe), TaskExecutionError)
    assert (probe.opened, probe.processed) == ([None], [1, 2])


# -- which failures -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "retry_on",
    [OSError, (OSError, KeyError), lambda error: isinstance(error, OSError)],
    ids=["a type", "a tuple", "a predicate"],
)
async def test_only_what_retry_on_names_is_retried(retry_on: Any) -> None:
    config = TaskConfig(retry=FixedRetry(3, 0), retry_on=retry_on)
    assert await run(Scripted(ConnectionError, OSError, "done", config=config)) == "done"
    raised = ValueError()
    task = Scripted(OSError, raised, "done", config=config)
    error = await failure(task)
    assert task.attempts == [1, 2]
    assert type(error) is TaskExecutionError
    assert error.__cause__ is raised
    assert error.attempt == 2


@pytest.mark.parametrize("lookup", [ResourceNotFoundError, ResourceTypeMismatchError, ConfigurationError, CursorError])
async def test_what_cannot_get_better_is_not_retried(lookup: Any) -> None:
    """BR-90."""
    task = Scripted(lookup("wrong"), config=TaskConfig(retry=FixedRetry(9, 0), retry_on=lambda error: True))
    error = await failure(task)
    assert type(error) is lookup
    assert task.attempts == [1]


async def test_do_not_retry_ends_the_attempts_raised_or_raised_from() -> None:
    async def raised_from(ctx: Any) -> str:
        raise KeyError from DoNotRetry()

    async def raised_after(ctx: Any) -> str:
        try:
            raise KeyError
        except KeyError as error:
            raise DoNotRetry("enough") from error

    class Enough(DoNotRetry):
        pass

    for end in (DoNotRetry, Enough, raised_from, raised_after):
        task = Scripted(ValueError, end, "done", config=TaskConfig(retry=FixedRetry(5, 0), retry_on=lambda error: True))
        error = await failure(task)
        assert task.attempts == [1, 2]
        assert type(error) is TaskExecutionError
        assert isinstance(error.__cause__, DoNotRetry | KeyError)


@pytest.mark.parametrize("cause", [DoNotRetry, ConfigurationError], ids=["asked for", "pointless"])
async def test_what_cannot_get_better_ends_the_attempts_out_of_a_task_group_too(cause: type[Exception]) -> None:
    async def fails() -> None:
        raise cause("enough")

    async def work(ctx: Any) -> str:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(asyncio.sleep(3600))
            inner.create_task(fails())
        return "done"

    async def merely_fails(ctx: Any) -> str:
        raise ExceptionGroup("", [ValueError(), ExceptionGroup("", [KeyError()])])

    task = Scripted(merely_fails, work, "done", config=TaskConfig(retry=FixedRetry(5, 0)))
    error = await failure(task)
    assert task.attempts == [1, 2]
    assert isinstance(error.__cause__, ExceptionGroup)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit, Crashed])
async def test_a_base_exception_is_never_retried_whatever_the_predicate(kind: type[BaseException]) -> None:
    """BR-25."""
    recorder = RecordingObserver()
    task = Scripted(kind, "done", config=TaskConfig(retry=FixedRetry(9, 0), retry_on=lambda error: True))
    with pytest.raises(kind):
        await run(task, MemoryCheckpointStore(), observers=[recorder])
    assert task.attempts == [1]
    assert recorder.of("retry") == []
    assert recorder.of("run_end")[0].outcome == "crashed"


async def test_a_leaked_cancelled_error_is_a_failure_that_is_never_retried() -> None:
    """BR-25."""
    for config in (AT_ONCE, TaskConfig(retry=FixedRetry(9, 0), retry_on=BaseException, attempt_timeout=60)):
        task = Scripted(asyncio.CancelledError, "done", config=config)
        error = await failure(task)
        assert type(error) is TaskExecutionError
        assert isinstance(error.__cause__, asyncio.CancelledError)
        assert task.attempts == [1]


async def test_a_predicate_that_raises_fails_the_run_like_a_hook() -> None:
    def broken(error: BaseException) -> bool:
        raise LookupError("predicate")

    recorder, store = RecordingObserver(), MemoryCheckpointStore()
    task = Scripted(ValueError("first"), config=TaskConfig(retry=FixedRetry(9, 0), retry_on=broken))
    error = await failure(task, store, observers=[recorder])
    assert type(error) is TaskExecutionError
    assert isinstance(error.__cause__, LookupError)
    assert isinstance(error.__cause__.__context__, ValueError)
    assert (error.state, error.path) == ("work", ("work",))
    assert [event.error for event in recorder.of("task_failure")] == [error]
    assert task.attempts == [1]


# -- the timeout of an attempt ------------------------------------------------------------------------------------------


async def test_each_attempt_has_a_timeout_of_its_own() -> None:
    task = Scripted(for_ever, for_ever, "done", config=TaskConfig(retry=FixedRetry(2, 0), attempt_timeout=0.02))
    took, error = await elapsed(run(task))
    assert error is None
    assert task.attempts == [1, 2, 3]
    assert 0.04 <= took < 2


async def test_a_timeout_leaves_no_request_to_cancel_behind() -> None:
    seen: list[Any] = []

    async def after(ctx: Any) -> str:
        current = asyncio.current_task()
        assert current is not None
        seen.append(current.cancelling())
        async with asyncio.TaskGroup():
            pass
        raise asyncio.CancelledError

    error = await failure(Scripted(for_ever, after, config=TaskConfig(retry=FixedRetry(2, 0), attempt_timeout=0.05)))
    assert seen == [0]
    assert isinstance(error.__cause__, asyncio.CancelledError)


async def test_attempts_that_all_time_out_are_exhausted_and_say_so() -> None:
    task = Scripted(for_ever, config=TaskConfig(retry=FixedRetry(1, 0), attempt_timeout=0.01))
    error = await failure(task)
    assert isinstance(error, RetryExhaustedError)
    assert isinstance(error.__cause__, AttemptTimeoutError)
    assert "AttemptTimeoutError" in error.message
    alone = await failure(Scripted(for_ever, config=TaskConfig(retry=FixedRetry(0, 0), attempt_timeout=0.01)))
    assert type(alone) is AttemptTimeoutError
    assert alone.category == "timeout"
    assert alone.__cause__ is None


async def test_what_an_attempt_makes_of_its_timeout_does_not_hide_it() -> None:
    async def translates(ctx: Any) -> str:
        try:
            return await for_ever(ctx)
        except asyncio.CancelledError:
            raise ValueError("cut") from None

    config = TaskConfig(retry=FixedRetry(1, 0), attempt_timeout=0.01)
    error = await failure(Scripted(translates, config=config))
    assert isinstance(error, RetryExhaustedError)
    assert isinstance(error.__cause__, AttemptTimeoutError)
    assert isinstance(error.__cause__.__cause__, ValueError)
    seen: list[BaseException] = []
    never = TaskConfig(retry=FixedRetry(1, 0), attempt_timeout=0.01, retry_on=lambda error: bool(seen.append(error)))
    await failure(Scripted(translates, config=never))
    assert [type(error) for error in seen] == [AttemptTimeoutError]


@pytest.mark.parametrize("config", [TaskConfig(retry=FixedRetry(0, 0)), TaskConfig(retry=FixedRetry(0, 0), attempt_timeout=10)])
async def test_a_timeout_error_of_the_user_is_an_ordinary_failure(config: TaskConfig) -> None:
    """BR-29."""
    raised = TimeoutError("db")
    error = await failure(Scripted(raised, config=config))
    assert type(error) is TaskExecutionError
    assert error.__cause__ is raised

    async def own_limit(ctx: Any) -> str:
        async with asyncio.timeout(0.01):
            return await for_ever(ctx)

    error = await failure(Scripted(own_limit, config=config), total_timeout=10)
    assert type(error) is TaskExecutionError
    assert type(error.__cause__) is TimeoutError


async def test_a_timeout_error_in_the_instant_of_the_deadline_is_the_deadlines() -> None:
    """BR-29."""

    async def late(ctx: Any) -> str:
        try:
            return await for_ever(ctx)
        except asyncio.CancelledError:
            raise TimeoutError("db") from None

    error = await failure(Scripted(late, config=TaskConfig(retry=FixedRetry(0, 0), attempt_timeout=0.01)))
    assert type(error) is AttemptTimeoutError
    assert isinstance(error.__cause__, TimeoutError)


async def test_a_run_stopped_before_a_bounded_attempt_began_leaves_nothing_behind() -> None:
    token = CancellationToken()
    recorder = Cancelling(token)
    task = Scripted("done", config=TaskConfig(attempt_timeout=10))
    assert isinstance(await failure(task, token=token, observers=[recorder]), WorkflowCancelledError)
    assert task.attempts == []


# -- the waits between attempts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["token", "task.cancel()", "total timeout"])
@pytest.mark.parametrize("where", ["attempt", "backoff"])
async def test_a_stop_ends_an_attempt_and_a_backoff_at_once(how: str, where: str) -> None:
    """BR-25, BR-94: a cancel is neither retried nor counted, and no wait outlives it."""
    token = CancellationToken()
    config = TaskConfig(retry=FixedRetry(10, 3600), retry_on=lambda error: True, attempt_timeout=3600)
    task = Scripted(ValueError if where == "backoff" else for_ever, config=config)
    recorder = RecordingObserver()
    limit = 0.05 if how == "total timeout" else None
    running = asyncio.create_task(run(task, MemoryCheckpointStore(), token=token, observers=[recorder], total_timeout=limit))
    await until(lambda: recorder.of("retry") if where == "backoff" else task.attempts)
    await stopped(how, running, token)
    assert task.attempts == [1]
    assert len(recorder.of("retry")) == (where == "backoff")


async def test_an_attempt_that_makes_an_error_of_its_cancel_is_not_repeated() -> None:
    """BR-25."""

    async def translates(ctx: Any) -> str:
        try:
            return await for_ever(ctx)
        except asyncio.CancelledError:
            raise ValueError("cut") from None

    token, task = CancellationToken(), Scripted(translates, config=AN_HOUR)
    running = asyncio.create_task(run(task, token=token))
    await until(lambda: task.attempts)
    token.cancel()
    took, error = await elapsed(running)
    assert isinstance(error, WorkflowCancelledError)
    assert isinstance(error.__cause__, ValueError)
    assert took < 2
    assert task.attempts == [1]


async def test_a_losing_branch_that_makes_an_error_of_its_cancel_is_not_repeated() -> None:
    """BR-25."""

    async def translates(ctx: Any) -> str:
        try:
            return await for_ever(ctx)
        except asyncio.CancelledError:
            raise ValueError("cut") from None

    async def bad(ctx: Any) -> str:
        await until(lambda: stubborn.attempts)
        raise DoNotRetry

    stubborn = Scripted(translates, config=AN_HOUR)
    flow = Workflow[str]().register("work", Split([stubborn, bad], join=AllOf(), then="done")).add_exit_state("done")
    took, error = await elapsed(flow.orchestrate("work"))
    assert isinstance(error, CanoError)
    assert isinstance(error.__cause__, DoNotRetry)
    assert took < 2
    assert stubborn.attempts == [1]


async def test_a_resume_after_a_cancelled_backoff_starts_with_the_first_attempt() -> None:
    token, store, recorder = CancellationToken(), MemoryCheckpointStore(), RecordingObserver()
    task = Scripted(ValueError, "done", config=AN_HOUR)
    running = asyncio.create_task(run(task, store, token=token, observers=[recorder]))
    await until(lambda: recorder.of("retry"))
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    assert await machine(task, store).resume_from("r") == "done"
    assert task.attempts == [1, 1]


async def test_a_cancel_while_an_item_is_tolerated_is_a_cancel() -> None:
    """BR-94."""
    token = CancellationToken()
    probe = Probe(numbers(1, 9), process=lambda item: token.cancel(), on_item_error=RetryOnError(0))
    assert isinstance(await failure(probe, token=token), WorkflowCancelledError)


# -- what attempts see and leave ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [None, MemoryCheckpointStore()])
async def test_what_a_failed_attempt_did_to_the_data_is_discarded(store: Any) -> None:
    seen: list[Any] = []

    async def first(ctx: Any) -> str:
        ctx.data["total"] += 1
        return "work"

    async def adds(ctx: Any) -> str:
        seen.append(dict(ctx.data, items=list(ctx.data["items"])))
        ctx.data["total"] += 10
        ctx.data["items"].append(ctx.attempt)
        if ctx.attempt < 3:
            if ctx.attempt == 2:
                ctx.data = {"total": -1}
            raise ValueError
        return "after"

    async def after(ctx: Any) -> str:
        seen.append(ctx.data)
        return "done"

    flow = machine(Scripted(adds), store).register("first", first).register("after", after)
    await flow.orchestrate("first", workflow_id=None if store is None else "r", data={"total": 0, "items": []})
    assert seen == [{"total": 1, "items": []}] * 3 + [{"total": 11, "items": [3]}]


async def test_data_given_up_by_a_run_without_any_is_discarded_too() -> None:
    seen: list[Any] = []

    async def assigns(ctx: Any) -> str:
        seen.append(ctx.data)
        ctx.data = {"attempt": ctx.attempt}
        if ctx.attempt == 1:
            raise ValueError
        return "done"

    await run(Scripted(assigns))
    assert seen == [None, None]


async def test_observers_are_told_of_every_attempt_that_is_repeated() -> None:
    recorder = RecordingObserver()
    config = TaskConfig(retry=ExponentialBackoff(3, base_delay=0.001, multiplier=2, jitter=0))
    await run(Scripted(ValueError, for_ever_then(KeyError), "done", config=config), observers=[recorder])
    assert [(event.attempt, event.error_type, event.task, event.state) for event in recorder.of("retry")] == [
        (1, "ValueError", "Scripted", "work"),
        (2, "KeyError", "Scripted", "work"),
    ]
    assert [event.delay for event in recorder.of("retry")] == [0.001, 0.002]
    names = recorder.names
    assert names.count("task_start") == names.count("task_success") == 1
    assert "task_failure" not in names


def for_ever_then(kind: type[Exception]) -> Any:
    async def step(ctx: Any) -> str:
        raise kind

    return step


async def test_the_next_state_starts_with_its_first_attempt() -> None:
    after = Scripted("done")
    task = Scripted(ValueError, ValueError, "after")
    await machine(task).register("after", after).orchestrate("work")
    assert task.attempts == [1, 2, 3]
    assert after.attempts == [1]


async def test_concurrent_runs_of_one_task_do_not_mix_their_attempts() -> None:
    seen: dict[str, list[int]] = {}

    async def flaky(ctx: Any) -> str:
        mine = seen.setdefault(ctx.workflow_id, [])
        mine.append(ctx.attempt)
        await asyncio.sleep(0)
        if len(mine) < 3:
            raise ValueError
        return "done"

    flow = machine(Scripted(flaky))
    await asyncio.gather(*(flow.orchestrate("work", workflow_id=str(number)) for number in range(20)))
    assert list(seen.values()) == [[1, 2, 3]] * 20
