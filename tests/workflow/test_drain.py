"""The drain, in detail: its order, sources that hold things across yields, and cancellations that come in unusual ways."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from cano import (
    CancellationToken,
    CheckpointStoreError,
    CloseReason,
    MemoryCheckpointStore,
    Resource,
    Stop,
    TaskExecutionError,
    Window,
    WorkflowCancelledError,
    WorkflowObserver,
    WorkflowTimeoutError,
)
from tests.streams import Probe, cursors, machine, numbers, run, then_silence

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

HOUR = Window(seconds=3600)


async def test_a_drain_flushes_and_commits_before_it_touches_the_source() -> None:
    log: list[str] = []

    class Logged(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: Any) -> None:
            await super().append(workflow_id, row)
            if row.blob is not None:
                log.append("commit")

    async def source(cursor: int | None) -> Any:
        try:
            yield 1
            yield 2
            await asyncio.Event().wait()
        finally:
            log.append("source closed")

    async def flush(outputs: list[int]) -> None:
        await asyncio.sleep(0.01)
        log.append("flush")

    token = CancellationToken()
    asyncio.get_running_loop().call_later(0.02, token.cancel)
    with pytest.raises(WorkflowCancelledError):
        await run(Probe(source, window=HOUR, flush=flush, close=lambda reason: log.append("on_close")), Logged(), token=token)
    assert log == ["flush", "commit", "source closed", "on_close"]


async def test_what_is_in_hand_is_committed_although_the_source_resists_beyond_the_drain_timeout() -> None:
    async def slow(cursor: int | None) -> Any:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    async def stubborn(cursor: int | None) -> Any:
        yield 1
        while True:
            try:
                await asyncio.sleep(1.5)
            except asyncio.CancelledError:
                continue
            yield 2

    for source in (slow, stubborn):
        token, store = CancellationToken(), MemoryCheckpointStore()
        asyncio.get_running_loop().call_later(0.02, token.cancel)
        with pytest.raises(WorkflowCancelledError):
            await asyncio.wait_for(run(Probe(source, window=HOUR), store, token=token, drain_timeout=0.05), 20)
        assert await cursors(store) == ["1"]


async def test_a_failing_flush_beside_a_stopped_read_commits_nothing_still_closes_and_surfaces() -> None:
    def flush(outputs: list[int]) -> None:
        raise ValueError

    token, store = CancellationToken(), MemoryCheckpointStore()
    asyncio.get_running_loop().call_later(0.02, token.cancel)
    probe = Probe(then_silence(2), window=HOUR, flush=flush)
    with pytest.raises(TaskExecutionError) as caught:
        await run(probe, store, token=token)
    assert isinstance(caught.value.__cause__, ValueError)
    assert probe.closed == [CloseReason.CANCELLED]
    assert await cursors(store) == []


@pytest.mark.parametrize("end", ["stop", "token", "timeout", "cancel", "error", "exhausted"])
async def test_a_source_may_hold_a_task_group_across_its_yields(end: str) -> None:
    """BR-07."""
    fed: asyncio.Queue[int] = asyncio.Queue()

    async def feed() -> None:
        for number in range(1, 4):
            await fed.put(number)
        if end == "exhausted":
            await fed.put(-1)
        else:
            await asyncio.Event().wait()

    async def source(cursor: int | None) -> Any:
        async with asyncio.TaskGroup() as group:
            group.create_task(feed())
            while (item := await fed.get()) > 0:
                yield item

    def process(item: int) -> None:
        if end == "error" and item == 3:
            raise ValueError

    token = CancellationToken()
    probe = Probe(source, process=process, flush=lambda outputs: Stop("stopped") if end == "stop" else None)
    if end == "token":
        asyncio.get_running_loop().call_later(0.02, token.cancel)
    running = asyncio.create_task(run(probe, token=token, total_timeout=0.02 if end == "timeout" else None))
    if end == "cancel":
        await asyncio.sleep(0.02)
        running.cancel()
    expected: dict[str, Any] = {
        "token": WorkflowCancelledError,
        "timeout": WorkflowTimeoutError,
        "cancel": asyncio.CancelledError,
        "error": TaskExecutionError,
    }
    if end in expected:
        with pytest.raises(expected[end]):
            await running
    else:
        assert await running == ("stopped" if end == "stop" else "done")


async def test_an_iterator_without_aiter_is_pulled_from_like_any_other() -> None:
    class Bare:
        left = 3

        async def __anext__(self) -> int:
            self.left -= 1
            if self.left < 0:
                raise StopAsyncIteration
            return self.left

    class Iterable:
        def __aiter__(self) -> Any:
            return Bare()

    probe = Probe(lambda cursor: Iterable())
    assert await run(probe) == "done"
    assert probe.items == [2, 1, 0]


async def test_a_source_that_fails_beside_a_flush_lets_that_flush_end_and_commit() -> None:
    gate = asyncio.Event()

    async def source(cursor: int | None) -> Any:
        yield 1
        await gate.wait()
        raise ValueError

    async def flush(outputs: list[int]) -> None:
        gate.set()
        await asyncio.sleep(0.02)

    store = MemoryCheckpointStore()
    with pytest.raises(TaskExecutionError):
        await run(Probe(source, window=Window(seconds=0.01), flush=flush), store)
    assert await cursors(store) == ["1"]


async def test_cancelling_every_asyncio_task_there_is_drains_too() -> None:
    store, reached = MemoryCheckpointStore(), asyncio.Event()
    probe = Probe(then_silence(3, reached), window=HOUR)
    running = asyncio.create_task(run(probe, store))
    await reached.wait()
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert probe.flushed == [[1, 2, 3]]
    assert await cursors(store) == ["3"]


async def test_a_run_in_the_background_is_drained_when_its_loop_ends(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from cano import SqliteCheckpointStore, Window
from tests.streams import Probe, cursors, machine, then_silence

store = SqliteCheckpointStore(sys.argv[1])

async def main():
    reached = asyncio.Event()
    probe = Probe(then_silence(3, reached), window=Window(seconds=3600))
    main.task = asyncio.create_task(machine(probe, store).orchestrate("work", workflow_id="r"))
    await reached.wait()
    return probe

probe = asyncio.run(main())
print(probe.flushed, asyncio.run(cursors(store)))
"""
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-c", program, str(tmp_path / "runs.db")], capture_output=True, text=True, timeout=30
        )
        assert (done.stdout, done.stderr) == ("[[1, 2, 3]] ['3']\n", "")
        (tmp_path / "runs.db").unlink()


