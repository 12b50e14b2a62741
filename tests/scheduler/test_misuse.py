"""What is refused, and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest

from cano import ConfigurationError, WorkflowError
from cano.scheduler.scheduler import Scheduler
from cano.scheduler.status import Phase
from cano.testing import VirtualTimeLoop
from tests.scheduler.runs import Runs, play


@pytest.mark.parametrize("verb", ["start", "stop", "wait", "trigger", "reset"])
def test_another_event_loop_is_refused_and_changes_nothing(verb: str) -> None:
    async def call(scheduler: Scheduler) -> None:
        if verb in ("trigger", "reset"):
            getattr(scheduler, verb)("job")
        else:
            await getattr(scheduler, verb)()

    async def main() -> None:
        scheduler = Scheduler().manual("job", Runs(None, 3600.0).workflow, "start")
        async with scheduler:
            fire = scheduler.trigger("job")
            with ThreadPoolExecutor() as threads:
                elsewhere = threads.submit(asyncio.run, asyncio.wait_for(call(scheduler), 10))
                with pytest.raises(WorkflowError, match=f"{verb} must be called in the event loop of the scheduler"):
                    elsewhere.result()
            await asyncio.sleep(0)
            assert (scheduler.status("job").phase, fire.token.cancelled) == (Phase.RUNNING, False)

    asyncio.run(main())


def test_a_stopped_scheduler_may_be_stopped_and_awaited_anywhere() -> None:
    scheduler = Scheduler().manual("job", Runs().workflow, "start")

    async def once() -> None:
        async with scheduler:
            await scheduler.trigger("job")

    async def main() -> None:
        await scheduler.stop()
        await scheduler.wait()
        scheduler.reset("job")

    with asyncio.Runner() as runner:
        runner.run(once())
        with ThreadPoolExecutor() as threads:
            threads.submit(asyncio.run, main()).result()


def test_a_second_block_is_refused_and_the_first_goes_on() -> None:
    async def main(moments: VirtualTimeLoop) -> None:
        scheduler = Scheduler().manual("job", Runs().workflow, "start")
        async with scheduler:
            with pytest.raises(WorkflowError, match="in an `async with` already"):
                async with scheduler:
                    raise AssertionError("is not entered")
            assert await scheduler.trigger("job") == "done"
        await scheduler.start()
        async with scheduler:
            assert await scheduler.trigger("job") == "done"

    play(main)


@pytest.mark.parametrize("name", [[], {}, None, 3, ["job"]])
def test_a_name_that_is_none_is_refused_by_every_verb(name: Any) -> None:
    scheduler = Scheduler().manual("job", Runs().workflow, "start")
    verbs: list[Callable[[Any], Any]] = [scheduler.trigger, scheduler.cancel, scheduler.reset, scheduler.status]
    for verb in verbs:
        with pytest.raises(ConfigurationError, match=r"there is no flow of type \w+; the known ones: job"):
            verb(name)
    assert name not in scheduler
    with pytest.raises(ConfigurationError, match="needs a name"):
        scheduler.manual(name, Runs().workflow, "start")


class AsyncData:
    async def __call__(self, instant: datetime) -> int:
        return 1


async def async_data(instant: datetime) -> int:
    return 1


@pytest.mark.parametrize("data", [async_data, AsyncData(), AsyncData().__call__])
def test_an_async_data_function_is_refused(data: Any) -> None:
    with pytest.raises(ConfigurationError, match="not an async one"):
        Scheduler().manual("job", Runs().workflow, "start", data=data)


def test_a_data_function_that_returns_a_coroutine_fails_the_run() -> None:
    async def main(moments: VirtualTimeLoop) -> None:
        runs = Runs()
        scheduler = Scheduler().manual("job", runs.workflow, "start", data=lambda instant: async_data(instant))
        async with scheduler:
            with pytest.raises(ConfigurationError, match="the data function of flow job is async"):
                await scheduler.trigger("job")
        assert runs.count == 0

    play(main)


def test_a_wrong_duration_is_refused_without_advice_that_does_not_hold() -> None:
    for wrong in (lambda: Scheduler(stop_timeout=-1), lambda: Scheduler(stop_timeout=float("nan"))):
        with pytest.raises(ConfigurationError, match="^stop_timeout must") as caught:
            wrong()
        assert "None" not in str(caught.value)
