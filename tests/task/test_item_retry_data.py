"""The changes that a failed attempt of an item takes back are its own: what a flush did to `ctx.data` stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import (
    CancellationToken,
    FixedRetry,
    MemoryCheckpointStore,
    SkipAndContinue,
    StreamTask,
    Window,
    Workflow,
    WorkflowCancelledError,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Third(StreamTask[str, int, int, int]):
    """1 to 6, of which 3 always fails and is dropped; what is flushed is in `ctx.data`."""

    on_item_error = SkipAndContinue()

    def __init__(self, window: Window, delay: float, width: int) -> None:
        self.window = window
        self.item_retry = FixedRetry(2, delay)
        self.max_in_flight = width

    async def open(self, ctx: Any, cursor: int | None) -> Any:
        for item in range((cursor or 0) + 1, 7):
            yield item

    async def process_item(self, ctx: Any, item: int) -> tuple[int, int]:
        await asyncio.sleep(0)
        if item == 3:
            raise ValueError(item)
        return item, item

    async def flush_window(self, ctx: Any, outputs: list[int]) -> None:
        ctx.data.extend(outputs)
        await asyncio.sleep(0)

    async def on_close(self, ctx: Any, reason: Any) -> str:
        return "end"

    def cursor_of(self, item: int) -> int:
        return item


def _workflow(stream: Third, ends: list[Any]) -> Workflow[str]:
    async def end(ctx: Any) -> str:
        ends.append(ctx.data)
        return "done"

    built = Workflow[str](checkpoint_store=MemoryCheckpointStore())
    return built.register("work", stream).register("end", end).add_exit_state("done")


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("delay", [0, 0.001])
async def test_a_cancel_at_any_instant_of_the_attempts_takes_no_flushed_window_back(delay: float, width: int) -> None:
    for turns in range(60):
        ends: list[Any] = []
        built, token = _workflow(Third(Window(count=3), delay, width), ends), CancellationToken()
        running = asyncio.ensure_future(built.orchestrate("work", workflow_id="r", data=[], token=token))
        for _ in range(turns):
            await asyncio.sleep(0)
        token.cancel()
        try:
            await running
        except WorkflowCancelledError:
            await built.orchestrate("work", workflow_id="r", data=[], if_exists="resume")
        assert ends == [[1, 2, 4, 5, 6]], turns


@pytest.mark.parametrize("width", [1, 2])
async def test_a_deadline_that_passes_between_two_attempts_takes_no_flushed_window_back(width: int) -> None:
    ends: list[Any] = []
    await _workflow(Third(Window(count=100, seconds=0.01), 0.05, width), ends).orchestrate("work", workflow_id="r", data=[])
    assert ends == [[1, 2, 4, 5, 6]]