async def test_a_cancellation_that_is_repeated_at_every_turn_is_one_cancellation() -> None:
    """Cancel scopes of anyio do that."""
    reached, store = asyncio.Event(), MemoryCheckpointStore()

    async def flush(outputs: list[int]) -> None:
        await asyncio.sleep(0.02)

    probe = Probe(then_silence(3, reached), window=HOUR, flush=flush)
    running = asyncio.create_task(run(probe, store))
    await reached.wait()
    while not running.done():
        running.cancel("Cancelled via cancel scope 7f; reason: deadline exceeded")
        await asyncio.sleep(0)
    assert running.cancelled()
    assert probe.closed == [CloseReason.CANCELLED]
    assert await cursors(store) == ["3"]


async def test_a_cancelled_error_that_a_store_or_an_observer_lets_out_is_no_cancel() -> None:
    class Leaky(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: Any) -> None:
            if row.blob is not None:
                raise asyncio.CancelledError
            await super().append(workflow_id, row)

    with pytest.raises(CheckpointStoreError):
        await run(Probe(numbers(1, 3)), Leaky())

    class LeakyClear(MemoryCheckpointStore):
        async def clear(self, workflow_id: str) -> None:
            raise asyncio.CancelledError

    assert await run(Probe(numbers(1, 3)), LeakyClear()) == "done"

    class LeakyLoad(MemoryCheckpointStore):
        async def load_run(self, workflow_id: str) -> Any:
            raise asyncio.CancelledError

    with pytest.raises(CheckpointStoreError):
        await machine(Probe(numbers(1, 3)), LeakyLoad()).resume_from("r")

    class Observer(WorkflowObserver):
        def on_window(self, event: Any) -> None:
            raise asyncio.CancelledError

    assert await run(Probe(numbers(1, 3)), observers=[Observer()]) == "done"


