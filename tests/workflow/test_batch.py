"""Batches: load, process side by side, finish with every outcome in the order of the items."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
from collections.abc import Callable
from typing import Any

import pytest

from cano import All as AllOf
from cano import (
    AttemptTimeoutError,
    BatchTask,
    CancellationToken,
    CanoError,
    ConfigurationError,
    DoNotRetry,
    Err,
    ExponentialBackoff,
    FixedRetry,
    MemoryCheckpointStore,
    NoRetry,
    Ok,
    ResourceNotFoundError,
    RetryExhaustedError,
    Split,
    StoreError,
    TaskConfig,
    TaskExecutionError,
    Workflow,
    WorkflowCancelledError,
)
from cano.testing import Crashed
from tests.models import elapsed, stopped, until
from tests.streams import machine, run

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="outside")


class Batch(BatchTask[str, Any, Any]):
    """Items are processed by `process`, a function or a coroutine function of the context and the item."""

    def __init__(
        self,
        items: Any,
        process: Callable[..., Any] | None = None,
        *,
        end: Callable[..., Any] | None = None,
        **attributes: Any,
    ) -> None:
        self.source, self.handle, self.end = items, process, end
        self.loads = 0
        self.calls: list[Any] = []
        self.attempts: list[tuple[Any, int]] = []
        self.outcomes: list[list[Any]] = []
        self.now = self.most = 0
        for name, value in attributes.items():
            setattr(self, name, value)

    async def load(self, ctx: Any) -> Any:
        self.loads += 1
        return self.source(ctx) if callable(self.source) else self.source

    async def process_item(self, ctx: Any, item: Any) -> Any:
        self.calls.append(item)
        self.attempts.append((item, ctx.attempt))
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            result = item if self.handle is None else self.handle(ctx, item)
            return await result if asyncio.iscoroutine(result) else result
        finally:
            self.now -= 1

    async def finish(self, ctx: Any, outcomes: Any) -> str:
        self.outcomes.append(outcomes)
        return "done" if self.end is None else self.end(ctx, outcomes)


async def for_ever(ctx: Any, item: Any) -> Any:
    await asyncio.Event().wait()


async def failure(task: Any, **options: Any) -> CanoError:
    with pytest.raises(CanoError) as caught:
        await run(task, **options)
    return caught.value


# -- order and concurrency ----------------------------------------------------------------------------------------------


async def test_outcomes_are_in_the_order_of_the_items_whatever_the_order_of_their_ends() -> None:
    for concurrency in (1, 3, 50, 10**9):
        chance = random.Random(concurrency)

        async def process(ctx: Any, item: int, chance: random.Random = chance) -> int:
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)
            return item * 2

        batch = Batch(range(50), process, concurrency=concurrency)
        assert await run(batch) == "done"
        assert batch.outcomes == [[Ok(item * 2) for item in range(50)]]


@pytest.mark.parametrize("concurrency", [1, 4, 12])
async def test_the_concurrency_is_reached_and_never_exceeded(concurrency: int) -> None:
    full = asyncio.Event()

    async def process(ctx: Any, item: int) -> int:
        if batch.now == concurrency:
            full.set()
        await full.wait()
        await asyncio.sleep(0)
        return item

    batch = Batch(range(40), process, concurrency=concurrency)
    await run(batch)
    assert batch.most == concurrency
    assert batch.calls == list(range(40))


@pytest.mark.parametrize("concurrency", [0, -3])
async def test_a_concurrency_below_one_counts_as_one(concurrency: int) -> None:
    batch = Batch(range(5), concurrency=concurrency)
    await run(batch)
    assert batch.most == 1


async def test_items_that_never_wait_let_others_have_their_turn() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await run(Batch(range(500)))
    beside.cancel()
    assert turns > 10


async def numbers() -> Any:
    for number in range(3):
        await asyncio.sleep(0)
        yield number


class Asynchronous:
    def __aiter__(self) -> Any:
        return numbers()


MAKERS: list[Callable[[], Any]] = [
    lambda: [0, 1, 2],
    lambda: (0, 1, 2),
    lambda: range(3),
    lambda: iter([0, 1, 2]),
    lambda: dict.fromkeys(range(3)),
    lambda: (number for number in range(3)),
    numbers,
    Asynchronous,
]


@pytest.mark.parametrize("make", MAKERS)
async def test_items_come_from_any_iterable_or_async_iterable(make: Callable[[], Any]) -> None:
    batch = Batch(lambda ctx: make(), concurrency=2)
    await run(batch)
    assert batch.outcomes == [[Ok(0), Ok(1), Ok(2)]]


async def test_no_items_are_no_trouble() -> None:
    batch = Batch([], concurrency=5)
    assert await run(batch) == "done"
    assert batch.outcomes == [[]]


async def test_an_item_sees_the_run_and_its_own_attempt() -> None:
    seen: list[Any] = []

    def process(ctx: Any, item: int) -> None:
        seen.append((ctx.workflow_id, ctx.state, ctx.task, ctx.attempt, ctx.get("tool"), ctx.data))

    flow = machine(Batch([1], process, name="lot"), resources={"tool": "hammer"})
    await flow.orchestrate("work", workflow_id="r", data={"n": 1})
    assert seen == [("r", "work", "lot", 1, "hammer", {"n": 1})]


async def test_items_see_the_branches_that_led_to_the_batch() -> None:
    async def branch(ctx: Any) -> int:
        return 7

    seen: list[Any] = []
    batch = Batch([1], lambda ctx, item: seen.append(ctx.branches.values))
    flow = machine(batch).register("fan", Split([branch], join=AllOf(), then="work"))
    await flow.orchestrate("fan")
    assert seen == [[7]]


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_context_variables_do_not_leak_from_item_to_item(concurrency: int) -> None:
    """BR-131."""
    seen: list[str] = []

    async def process(ctx: Any, item: int) -> None:
        seen.append(variable.get())
        variable.set(f"item {item}")
        await asyncio.sleep(0)
        assert variable.get() == f"item {item}"

    variable.set("caller")
    batch = Batch(range(6), process, concurrency=concurrency, end=lambda ctx, outcomes: seen.append(variable.get()) or "done")
    await run(batch)
    assert seen == ["caller"] * 7


# -- items that fail ----------------------------------------------------------------------------------------------------


async def test_a_failed_item_is_an_outcome_like_others() -> None:
    raised = ValueError("bad")

    def process(ctx: Any, item: int) -> int:
        if item == 1:
            raise raised
        return item

    batch = Batch(range(3), process)
    assert await run(batch) == "done"
    assert batch.outcomes == [[Ok(0), Err(raised), Ok(2)]]
    assert batch.outcomes[0][1].error is raised
    assert "bad" not in repr(batch.outcomes)


async def test_an_item_has_retries_of_its_own_and_its_last_error_is_the_outcome() -> None:
    failed: dict[int, int] = {}
    errors: list[ValueError] = []

    def process(ctx: Any, item: int) -> int:
        failed[item] = failed.get(item, 0) + 1
        if item == 5 or (item == 3 and failed[item] < 3):
            errors.append(ValueError(item))
            raise errors[-1]
        return item

    batch = Batch(range(12), process, item_retry=FixedRetry(2, 0), concurrency=4)
    assert await run(batch) == "done"
    last = [error for error in errors if error.args == (5,)][-1]
    assert batch.outcomes == [[Err(last) if item == 5 else Ok(item) for item in range(12)]]
    assert [attempt for item, attempt in batch.attempts if item == 5] == [1, 2, 3]
    assert [attempt for item, attempt in batch.attempts if item == 3] == [1, 2, 3]
    assert len(batch.calls) == 12 + 4
    assert batch.most <= 4


@pytest.mark.parametrize("retry", [NoRetry(), FixedRetry(2, 0)])
async def test_an_error_of_ours_that_an_item_raised_is_the_outcome_itself(retry: Any) -> None:
    raised = StoreError("no such key")
    raised.__cause__ = KeyError("k")

    def process(ctx: Any, item: int) -> Any:
        if item == 0:
            raise raised
        return ctx.get("missing")

    batch = Batch(range(2), process, item_retry=retry)
    await run(batch)
    first, second = batch.outcomes[0]
    assert first.error is raised
    assert isinstance(second.error, ResourceNotFoundError)
    assert batch.calls.count(1) == 1


async def test_do_not_retry_ends_the_attempts_of_an_item() -> None:
    def process(ctx: Any, item: int) -> Any:
        raise DoNotRetry

    batch = Batch([1], process, item_retry=FixedRetry(5, 0))
    await run(batch)
    assert batch.calls == [1]
    assert isinstance(batch.outcomes[0][0].error, DoNotRetry)


async def test_a_cancelled_error_that_an_item_leaked_is_no_outcome_and_is_not_retried() -> None:
    """BR-25."""

    def process(ctx: Any, item: int) -> Any:
        raise asyncio.CancelledError

    batch = Batch([1], process, item_retry=FixedRetry(5, 0), config=TaskConfig(retry=FixedRetry(5, 0)))
    error = await failure(batch)
    assert type(error) is TaskExecutionError
    assert isinstance(error.__cause__, asyncio.CancelledError)
    assert (batch.loads, batch.calls, batch.outcomes) == (1, [1], [])


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Crashed])
async def test_a_keyboard_interrupt_in_an_item_passes_through_and_the_others_are_cancelled(kind: Any) -> None:
    cancelled: list[int] = []

    async def process(ctx: Any, item: int) -> None:
        if item == 2:
            raise kind
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(item)

    batch = Batch(range(9), process, concurrency=3, item_retry=FixedRetry(5, 0))
    with pytest.raises(kind):
        await run(batch, MemoryCheckpointStore())
    assert cancelled == [0, 1]
    assert (batch.calls, batch.now, batch.outcomes) == ([0, 1, 2], 0, [])


# -- the whole of it ----------------------------------------------------------------------------------------------------


async def test_a_load_that_fails_is_retried_and_nothing_is_finished() -> None:
    def broken(ctx: Any) -> Any:
        raise ValueError

    batch = Batch(broken, config=TaskConfig(retry=FixedRetry(1, 0)))
    error = await failure(batch)
    assert isinstance(error, RetryExhaustedError)
    assert isinstance(error.__cause__, ValueError)
    assert (batch.loads, batch.calls, batch.outcomes) == (2, [], [])

    async def breaks() -> Any:
        yield 1
        raise ValueError

    batch = Batch(lambda ctx: breaks(), config=TaskConfig(retry=FixedRetry(0, 0)))
    assert isinstance((await failure(batch)).__cause__, ValueError)
    assert (batch.calls, batch.outcomes) == ([], [])


async def test_items_that_are_no_iterable_are_named_by_their_type() -> None:
    error = await failure(Batch(5, config=TaskConfig(retry=FixedRetry(0, 0))))
    assert "load of Batch must return an iterable of items, not a int" in str(error)


async def test_a_retry_of_the_whole_loads_processes_and_finishes_again() -> None:
    def end(ctx: Any, outcomes: Any) -> str:
        assert ctx.data == {"finished": 0}
        ctx.data["finished"] += 1
        if ctx.attempt == 1:
            raise ValueError
        return "done"

    batch = Batch(range(4), end=end, config=TaskConfig(retry=FixedRetry(1, 0)), concurrency=2)
    assert await machine(batch).orchestrate("work", data={"finished": 0}) == "done"
    assert (batch.loads, len(batch.outcomes)) == (2, 2)
    assert sorted(batch.calls) == sorted([*range(4)] * 2)
    assert {attempt for _, attempt in batch.attempts} == {1}


async def test_a_finish_that_always_fails_exhausts_the_attempts() -> None:
    def end(ctx: Any, outcomes: Any) -> str:
        raise KeyError

    batch = Batch([1], end=end, config=TaskConfig(retry=FixedRetry(1, 0)))
    error = await failure(batch)
    assert isinstance(error, RetryExhaustedError)
    assert error.attempts == 2
    assert len(batch.outcomes) == 2


async def test_an_attempt_timeout_bounds_the_whole_and_leaves_no_item_at_work() -> None:
    batch = Batch(range(9), for_ever, concurrency=3, config=TaskConfig(retry=FixedRetry(1, 0), attempt_timeout=0.02))
    took, error = await elapsed(run(batch))
    assert isinstance(error, RetryExhaustedError)
    assert isinstance(error.__cause__, AttemptTimeoutError)
    assert took < 2
    assert (batch.loads, batch.now, batch.calls) == (2, 0, [0, 1, 2, 0, 1, 2])


@pytest.mark.parametrize("how", ["token", "task.cancel()", "total timeout"])
@pytest.mark.parametrize("where", ["item", "item backoff", "load"])
async def test_a_stop_cancels_every_item_at_once(how: str, where: str) -> None:
    """BR-25."""
    token = CancellationToken()

    def fails(ctx: Any, item: Any) -> Any:
        raise ValueError

    async def silent() -> Any:
        began.append(1)
        yield 1
        await asyncio.Event().wait()

    began: list[int] = []
    batch = Batch(
        (lambda ctx: silent()) if where == "load" else range(50),
        fails if where == "item backoff" else for_ever,
        concurrency=5,
        item_retry=ExponentialBackoff(5, base_delay=3600, max_delay=3600),
    )
    running = asyncio.create_task(run(batch, token=token, total_timeout=0.05 if how == "total timeout" else None))
    await until(lambda: began or len(batch.calls) == 5)
    await stopped(how, running, token)
    assert (batch.loads, batch.now, len(batch.calls), batch.outcomes) == (1, 0, 0 if where == "load" else 5, [])


async def test_a_token_fired_by_an_item_stops_the_batch() -> None:
    token = CancellationToken()
    batch = Batch(range(9), lambda ctx, item: token.cancel())
    assert isinstance(await failure(batch, token=token), WorkflowCancelledError)
    assert batch.outcomes == []
    assert len(batch.calls) <= 2


@pytest.mark.parametrize("translate", [True, False])
async def test_an_item_that_makes_something_else_of_its_cancel_is_followed_by_no_other(translate: bool) -> None:
    """BR-25."""

    async def stubborn(ctx: Any, item: int) -> int:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if translate:
                raise ValueError from None
        return item

    token = CancellationToken()
    batch = Batch(range(20), stubborn, concurrency=2, item_retry=FixedRetry(9, 0))
    running = asyncio.create_task(run(batch, token=token))
    await until(lambda: len(batch.calls) == 2)
    token.cancel()
    took, error = await elapsed(running)
    assert isinstance(error, WorkflowCancelledError)
    assert took < 2
    assert (batch.calls, batch.outcomes) == ([0, 1], [])


async def test_an_aborted_drain_cancels_a_stubborn_item_again() -> None:
    strikes: list[str] = []

    async def stubborn(ctx: Any, item: int) -> None:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                strikes.append("cancelled")

    token, batch = CancellationToken(), Batch([1], stubborn)
    running = asyncio.create_task(run(batch, token=token))
    await until(lambda: batch.calls)
    token.cancel()
    await until(lambda: strikes)
    token.abort()
    took, error = await elapsed(running)
    assert isinstance(error, WorkflowCancelledError)
    assert took < 2
    assert len(strikes) == 2


async def test_a_batch_keeps_no_task_of_an_item_that_is_done() -> None:
    def process(ctx: Any, item: int) -> int:
        if item == 1999:
            kept.append(sum(isinstance(thing, asyncio.Task) for thing in gc.get_objects()))
        return item

    kept: list[int] = []
    await run(Batch(range(2000), process, concurrency=3))
    assert kept[0] < 500


async def test_a_batch_is_a_branch_and_a_run_of_its_own_each_time() -> None:
    batch = Batch(range(20), concurrency=4)
    flow = Workflow[str]().register("work", Split([batch, batch], join=AllOf(), then="done")).add_exit_state("done")
    await asyncio.gather(*(flow.orchestrate("work") for _ in range(5)))
    assert batch.outcomes == [[Ok(item) for item in range(20)]] * 10


async def test_nonsense_is_refused_at_once() -> None:
    for attributes in ({"concurrency": 1.5}, {"concurrency": True}, {"item_retry": 3}, {"item_retry": None}, {"config": None}):
        with pytest.raises(ConfigurationError):
            machine(Batch([], **attributes))
