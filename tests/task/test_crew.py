"""A crew: whoever leaves its block, and however, its members have ended."""

from __future__ import annotations

import asyncio

import pytest

from cano import TaskExecutionError
from cano.task.crew import Crew
from tests.streams import Probe, numbers, run, turns

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


async def hangs(cleaning: asyncio.Event, log: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        cleaning.set()
        try:
            await asyncio.sleep(0.02)
            log.append("clean")
        except asyncio.CancelledError:
            log.append("cut")
            raise


async def test_a_cancellation_that_comes_while_members_are_awaited_surfaces_when_they_have_ended() -> None:
    cleaning, log = asyncio.Event(), []

    async def owner() -> None:
        async with Crew() as crew:
            crew.start(hangs(cleaning, log))
            await turns()
        log.append("never")

    owning = asyncio.create_task(owner())
    await cleaning.wait()
    owning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owning
    assert log == ["clean"]


async def test_the_error_of_the_block_stays_whatever_comes_while_members_are_awaited() -> None:
    cleaning, log = asyncio.Event(), []

    async def owner() -> None:
        async with Crew() as crew:
            crew.start(hangs(cleaning, log))
            await turns()
            raise LookupError

    owning = asyncio.create_task(owner())
    await cleaning.wait()
    owning.cancel()
    await turns()
    owning.cancel()
    with pytest.raises(LookupError):
        await owning
    assert log == ["cut"]


async def test_a_member_that_never_got_its_turn_is_put_away_too() -> None:
    log: list[str] = []

    async def work() -> None:
        log.append("begun")

    with pytest.raises(LookupError):
        async with Crew() as crew:
            crew.start(work())
            raise LookupError
    assert log == []


async def test_a_worker_of_a_stream_whose_hook_makes_another_error_of_its_cancellation_ends_all_the_same() -> None:
    begun: list[int] = []

    async def process(item: int) -> None:
        begun.append(item)
        if item == 1:
            await turns()
            raise LookupError("the first")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError from None

    with pytest.raises(TaskExecutionError) as caught:
        await asyncio.wait_for(run(Probe(numbers(1, 9), process=process, max_in_flight=3), drain_timeout=1), 5)
    assert str(caught.value.__cause__) == "the first"
    assert begun == [1, 2, 3]


async def test_a_members_crash_surfaces_unless_the_block_crashed_itself() -> None:
    async def crash() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        async with Crew() as crew:
            crew.start(crash())
            await turns()
    with pytest.raises(SystemExit):
        async with Crew() as crew:
            crew.start(crash())
            await turns()
            raise SystemExit