async def test_overlapping_users_of_resources_are_counted_from_the_moment_they_come() -> None:
    log: list[str] = []

    class Slow(Resource):
        async def setup(self) -> None:
            await asyncio.sleep(0.005)
            log.append("setup")

        async def teardown(self) -> None:
            log.append("teardown")

    async def work(ctx: Any) -> str:
        return "done"

    flow = machine(work, resources={"slow": Slow()})
    await asyncio.gather(*(flow.orchestrate("work") for _ in range(5)))
    assert log == ["setup", "teardown"]


async def test_one_teardown_that_is_cut_or_leaks_does_not_stop_the_others() -> None:
    log: list[str] = []

    class Down(Resource):
        def __init__(self, name: str, how: Any = None) -> None:
            self.name, self.how = name, how

        async def teardown(self) -> None:
            log.append(self.name)
            if self.how == "hang":
                await asyncio.Event().wait()
            elif self.how is not None:
                raise self.how

    async def work(ctx: Any) -> str:
        return "done"

    assert await run(work, resources={"a": Down("a"), "b": Down("b", asyncio.CancelledError()), "c": Down("c")}) == "done"
    assert log == ["c", "b", "a"]
    log.clear()
    with pytest.raises(SystemExit):
        await run(work, resources={"a": Down("a"), "b": Down("b", SystemExit()), "c": Down("c")})
    assert log == ["c", "b", "a"]
    log.clear()
    token = CancellationToken()
    asyncio.get_running_loop().call_later(0.02, token.cancel)
    assert await run(work, token=token, drain_timeout=0.02, resources={"a": Down("a"), "b": Down("b", "hang")}) == "done"
    assert log == ["b", "a"]


async def test_undoing_a_failed_set_up_is_not_interrupted_by_a_cancel() -> None:
    token, log = CancellationToken(), []

    class First(Resource):
        async def teardown(self) -> None:
            token.cancel()
            await asyncio.sleep(0.01)
            log.append("torn down")

    class Second(Resource):
        async def setup(self) -> None:
            raise OSError("no")

    async def work(ctx: Any) -> str:
        return "done"

    with pytest.raises(OSError, match="no"):
        await run(work, token=token, resources={"first": First(), "second": Second()})
    assert log == ["torn down"]


async def test_a_pace_that_changes_does_not_starve_the_event_loop_for_long() -> None:
    gaps: list[float] = []

    async def ticker() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            gaps.append(now - last)
            last = now

    def process(item: int) -> None:
        end = time.thread_time() + (0.001 if item > 20000 else 0.0)
        while time.thread_time() < end:
            pass

    other = asyncio.create_task(ticker())
    await run(Probe(numbers(1, 20200), window=Window(count=100000), process=process))
    other.cancel()
    assert max(gaps) < 0.1


async def test_data_that_cannot_be_stored_fails_the_state_that_made_it_so() -> None:
    async def spoils(ctx: Any) -> str:
        ctx.data["x"] = object()
        return "next"

    async def after(ctx: Any) -> str:
        return "done"

    flow = machine(spoils).register("next", after)
    with pytest.raises(TaskExecutionError) as caught:
        await flow.orchestrate("work", data={})
    assert (caught.value.state, caught.value.path) == ("work", ("work",))
