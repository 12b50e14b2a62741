"""A cancel of a flow, and a stop, whatever its workflow is made of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import (
    All,
    BatchTask,
    CompensatableTask,
    CompensationFailedError,
    MemoryCheckpointStore,
    More,
    NoRetry,
    Pending,
    PollTask,
    Split,
    SteppedTask,
    TaskConfig,
    TimerTask,
    Workflow,
    WorkflowCancelledError,
)
from cano.scheduler.backoff import Backoff
from cano.scheduler.scheduler import Scheduler
from cano.scheduler.status import Phase
from cano.testing import VirtualTimeLoop
from tests.scheduler.runs import play


class Long(PollTask[str]):
    async def poll(self, ctx: Any) -> Any:
        return Pending(1.0)


class Timer(TimerTask[str]):
    async def wait(self, ctx: Any) -> float:
        return 1000.0

    async def after_wait(self, ctx: Any) -> str:
        raise AssertionError


class Batch(BatchTask[str, int, int]):
    async def load(self, ctx: Any) -> list[int]:
        return [1, 2]

    async def process_item(self, ctx: Any, item: int) -> int:
        await asyncio.sleep(1000)
        return item

    async def finish(self, ctx: Any, outcomes: Any) -> str:
        raise AssertionError


class Steps(SteppedTask[str, int]):
    async def step(self, ctx: Any, cursor: int | None) -> Any:
        await asyncio.sleep(1)
        return More((cursor or 0) + 1)


async def branch(ctx: Any) -> int:
    await asyncio.sleep(1000)
    raise AssertionError


MODELS: dict[str, Any] = {
    "poll": Long,
    "timer": Timer,
    "batch": Batch,
    "stepped": Steps,
    "split": lambda: Split([branch, branch], join=All(), then="done"),
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("how", ["cancel", "stop"])
def test_a_stop_ends_a_run_of_any_model_and_is_no_failure(model: str, stored: bool, how: str) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        workflow: Workflow[str] = Workflow(checkpoint_store=MemoryCheckpointStore() if stored else None)
        workflow.register("start", MODELS[model]()).add_exit_state("done")
        scheduler = Scheduler().cron("job", workflow, "start", "* * * * *", backoff=Backoff(trip_after=1))
        async with scheduler:
            await asyncio.sleep(65.5)
            assert scheduler.active == 1
            if how == "cancel":
                assert scheduler.cancel("job")
            else:
                await scheduler.stop()
            await asyncio.sleep(1.0)
            status = scheduler.status("job")
            assert status.last is not None
            assert (status.last.kind, status.streak) == ("cancelled", 0)
            assert status.phase is (Phase.IDLE if how == "cancel" else Phase.STOPPED)
            await asyncio.sleep(60)
            assert scheduler.status("job").runs == (2 if how == "cancel" else 1)

    play(main)


@pytest.mark.parametrize("how", ["cancel", "rollback", "stop"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_stop_rolls_a_saga_back_in_reverse_and_a_rollback_that_is_not_clean_is_a_failure(how: str, clean: bool) -> None:
    undone: list[str] = []

    class Step(CompensatableTask[str, str]):
        config = TaskConfig(retry=NoRetry())

        def __init__(self, name: str, then: str) -> None:
            self.name, self.then = name, then

        async def run(self, ctx: Any) -> tuple[str, str]:
            return self.then, self.name

        async def compensate(self, ctx: Any, output: str) -> None:
            if not clean and output == "b":
                raise OSError
            undone.append(output)

    async def main(loop: VirtualTimeLoop) -> None:
        workflow: Workflow[str] = Workflow(checkpoint_store=MemoryCheckpointStore() if how == "rollback" else None)
        workflow.register("start", Step("a", "b")).register("b", Step("b", "c")).register("c", Long()).add_exit_state("done")
        scheduler = Scheduler().manual("job", workflow, "start")
        async with scheduler:
            fire = scheduler.trigger("job")
            await asyncio.sleep(5)
            began = loop.time()
            if how == "stop":
                await scheduler.stop()
            else:
                scheduler.cancel("job", rollback=how == "rollback")
            with pytest.raises(WorkflowCancelledError if clean else CompensationFailedError):
                await fire
            assert loop.time() - began < 5
            assert undone == (["b", "a"] if clean else ["a"])
            assert scheduler.status("job").streak == (0 if clean else 1)

    play(main)
