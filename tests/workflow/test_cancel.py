"""Every way to stop a run, at every moment: one drain, and nothing left over."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

from cano import (
    CancellationToken,
    CheckpointStoreError,
    CloseReason,
    ConfigurationError,
    MemoryCheckpointStore,
    Resource,
    Stop,
    StreamTask,
    TaskExecutionError,
    Window,
    Workflow,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)
from cano.testing import Crashed
from tests.streams import Probe, cursors, machine, numbers, run, then_silence, turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

HOUR = Window(seconds=3600)


# -- the token ----------------------------------------------------------------------------------------------------------


async def test_a_cancel_flushes_the_partial_window_at_once_whatever_the_window() -> None:
    """BR-31."""
    loop = asyncio.get_running_loop()
    for window in (HOUR, Window(count=100), Window(count=100, seconds=3600)):
        reached, token, store = asyncio.Event(), CancellationToken(), MemoryCheckpointStore()
        probe = Probe(then_silence(3, reached), window=window)
        running = asyncio.create_task(run(probe, store, token=token))
        await reached.wait()
        began = loop.time()
        token.cancel()
        with pytest.raises(WorkflowCancelledError) as caught:
            await running
        assert loop.time() - began < 0.5
        assert caught.value.category == "cancelled"
        assert probe.flushed == [[1, 2, 3]]
        assert probe.closed == [CloseReason.CANCELLED]
        assert await cursors(store) == ["3"]


async def test_a_fired_token_wins_over_a_ready_item_and_resume_goes_on() -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()
    probe = Probe(numbers(0, 9), window=Window(count=3), process=lambda item: token.cancel() if item == 1 else None)
    with pytest.raises(WorkflowCancelledError):
        await run(probe, store, token=token)
    assert probe.processed == [0, 1]
    assert probe.flushed == [[0, 1]]
    assert await cursors(store) == ["1"]
    again = Probe(numbers(0, 9), window=Window(count=3))
    assert await machine(again, store).resume_from("r") == "done"
    assert again.opened == [1]
    assert again.items == list(range(2, 10))


@pytest.mark.parametrize("place", ["process", "flush", "source", "timer"])
async def test_whatever_the_timing_a_cancel_is_never_missed(place: str) -> None:
    """BR-23."""
    loop = asyncio.get_running_loop()
    for seed in range(60):
        chance, token, store = random.Random(seed), CancellationToken(), MemoryCheckpointStore()
        processed_after = 0

        def strike(token: CancellationToken = token, chance: random.Random = chance) -> None:
            if chance.random() < 0.05:
                token.cancel()

        async def source(cursor: int | None, strike: Any = strike, chance: random.Random = chance) -> Any:
            number = -1 if cursor is None else cursor
            while True:
                number += 1
                if place == "source":
                    strike()
                if chance.random() < 0.2:
                    await asyncio.sleep(0)
                yield number

        def process(item: int, strike: Any = strike, token: CancellationToken = token) -> None:
            nonlocal processed_after
            processed_after += token.cancelled
            if place == "process":
                strike()

        probe = Probe(
            source,
            window=chance.choice([Window(count=3), Window(seconds=0.001), Window(count=5, seconds=0.002)]),
            process=process,
            flush=lambda outputs, strike=strike: strike() if place == "flush" else None,
        )
        if place == "timer":
            loop.call_later(chance.random() * 0.01, token.cancel)
        with pytest.raises(WorkflowCancelledError):
            await asyncio.wait_for(run(probe, store, token=token), 10)
        assert processed_after <= 1
        assert probe.items == probe.processed
        assert await cursors(store) == ([str(probe.items[-1])] if probe.items else [])
        assert probe.closed == ([CloseReason.CANCELLED] if probe.opened else [])


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("place", ["process", "flush"])
async def test_no_item_is_pulled_after_a_cancel_of_a_hooks_own(place: str, width: int) -> None:
    """BR-23."""
    token, after = CancellationToken(), []

    def source(cursor: int | None) -> Any:
        for number in range(1, 100):
            if token.cancelled:
                after.append(number)
            yield number

    hook = {place: lambda argument: token.cancel() if argument in (4, [3, 4]) else None}
    probe = Probe(source, max_in_flight=width, **hook)
    with pytest.raises(WorkflowCancelledError):
        await run(probe, token=token)
    assert after == []


async def test_an_item_put_in_the_same_instant_as_the_cancel_stays_in_its_queue() -> None:
    queue: asyncio.Queue[int] = asyncio.Queue()
    token = CancellationToken()

    async def source(cursor: int | None) -> Any:
        while True:
            yield await queue.get()

    probe = Probe(source)
    running = asyncio.create_task(run(probe, token=token))
    await turns()
    queue.put_nowait(1)
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    assert probe.processed == []
    assert queue.get_nowait() == 1


async def test_a_cancel_before_the_run_starts_nothing() -> None:
    token = CancellationToken()
    token.cancel()
    token.cancel()
    probe, store = Probe(numbers(1, 3)), MemoryCheckpointStore()
    with pytest.raises(WorkflowCancelledError):
        await run(probe, store, token=token)
    assert probe.opened == []
    assert await store.list_runs() == []


async def test_a_cancel_while_open_waits_interrupts_it_and_on_close_is_not_called() -> None:
    undone: list[str] = []

    async def source(cursor: int | None) -> Any:
        try:
            await asyncio.Event().wait()
        finally:
            undone.append("undone")

    token = CancellationToken()
    probe = Probe(source)
    asyncio.get_running_loop().call_later(0.02, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await run(probe, token=token)
    assert probe.closed == []
    assert undone == ["undone"]


async def test_an_open_that_swallows_the_cancel_is_closed_again() -> None:
    closed: list[str] = []

    async def items() -> Any:
        try:
            yield 1
        finally:
            closed.append("closed")

    async def source(cursor: int | None) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        opened = items()
        await anext(opened)
        return opened

    token = CancellationToken()
    probe = Probe(source)
    asyncio.get_running_loop().call_later(0.02, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await run(probe, token=token)
    assert closed == ["closed"]
    assert probe.processed == []
    assert probe.closed == []


async def test_a_cancel_with_nothing_in_hand_flushes_nothing_but_calls_on_close() -> None:
    reached, token = asyncio.Event(), CancellationToken()
    probe = Probe(then_silence(2, reached))
    running = asyncio.create_task(run(probe, token=token))
    await reached.wait()
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    assert probe.flushed == [[1, 2]]
    assert probe.closed == [CloseReason.CANCELLED]


async def test_a_stop_from_the_drains_flush_is_ignored() -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()
    probe = Probe(numbers(1, 9), process=lambda item: token.cancel(), flush=lambda outputs: Stop("stopped"))
    with pytest.raises(WorkflowCancelledError):
        await run(probe, store, token=token)
    assert probe.closed == [CloseReason.CANCELLED]
    assert await cursors(store) == ["1"]
    assert [row.next_state for row in await store.load_run("r")] == [None, None]


async def test_a_stop_decided_before_the_cancel_was_seen_is_kept_for_the_resume() -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()
    probe = Probe(numbers(1, 9), flush=lambda outputs: token.cancel() or Stop("stopped"))
    with pytest.raises(WorkflowCancelledError):
        await run(probe, store, token=token)
    assert probe.closed == []
    again = Probe(numbers(1, 9))
    assert await machine(again, store).resume_from("r") == "stopped"
    assert again.opened == []


async def test_a_failing_flush_in_a_drain_commits_nothing_still_closes_and_surfaces() -> None:
    def flush(outputs: list[int]) -> None:
        raise ValueError("full")

    token, store = CancellationToken(), MemoryCheckpointStore()
    probe = Probe(numbers(1, 9), process=lambda item: token.cancel(), flush=flush)
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe, store, token=token)
    assert str(caught.value.__cause__) == "full"
    assert probe.closed == [CloseReason.CANCELLED]
    assert await cursors(store) == []


async def test_a_failing_on_close_in_a_drain_surfaces_and_the_window_stays_committed() -> None:
    """BR-38."""

    def close(reason: CloseReason) -> None:
        raise ValueError("close")

    token, store = CancellationToken(), MemoryCheckpointStore()
    probe = Probe(numbers(1, 9), process=lambda item: token.cancel(), close=close)
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe, store, token=token)
    assert str(caught.value.__cause__) == "close"
    assert await cursors(store) == ["1"]
    assert await machine(Probe(numbers(1, 9)), store).resume_from("r") == "done"


async def test_a_failing_append_in_a_drain_surfaces_as_a_store_error() -> None:
    class Full(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: Any) -> None:
            if row.blob is not None:
                raise OSError("disk full")
            await super().append(workflow_id, row)

    token = CancellationToken()
    probe = Probe(numbers(1, 9), process=lambda item: token.cancel())
    with pytest.raises(CheckpointStoreError) as caught:
        await run(probe, Full(), token=token)
    assert isinstance(caught.value.__cause__, OSError)
    assert probe.closed == [CloseReason.CANCELLED]


async def test_a_cancel_during_the_last_flush_ends_as_cancelled_and_resume_only_closes() -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()
    probe = Probe(numbers(1, 3), flush=lambda outputs: token.cancel() if outputs == [3] else None)
    with pytest.raises(WorkflowCancelledError):
        await run(probe, store, token=token)
    assert probe.items == [1, 2, 3]
    assert await cursors(store) == ["3"]
    again = Probe(numbers(1, 3))
    assert await machine(again, store).resume_from("r") == "done"
    assert again.processed == []
    assert again.closed == [CloseReason.EXHAUSTED]


async def test_a_cancel_in_on_close_enters_no_further_state() -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()
    with pytest.raises(WorkflowCancelledError):
        await run(Probe(numbers(1, 3), close=lambda reason: token.cancel()), store, token=token)
    assert {row.state for row in await store.load_run("r")} == {"work"}


async def test_a_hook_that_is_running_is_not_interrupted_by_a_cancel() -> None:
    token = CancellationToken()
    finished: list[int] = []

    async def process(item: int) -> None:
        token.cancel()
        await asyncio.sleep(0.03)
        finished.append(item)

    with pytest.raises(WorkflowCancelledError):
        await run(Probe(numbers(1, 5), process=process), token=token)
    assert finished == [1]


async def test_a_token_fired_in_another_thread_interrupts_a_waiting_read() -> None:
    reached, token = asyncio.Event(), CancellationToken()
    probe = Probe(then_silence(1, reached), window=HOUR)
    running = asyncio.create_task(run(probe, token=token))
    await reached.wait()
    thread = threading.Thread(target=token.cancel)
    thread.start()
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(running, 5)
    thread.join()
    assert probe.flushed == [[1]]


async def test_a_source_that_fires_the_token_and_then_waits_is_interrupted() -> None:
    token = CancellationToken()

    async def source(cursor: int | None) -> Any:
        yield 1
        token.cancel()
        await asyncio.Event().wait()

    probe = Probe(source, window=HOUR)
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(run(probe, token=token), 5)
    assert probe.flushed == [[1]]


async def test_a_cancel_while_a_flush_goes_on_beside_the_read_lets_that_flush_commit_once() -> None:
    token, store, flushing = CancellationToken(), MemoryCheckpointStore(), asyncio.Event()

    async def flush(outputs: list[int]) -> None:
        flushing.set()
        await asyncio.sleep(0.03)

    probe = Probe(then_silence(1), window=Window(seconds=0.01), flush=flush)
    running = asyncio.create_task(run(probe, store, token=token))
    await flushing.wait()
    token.cancel()
    with pytest.raises(WorkflowCancelledError):
        await running
    assert probe.flushed == [[1]]
    assert await cursors(store) == ["1"]
    assert probe.closed == [CloseReason.CANCELLED]


# -- sources that resist ------------------------------------------------------------------------------------------------


async def test_sources_that_swallow_cancellation_or_yield_while_being_closed_still_end_cancelled(caplog: Any) -> None:
    """BR-139."""

    async def returns(cursor: int | None) -> Any:
        yield 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    async def yields(cursor: int | None) -> Any:
        for number in range(1, 100):
            try:
                yield number
            except GeneratorExit:
                yield -1

    async def raises(cursor: int | None) -> Any:
        yield 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("secret") from None

    for source in (returns, yields, raises):
        caplog.clear()
        token, store = CancellationToken(), MemoryCheckpointStore()
        probe = Probe(source, window=HOUR, process=lambda item, token=token: token.cancel() if item == 3 else None)
        asyncio.get_running_loop().call_later(0.02, token.cancel)
        with pytest.raises(WorkflowCancelledError):
            await run(probe, store, token=token)
        assert probe.closed == [CloseReason.CANCELLED]
        assert await cursors(store) == [str(probe.items[-1])]
        assert len(caplog.records) == (0 if source is returns else 1)
        assert "secret" not in caplog.text


async def test_a_source_that_goes_on_waiting_is_ended_by_the_drain_timeout() -> None:
    async def source(cursor: int | None) -> Any:
        yield 1
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass

    token = CancellationToken()
    probe = Probe(source, window=HOUR)
    asyncio.get_running_loop().call_later(0.02, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(run(probe, token=token, drain_timeout=0.05), 5)


async def test_an_item_handed_out_in_answer_to_the_cancel_is_not_lost() -> None:
    async def source(cursor: int | None) -> Any:
        yield 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            yield 2
        yield 3

    token, store = CancellationToken(), MemoryCheckpointStore()
    probe = Probe(source, window=HOUR)
    asyncio.get_running_loop().call_later(0.02, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await run(probe, store, token=token)
    assert probe.flushed == [[1], [2]]
    assert await cursors(store) == ["2"]


# -- plain tasks --------------------------------------------------------------------------------------------------------


async def test_a_plain_task_is_interrupted_and_its_clean_up_is_awaited() -> None:
    log: list[str] = []
    token = CancellationToken()

    async def work(ctx: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            log.append("cleaned")
        return "done"

    asyncio.get_running_loop().call_later(0.02, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await run(work, token=token)
    assert log == ["cleaned"]


async def test_a_plain_task_that_swallows_the_cancel_ends_cancelled_all_the_same() -> None:
    token, store = CancellationToken(), MemoryCheckpointStore()

    async def work(ctx: Any) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
        return "done"

    asyncio.get_running_loop().call_later(0.02, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await run(work, store, token=token)
    assert [row.state for row in await store.load_run("r")] == ["work"]


async def test_what_a_plain_task_raises_when_it_is_stopped_is_the_cause() -> None:
    token = CancellationToken()

    async def work(ctx: Any) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    asyncio.get_running_loop().call_later(0.02, token.cancel)
    with pytest.raises(WorkflowCancelledError) as caught:
        await run(work, token=token)
    assert isinstance(caught.value.__cause__, ValueError)


async def test_no_state_is_entered_after_a_cancel() -> None:
    token = CancellationToken()
    flow = Workflow[str]().add_exit_state("done")
    entered: list[str] = []

    @flow.register("first")
    async def first(ctx: Any) -> str:
        token.cancel()
        return "second"

    @flow.register("second")
    async def second(ctx: Any) -> str:
        entered.append("second")
        return "done"

    with pytest.raises(WorkflowCancelledError):
        await flow.orchestrate("first", token=token)
    assert entered == []


async def test_a_machine_that_never_waits_lets_a_cancel_through() -> None:
    token = CancellationToken()
    flow = Workflow[str]().add_exit_state("done")

    @flow.register("round")
    async def round_and_round(ctx: Any) -> str:
        return "round"

    asyncio.get_running_loop().call_later(0.02, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(flow.orchestrate("round", token=token), 5)


# -- resources and exceptions that are not ours -------------------------------------------------------------------------


class Tracked(Resource):
    def __init__(self) -> None:
        self.log: list[str] = []

    async def setup(self) -> None:
        self.log.append("setup")

    async def teardown(self) -> None:
        await asyncio.sleep(0)
        self.log.append("teardown")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit(), Crashed()])
@pytest.mark.parametrize("hook", ["open", "process", "flush", "beside", "close", "task"])
async def test_any_other_base_exception_passes_straight_through_like_a_crash(error: BaseException, hook: str) -> None:
    store, resource = MemoryCheckpointStore(), Tracked()
    closed: list[str] = []

    def boom(argument: Any = None) -> Any:
        if argument != 1 and argument != [1, 2]:
            raise error

    async def source(cursor: int | None) -> Any:
        try:
            yield 1
            yield 2
            yield 3
            if hook == "beside":
                await asyncio.Event().wait()
        finally:
            closed.append("closed")

    def opening(cursor: int | None) -> Any:
        raise error

    async def task(ctx: Any) -> str:
        raise error

    hooks = {"flush" if hook == "beside" else hook: boom} if hook in ("process", "flush", "beside", "close") else {}
    window = Window(count=2, seconds=0.02) if hook == "beside" else Window(count=2)
    work: Any = task if hook == "task" else Probe(opening if hook == "open" else source, window=window, **hooks)
    with pytest.raises(type(error)):
        await run(work, store, resources={"r": resource})
    assert resource.log == ["setup", "teardown"]
    assert closed == ([] if hook in ("open", "task") else ["closed"])
    expected = {"open": [], "task": [], "process": [], "close": ["3"]}.get(hook, ["2"])
    assert await cursors(store) == expected
    async with store.claim("r"):
        pass


async def test_resources_are_torn_down_on_every_way_out() -> None:
    async def hang(ctx: Any) -> str:
        await asyncio.Event().wait()
        return "done"

    resource, token = Tracked(), CancellationToken()
    asyncio.get_running_loop().call_later(0.01, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await run(hang, token=token, resources={"r": resource})
    with pytest.raises(WorkflowTimeoutError):
        await run(hang, total_timeout=0.01, resources={"r": resource})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run(hang, resources={"r": resource}), 0.01)
    assert resource.log == ["setup", "teardown"] * 3


async def test_a_cancel_while_resources_are_set_up_takes_down_those_already_up() -> None:
    class Stuck(Resource):
        async def setup(self) -> None:
            await asyncio.Event().wait()

    first, token = Tracked(), CancellationToken()
    asyncio.get_running_loop().call_later(0.01, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await run(Probe(numbers(1, 3)), token=token, resources={"first": first, "stuck": Stuck()})
    assert first.log == ["setup", "teardown"]


async def test_a_token_may_stop_many_runs_and_a_child_only_its_own() -> None:
    parent = CancellationToken()
    child, other = parent.child(), parent.child()
    child.cancel()
    assert (child.cancelled, other.cancelled, parent.cancelled) == (True, False, False)
    waiting = [asyncio.create_task(parent.wait()) for _ in range(5)]
    runs = [asyncio.create_task(run(Probe(then_silence(1)), token=token)) for token in (parent, other, parent.child())]
    await turns()
    parent.cancel(rollback=True)
    await asyncio.gather(*waiting)
    for running in runs:
        with pytest.raises(WorkflowCancelledError):
            await running
    assert other.rollback
    assert parent.child().cancelled
    await parent.wait()


async def test_a_token_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="CancellationToken"):
        await machine(Probe(numbers(1, 2))).orchestrate("work", token="now")  # type: ignore[arg-type]  # wrong, on purpose


class Endless(StreamTask[str, int, int, int]):
    async def open(self, ctx: Any, cursor: int | None) -> Any:
        number = 0
        while True:
            number += 1
            yield number

    async def process_item(self, ctx: Any, item: int) -> tuple[int, int]:
        if item == 100:
            ctx.token.cancel()
        return item, item

    async def flush_window(self, ctx: Any, outputs: list[int]) -> None:
        pass

    async def on_close(self, ctx: Any, reason: CloseReason) -> str:
        return "done"


async def test_a_hook_may_fire_the_token_of_its_own_run() -> None:
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(run(Endless()), 5)
