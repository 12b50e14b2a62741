"""What is no Exception passes through a stream like a crash, wherever it comes up and whatever goes on beside it: it is what
surfaces, nothing more is committed, and the source is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cano import (
    CancellationToken,
    CloseReason,
    Context,
    FixedRetry,
    MemoryCheckpointStore,
    NoRetry,
    SkipAndContinue,
    SqliteCheckpointStore,
    Stop,
    StreamTask,
    TaskExecutionError,
    Window,
    Workflow,
    WorkflowCancelledError,
)
from cano.testing import Crashed
from tests.streams import Probe, machine, numbers, run, then_silence

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Crashing(StreamTask[str, int, int, int]):
    """Item 0 comes at once. While its window is on its way the read or the next item crashes."""

    def __init__(self, where: str, flush: str, in_flight: int, window: Window) -> None:
        self.where, self.how = where, flush
        self.max_in_flight, self.window = in_flight, window
        self.under_way = asyncio.Event()
        self.log: list[str] = []

    async def open(self, ctx: Context, cursor: int | None) -> AsyncIterator[int]:
        try:
            yield 0
            if self.where == "read":
                await self.under_way.wait()
                raise Crashed
            yield 1
            await asyncio.sleep(60)
        finally:
            self.log.append("closed")

    async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
        if item == 1:
            await self.under_way.wait()
            raise Crashed
        return item, item

    async def flush_window(self, ctx: Context, outputs: list[int]) -> Stop[str] | None:
        self.under_way.set()
        try:
            for _ in range(20):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self.how != "swallows":
                raise
        if self.how == "raises":
            raise ValueError
        return Stop("elsewhere") if self.how == "stops" else None

    async def on_close(self, ctx: Context, reason: CloseReason) -> str:
        self.log.append(f"on_close {reason.name}")
        return "done"


@pytest.mark.parametrize("flush", ["returns", "stops", "raises", "swallows"])
@pytest.mark.parametrize(("where", "in_flight"), [("read", 1), ("read", 2), ("item", 2)])
async def test_a_crash_while_a_window_is_flushed_surfaces_and_nothing_is_committed(
    where: str, in_flight: int, flush: str
) -> None:
    window = Window(seconds=0.1) if in_flight == 1 else Window(count=1)
    task, store, went_on = Crashing(where, flush, in_flight, window), MemoryCheckpointStore(), []

    async def elsewhere(ctx: Any) -> str:
        went_on.append(ctx.state)
        return "done"

    flow = machine(task, store).register("elsewhere", elsewhere)
    with pytest.raises(Crashed):
        await flow.orchestrate("work", workflow_id="r")
    assert task.log == ["closed"]
    assert went_on == []
    assert [row.blob for row in await store.load_run("r")] == [None]


@pytest.mark.parametrize("at", ["begin", "flush", "append", "commit"])
async def test_a_crash_of_the_read_beside_any_part_of_a_transaction_surfaces(at: str, tmp_path: Path) -> None:
    task = Crashing("read", "returns", 1, Window(seconds=0.1))
    task.transactional = True

    class Store(SqliteCheckpointStore):
        @asynccontextmanager
        async def transaction(self, workflow_id: str) -> AsyncIterator[Any]:
            if at == "begin":
                task.under_way.set()
                await asyncio.sleep(0)
            async with super().transaction(workflow_id) as transaction:
                yield transaction
                if at == "commit":
                    task.under_way.set()

    async with Store(tmp_path / "runs.db") as store:
        with pytest.raises(Crashed):
            await machine(task, store).orchestrate("work", workflow_id="r")
        assert task.log == ["closed"]
        assert await store.list_runs() == ["r"]


class Source:
    """Crashes at its second step, and takes a while to close, while somebody stops the run."""

    def __init__(self, stop: Any) -> None:
        self.step, self.stop, self.closed = 0, stop, False

    def __aiter__(self) -> Source:
        return self

    async def __anext__(self) -> int:
        self.step += 1
        if self.step == 2:
            raise Crashed
        return self.step

    async def aclose(self) -> None:
        self.stop()
        for _ in range(20):
            await asyncio.sleep(0)
        self.closed = True


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("how", ["token", "task", "abort"])
async def test_a_stop_while_the_source_is_closed_after_a_crash_does_not_hide_it(how: str, in_flight: int) -> None:
    token, running = CancellationToken(), None

    def stop() -> None:
        assert running is not None
        {"token": token.cancel, "task": running.cancel, "abort": token.abort}[how]()

    source = Source(stop)
    running = asyncio.create_task(run(Probe(lambda cursor: source, max_in_flight=in_flight), token=token))
    with pytest.raises(Crashed):
        await running
    assert source.closed or how == "abort"


async def test_a_crash_of_an_item_in_flight_while_on_close_works_surfaces() -> None:
    closing = asyncio.Event()

    class Last(Crashing):
        async def open(self, ctx: Context, cursor: int | None) -> AsyncIterator[int]:
            yield 0
            yield 1

        async def flush_window(self, ctx: Context, outputs: list[int]) -> Stop[str] | None:
            self.under_way.set()
            closing.set()
            await asyncio.sleep(0.001)
            return None

    with pytest.raises(Crashed):
        await machine(Last("item", "returns", 2, Window(count=1))).orchestrate("work")


@pytest.mark.parametrize("ticks", range(6))
async def test_a_token_that_is_aborted_before_or_in_the_first_ticks_of_a_run_ends_it_as_cancelled(ticks: int) -> None:
    token = CancellationToken()
    if not ticks:
        token.abort()
    running = asyncio.create_task(run(Probe(then_silence(1)), MemoryCheckpointStore(), token=token))
    for _ in range(ticks - 1):
        await asyncio.sleep(0)
    token.abort()
    with pytest.raises(WorkflowCancelledError):
        await running
    with pytest.raises(WorkflowCancelledError):
        async with asyncio.timeout(5):
            await run(Probe(numbers(1, 9)), token=token)


async def test_a_policy_of_no_retries_is_no_retry_whatever_it_is_called() -> None:
    totals = []
    for retry in (NoRetry(), FixedRetry(0, 0)):

        class Counting(Probe):
            async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
                ctx.data["seen"] += 1
                if item == 2:
                    raise ValueError
                return item, item

            async def on_close(self, ctx: Context, reason: CloseReason) -> str:
                totals.append(ctx.data["seen"])
                return "done"

        task = Counting(numbers(1, 3), item_retry=retry, on_item_error=SkipAndContinue())
        flow = Workflow[str, dict[str, int]]().register("work", task).add_exit_state("done")
        await flow.orchestrate("work", data={"seen": 0})
    assert totals == [3, 3]


@pytest.mark.parametrize("in_flight", [1, 4])
@pytest.mark.parametrize("raised", [Crashed, OSError])
@pytest.mark.parametrize("second", ["task", "abort", "drain timeout"])
async def test_what_the_flush_of_a_drain_raised_survives_a_cut_while_the_source_closes(
    second: str, raised: type[BaseException], in_flight: int
) -> None:
    token, store, closing = CancellationToken(), MemoryCheckpointStore(), asyncio.Event()

    class Slow(Probe):
        async def open(self, ctx: Context, cursor: int | None) -> AsyncIterator[int]:
            try:
                yield 1
                await asyncio.Event().wait()
            finally:
                closing.set()
                await asyncio.sleep(60)

        async def flush_window(self, ctx: Context, outputs: list[int]) -> None:
            raise raised

    probe = Slow(numbers(1, 1), window=Window(count=9), max_in_flight=in_flight)
    flow = machine(probe, store, drain_timeout=0.01 if second == "drain timeout" else 60)
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r", token=token))
    while not probe.processed:
        await asyncio.sleep(0)
    stop = running.cancel if second == "task" else token.cancel
    stop()
    await closing.wait()
    if second == "task":
        running.cancel()
    elif second == "abort":
        token.abort()
    with pytest.raises((Crashed, TaskExecutionError, asyncio.CancelledError)) as caught:
        await running
    surfaced = caught.value
    if raised is Crashed:
        assert type(surfaced) is Crashed
    else:  # whoever cancels the awaiting asyncio task gets that, caused by the failure
        failure = surfaced.__cause__ if second == "task" else surfaced
        assert isinstance(failure, TaskExecutionError)
        assert isinstance(failure.__cause__, OSError)
    assert [row.blob for row in await store.load_run("r")] == [None]
