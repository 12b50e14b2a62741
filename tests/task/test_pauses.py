"""The wait between two attempts, wherever there are attempts, ends at once with a stop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import (
    All,
    CancellationToken,
    FixedRetry,
    Split,
    Task,
    TaskConfig,
    Workflow,
)
from tests.models import stopped
from tests.sagas import Deed, raises
from tests.splits import Branch
from tests.streams import Probe, numbers

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

LONG = TaskConfig(retry=FixedRetry(3, 3600))


def _task(fail: Any) -> Any:
    class Failing(Task[str]):
        config = LONG

        async def run(self, ctx: Any) -> str:
            fail(ctx)
            return "done"

    return Failing()


def _step(fail: Any) -> Any:
    deed = Deed([], "A", 1, "done", run=fail)
    deed.config = LONG
    return deed


def _stream(width: int) -> Any:
    return lambda fail: Probe(numbers(1, 9), process=fail, item_retry=FixedRetry(3, 3600), max_in_flight=width)


KINDS = {
    "a task": _task,
    "a step": _step,
    "a branch": lambda fail: Split([Branch(fail, config=LONG)], join=All(), then="done"),
    "an item": _stream(1),
    "an item in flight": _stream(3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["token", "task.cancel()", "total timeout"])
async def test_a_stop_ends_the_wait_before_the_next_attempt_at_once(kind: str, how: str) -> None:
    failed, token = asyncio.Event(), CancellationToken()
    begun: list[Any] = []

    def fail(argument: Any) -> None:
        begun.append(argument)
        failed.set()
        raises(ValueError())()

    built = Workflow[str](total_timeout=0.05 if how == "total timeout" else None, drain_timeout=60)
    built.register("work", KINDS[kind](fail)).add_exit_state("done")
    running = asyncio.create_task(built.orchestrate("work", token=token))
    await failed.wait()
    await asyncio.sleep(0.01)
    many = len(begun)
    await stopped(how, running, token)
    assert len(begun) == many
