"""Stops that come from elsewhere than the token: the total timeout, and asyncio's own cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import (
    CancellationToken,
    CloseReason,
    MemoryCheckpointStore,
    Window,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)
from tests.streams import Probe, cursors, machine, numbers, run, then_silence, turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

HOUR = Window(seconds=3600)


# -- the total timeout --------------------------------------------------------------------------------------------------


async def test_a_total_timeout_drains_a_stream_and_is_never_called_a_cancel() -> None:
    store = MemoryCheckpointStore()
    probe = Probe(then_silence(3), window=HOUR)
    with pytest.raises(WorkflowTimeoutError) as caught:
        await run(probe, store, total_timeout=0.05)
    assert caught.value.limit == 0.05
    assert caught.value.elapsed >= 0.05
    assert caught.value.category == "workflow_timeout"
    assert probe.flushed == [[1, 2, 3]]
    assert probe.closed == [CloseReason.CANCELLED]
    assert await cursors(store) == ["3"]
    assert await machine(Probe(numbers(1, 4)), store).resume_from("r") == "done"


async def test_a_total_timeout_stops_an_always_ready_stream_and_a_machine_that_never_waits() -> None:
    async def source(cursor: int | None) -> Any:
        while True:
            yield 1

    with pytest.raises(WorkflowTimeoutError):
        await asyncio.wait_for(run(Probe(source), total_timeout=0.05), 5)

    async def again(ctx: Any) -> str:
        return "work"

    with pytest.raises(WorkflowTimeoutError):
        await asyncio.wait_for(run(again, total_timeout=0.05), 5)


async def test_a_total_timeout_of_nothing_stops_at_the_first_boundary() -> None:
    with pytest.raises(WorkflowTimeoutError):
        await run(Probe(numbers(1, 3)), total_timeout=0)


async def test_the_first_of_cancel_and_timeout_names_the_end() -> None:
    token = CancellationToken()
    asyncio.get_running_loop().call_later(0.01, token.cancel)

    async def flush(outputs: list[int]) -> None:
        await asyncio.sleep(0.05)

    with pytest.raises(WorkflowCancelledError):
        await run(Probe(then_silence(3), window=HOUR, flush=flush), token=token, total_timeout=0.03)


# -- asyncio's own cancellation -----------------------------------------------------------------------------------------


async def test_cancelling_the_awaiting_task_drains_once_and_raises_cancelled_error() -> None:
    """BR-27."""
    reached, store = asyncio.Event(), MemoryCheckpointStore()

    async def flush(outputs: list[int]) -> None:
        async with asyncio.timeout(1), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.01))

    probe = Probe(then_silence(3, reached), window=HOUR, flush=flush)
    running = asyncio.create_task(run(probe, store))
    await reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert running.cancelled()
    assert probe.flushed == [[1, 2, 3]]
    assert probe.closed == [CloseReason.CANCELLED]
    assert await cursors(store) == ["3"]


async def test_an_enclosing_timeout_drains_the_run_and_becomes_a_timeout_error() -> None:
    store = MemoryCheckpointStore()
    probe = Probe(then_silence(3), window=HOUR)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.03):
            await run(probe, store)
    assert probe.flushed == [[1, 2, 3]]
    assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]  # it runs in one
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run(Probe(then_silence(3), window=HOUR)), 0.03)


async def test_a_task_group_whose_other_member_fails_drains_the_run() -> None:
    probe = Probe(then_silence(3), window=HOUR)

    async def fail() -> None:
        await asyncio.sleep(0.02)
        raise LookupError

    with pytest.raises(ExceptionGroup) as caught:
        async with asyncio.TaskGroup() as group:
            group.create_task(run(probe))
            group.create_task(fail())
    assert [type(error) for error in caught.value.exceptions] == [LookupError]
    assert probe.flushed == [[1, 2, 3]]


async def test_a_second_cancel_aborts_the_drain_and_the_run_can_be_resumed_at_once() -> None:
    """BR-41."""
    reached, store, flushing = asyncio.Event(), MemoryCheckpointStore(), asyncio.Event()
    closed: list[str] = []

    async def source(cursor: int | None) -> Any:
        try:
            yield 1
            reached.set()
            await asyncio.Event().wait()
        finally:
            closed.append("closed")

    async def flush(outputs: list[int]) -> None:
        flushing.set()
        await asyncio.Event().wait()

    probe = Probe(source, window=HOUR, flush=flush)
    running = asyncio.create_task(run(probe, store))
    await reached.wait()
    running.cancel()
    await flushing.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 5)
    assert closed == ["closed"]
    assert probe.closed == []
    assert await cursors(store) == []
    assert await machine(Probe(numbers(1, 2)), store).resume_from("r") == "done"


async def test_the_drain_timeout_aborts_a_drain_that_hangs() -> None:
    for hook in ("process", "flush", "close"):
        token, store, inside = CancellationToken(), MemoryCheckpointStore(), asyncio.Event()

        async def hang(argument: Any, inside: asyncio.Event = inside) -> None:
            inside.set()
            await asyncio.Event().wait()

        probe = Probe(then_silence(1), window=Window(seconds=0.01) if hook == "flush" else HOUR, **{hook: hang})
        running = asyncio.create_task(run(probe, store, token=token, drain_timeout=0.05))
        if hook != "close":
            await inside.wait()
        else:
            await turns(20)
        token.cancel()
        with pytest.raises(WorkflowCancelledError):
            await asyncio.wait_for(running, 5)
        assert await cursors(store) == (["1"] if hook == "close" else [])


async def test_the_drain_timeout_aborts_an_append_that_hangs() -> None:
    class Stuck(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: Any) -> None:
            if row.blob is not None:
                await asyncio.Event().wait()
            await super().append(workflow_id, row)

    token, store = CancellationToken(), Stuck()
    probe = Probe(numbers(1, 9), process=lambda item: token.cancel())
    with pytest.raises(WorkflowCancelledError):
        await asyncio.wait_for(run(probe, store, token=token, drain_timeout=0.05), 5)
    assert await cursors(store) == []


async def test_a_hook_that_cancels_the_asyncio_task_it_runs_in_ends_the_run_resumable() -> None:
    store = MemoryCheckpointStore()

    async def process(item: int) -> None:
        if item == 3:
            asyncio.current_task().cancel()  # type: ignore[union-attr]  # it runs in one
            await asyncio.sleep(0)

    with pytest.raises(WorkflowCancelledError):
        await run(Probe(numbers(1, 9), process=process), store)
    assert await cursors(store) == ["2"]
    assert await machine(Probe(numbers(1, 9)), store).resume_from("r") == "done"


async def test_cancels_at_every_instant_leave_nothing_half_done() -> None:
    """The awaiting task is cancelled after every possible number of turns of the event loop, once or twice."""

    async def source(cursor: int | None) -> Any:
        for number in range(1 if cursor is None else cursor + 1, 8):
            await asyncio.sleep(0)
            yield number

    async def step(argument: Any) -> None:
        await asyncio.sleep(0)

    for cancels in (1, 2):
        for instant in range(60):
            store = MemoryCheckpointStore()
            probe = Probe(source, window=Window(count=3, seconds=0.001), process=step, flush=step, close=step)
            running = asyncio.create_task(run(probe, store))
            await turns(instant)
            for _ in range(cancels):
                running.cancel()
                await turns(1)
            try:
                assert await running == "done"
                assert await store.list_runs() == []
                continue
            except asyncio.CancelledError:
                pass
            committed = await cursors(store)
            last = int(committed[-1] or 0) if committed else 0
            again = Probe(source, window=Window(count=3))
            if not await store.list_runs():
                continue
            assert await machine(again, store).resume_from("r") == "done"
            kept = [item for item in probe.items if item <= last]
            assert kept + again.items == list(range(1, 8))
            if cancels == 1:
                assert probe.items == kept
