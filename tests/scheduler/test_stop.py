"""Stopping: one run or the whole scheduler, at any moment, whatever hangs."""

from __future__ import annotations

import asyncio
import random

import pytest

from cano import Resource, TaskExecutionError, WorkflowCancelledError, WorkflowError
from cano.scheduler.backoff import Backoff
from cano.scheduler.scheduler import Scheduler
from cano.scheduler.session import GRACE
from cano.scheduler.status import Phase
from cano.testing import Crashed, VirtualTimeLoop
from tests.scheduler.runs import Runs, play


async def stubborn() -> None:
    """What no cancellation ends for an hour."""
    ends = asyncio.get_running_loop().time() + 3600
    while asyncio.get_running_loop().time() < ends:
        try:
            await asyncio.sleep(ends - asyncio.get_running_loop().time())
        except asyncio.CancelledError:
            pass


def test_a_cancel_right_after_a_trigger_is_never_missed() -> None:
    """BR-38."""

    async def main(loop: VirtualTimeLoop) -> None:
        for turns in range(30):
            runs = Runs(100.0)
            scheduler = Scheduler().manual("job", runs.workflow, "start")
            async with scheduler:
                began = asyncio.get_running_loop().time()
                fire = scheduler.trigger("job")
                for _ in range(turns):
                    await asyncio.sleep(0)
                assert scheduler.cancel("job")
                with pytest.raises(WorkflowCancelledError):
                    await fire
                assert asyncio.get_running_loop().time() == began
                status = scheduler.status("job")
                assert (status.phase, status.streak, runs.ended) == (Phase.IDLE, 0, 0)
                assert fire.outcome is not None
                assert fire.outcome.kind == "cancelled"

    play(main)


def test_a_cancel_stops_only_the_run_that_goes_on() -> None:
    """BR-94: and it is no failure."""

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(100.0, 1.0)
        scheduler = Scheduler().every("tick", runs.workflow, "start", 10.0, fixed="rate", backoff=Backoff(trip_after=1))
        async with scheduler:
            await asyncio.sleep(5)
            assert scheduler.cancel("tick")
            await asyncio.sleep(20)
        assert len(runs.at) == 3
        assert scheduler.counters["tick"].cancelled == 1
        assert scheduler.counters["tick"].trips == 0

    play(main)


def test_whoever_awaits_a_fire_may_be_cancelled_and_the_run_goes_on() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(10.0)
        scheduler = Scheduler().manual("job", runs.workflow, "start")
        async with scheduler:
            fire = scheduler.trigger("job")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await fire
            assert not fire.done
            assert await fire == "done"

    play(main)


def test_a_stop_wakes_sleepers_drains_runs_and_is_idempotent() -> None:
    """BR-31, BR-33."""

    async def main(loop: VirtualTimeLoop) -> None:
        runs, hourly = Runs(30.0), Runs()
        scheduler = Scheduler().manual("job", runs.workflow, "start")
        scheduler.every("hourly", hourly.workflow, "start", 3600, fixed="rate", first=3600)
        scheduler.cron("daily", hourly.workflow, "start", "0 4 * * *")
        await scheduler.start()
        await scheduler.start()
        waiting = asyncio.create_task(scheduler.wait())
        fire = scheduler.trigger("job")
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        stopping = [asyncio.create_task(scheduler.stop()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(WorkflowError, match="not running"):
            scheduler.trigger("hourly")
        with pytest.raises(WorkflowError, match="stopping"):
            await scheduler.start()
        await asyncio.gather(*stopping, waiting)
        assert asyncio.get_running_loop().time() == began
        with pytest.raises(WorkflowCancelledError):
            await fire
        await scheduler.stop()
        await scheduler.wait()
        assert [status.phase for status in scheduler.statuses()] == [Phase.STOPPED] * 3
        assert (runs.count, runs.ended, hourly.count) == (1, 0, 0)

    play(main)


def test_a_run_that_cannot_be_stopped_is_left_behind_in_time_and_never_overlapped(caplog: pytest.LogCaptureFixture) -> None:
    """BR-36, BR-38."""

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(stubborn, 0.0, drain_timeout=None)
        scheduler = Scheduler(stop_timeout=5.0).manual("job", runs.workflow, "start").manual("idle", runs.workflow, "start")
        await scheduler.start()
        fire = scheduler.trigger("job")
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        await scheduler.stop()
        assert asyncio.get_running_loop().time() - began == pytest.approx(5.0 + 2 * GRACE)
        with pytest.raises(WorkflowError, match="left behind"):
            await fire
        last = scheduler.status("job").last
        assert last is not None
        assert last.kind == "abandoned"
        with pytest.raises(WorkflowError, match="left behind are still going on: job"):
            await scheduler.start()
        await asyncio.sleep(3600)
        assert scheduler.status("job").last is last
        async with scheduler:
            assert await scheduler.trigger("job") == "done"

    play(main)
    assert "flow job could not be stopped" in caplog.text


def test_a_teardown_that_never_ends_is_cut_in_time_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """BR-36."""

    class Stuck(Resource):
        async def teardown(self) -> None:
            await asyncio.Event().wait()

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(resources={"stuck": Stuck()})
        scheduler = Scheduler(stop_timeout=5.0).manual("job", runs.workflow, "start")
        await scheduler.start()
        began = asyncio.get_running_loop().time()
        await scheduler.stop()
        assert asyncio.get_running_loop().time() - began == pytest.approx(5.0)

    play(main)
    assert "the resources of flow job did not tear down" in caplog.text


def test_a_cancelled_stop_ends_the_drains_cleans_up_and_is_cancelled() -> None:
    torn: list[str] = []

    class Noted(Resource):
        async def teardown(self) -> None:
            await asyncio.sleep(1)
            torn.append("down")

    async def slow_drain() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1000)

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(slow_drain, resources={"noted": Noted()}, drain_timeout=None)
        scheduler = Scheduler(stop_timeout=900.0).manual("job", runs.workflow, "start")
        await scheduler.start()
        fire = scheduler.trigger("job")
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await scheduler.stop()
        assert asyncio.get_running_loop().time() - began == pytest.approx(4.0)
        assert torn == ["down"]
        assert fire.done

    play(main)


@pytest.mark.parametrize("error", [KeyError("body"), asyncio.CancelledError(), Crashed()])
def test_what_the_body_raises_stops_everything_and_comes_out(error: BaseException) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(100.0)
        scheduler = Scheduler().every("tick", runs.workflow, "start", 1.0, fixed="rate")
        with pytest.raises(type(error)) as caught:
            async with scheduler:
                await asyncio.sleep(5)
                raise error
        assert caught.value is error
        assert (scheduler.status("tick").phase, runs.ended) == (Phase.STOPPED, 0)

    play(main)


def test_an_enclosing_timeout_stops_the_scheduler_and_becomes_a_timeout_error() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(100.0)
        scheduler = Scheduler().every("tick", runs.workflow, "start", 1.0, fixed="rate")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5), scheduler:
                await scheduler.wait()
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0

    play(main)


@pytest.mark.parametrize("error", [Crashed(), SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("body", ["wait", "sleep", "await", "stop", "swallow"])
def test_a_base_exception_of_a_run_stops_the_scheduler_and_comes_out_of_it(error: BaseException, body: str) -> None:
    """Like a TaskGroup: the body is interrupted, the other flows drain, resources are torn down."""

    async def main(loop: VirtualTimeLoop) -> None:
        async def crash() -> None:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                await asyncio.sleep(1)
            raise error

        torn: list[float] = []

        class Noted(Resource):
            async def teardown(self) -> None:
                await asyncio.sleep(1)
                torn.append(asyncio.get_running_loop().time())

        runs, other = Runs(crash, resources={"noted": Noted()}), Runs(100.0)
        scheduler = Scheduler().manual("job", runs.workflow, "start").every("other", other.workflow, "start", 1, fixed="delay")
        with pytest.raises(type(error)) as caught:
            async with scheduler:
                fire = scheduler.trigger("job")
                match body:
                    case "wait":
                        await scheduler.wait()
                    case "sleep":
                        await asyncio.sleep(1000)
                    case "await":
                        await fire
                    case "stop":
                        await asyncio.sleep(4)
                        await scheduler.stop()
                    case _:
                        with pytest.raises(asyncio.CancelledError):
                            await asyncio.sleep(1000)
        assert caught.value is error
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        assert torn == [asyncio.get_running_loop().time()] == [pytest.approx(6.0)]
        last = scheduler.status("job").last
        assert last is not None
        assert (last.kind, scheduler.status("job").phase, other.ended) == ("crashed", Phase.STOPPED, 0)
        async with scheduler:
            assert scheduler.status("job").streak == 1

    play(main)


def test_without_async_with_a_base_exception_comes_out_of_wait_or_of_the_next_stop() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        error = Crashed()
        scheduler = Scheduler().manual("job", Runs(error).workflow, "start")
        await scheduler.start()
        scheduler.trigger("job")
        with pytest.raises(Crashed):
            await scheduler.wait()
        await scheduler.stop()
        await scheduler.start()
        with pytest.raises(Crashed):
            await scheduler.trigger("job")
        await asyncio.sleep(1)
        with pytest.raises(Crashed):
            await scheduler.stop()
        await scheduler.stop()

    play(main)


def test_a_run_that_stops_its_own_scheduler_does_not_wait_for_itself() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        async def from_inside() -> None:
            with pytest.raises(WorkflowError, match="its own end"):
                await fires[0]
            await asyncio.create_task(scheduler.stop())
            await asyncio.sleep(100)

        runs = Runs(from_inside)
        scheduler = Scheduler().manual("job", runs.workflow, "start")
        fires = []
        async with scheduler:
            fires.append(scheduler.trigger("job"))
            await scheduler.wait()
        assert fires[0].outcome is not None
        assert fires[0].outcome.kind == "cancelled"
        assert asyncio.get_running_loop().time() == 0.0

    play(main)


def test_a_start_that_is_cancelled_or_stopped_leaves_nothing() -> None:
    log: list[str] = []

    class Slow(Resource):
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        async def setup(self) -> None:
            await asyncio.sleep(self.seconds)
            log.append("up")

        async def teardown(self) -> None:
            await asyncio.sleep(1)
            log.append("down")

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(resources={"quick": Slow(1), "slow": Slow(100)})
        scheduler = Scheduler().every("tick", runs.workflow, "start", 1.0, fixed="rate")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await scheduler.start()
        assert log == ["up", "down"]
        starting = asyncio.create_task(scheduler.start())
        await asyncio.sleep(5)
        with pytest.raises(WorkflowError, match="starting"):
            await scheduler.start()
        began = asyncio.get_running_loop().time()
        await scheduler.stop()
        assert asyncio.get_running_loop().time() - began == pytest.approx(1.0), "the set-up was not waited for"
        with pytest.raises(WorkflowError, match="stopped while it started"):
            await starting
        assert log == ["up", "down"] * 2
        assert runs.count == 0

    play(main)


def test_stops_at_random_moments_leave_no_task_and_settle_every_fire() -> None:
    """BR-133, BR-38."""

    async def slow_to_go() -> None:
        try:
            await asyncio.sleep(2)
        finally:
            await asyncio.sleep(0.5)

    async def main(loop: VirtualTimeLoop) -> None:
        chance = random.Random(7)
        runs = Runs(*(0.3, ValueError(), slow_to_go, 1.7) * 400, 0.0)
        scheduler = Scheduler(stop_timeout=1.0)
        scheduler.every("rate", runs.workflow, "start", 0.7, fixed="rate", backoff=Backoff(initial=0.1))
        scheduler.every("delay", runs.workflow, "start", 0.4, fixed="delay", backoff=Backoff(initial=0.1, trip_after=9))
        scheduler.cron("cron", runs.workflow, "start", "*/2 * * * * *").manual("job", runs.workflow, "start")
        for _ in range(50):
            before = asyncio.all_tasks()
            async with scheduler:
                fire = scheduler.trigger("job")
                await asyncio.sleep(chance.choice([0, chance.random() * 5]))
                for _ in range(chance.randrange(8)):
                    await asyncio.sleep(0)
            assert asyncio.all_tasks() == before
            assert fire.done
            assert scheduler.active == 0
            assert {status.phase for status in scheduler.statuses()} == {Phase.STOPPED}

    play(main)


def test_one_scheduler_serves_one_event_loop_after_another_even_without_a_stop() -> None:
    runs = Runs(100.0, 0.0)
    scheduler = Scheduler().manual("job", runs.workflow, "start")

    async def forget() -> None:
        await scheduler.start()
        scheduler.trigger("job")
        await asyncio.sleep(0.01)

    async def again() -> str:
        async with scheduler:
            end: str = await scheduler.trigger("job")
            return end

    asyncio.run(forget())
    assert scheduler.status("job").phase is Phase.STOPPED
    assert asyncio.run(again()) == "done"

    loop = asyncio.new_event_loop()
    runs.script = [100.0, 0.0]
    loop.run_until_complete(forget())
    for task in asyncio.all_tasks(loop):
        task.get_coro()
    left = asyncio.all_tasks(loop)
    assert scheduler.status("job").phase is Phase.RUNNING

    async def elsewhere() -> None:
        with pytest.raises(WorkflowError, match="another event loop"):
            await scheduler.start()

    asyncio.run(elsewhere())
    for task in left:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    loop.close()
    assert asyncio.run(again()) == "done"


def test_a_failure_while_it_stops_surfaces_in_the_fire_and_the_scheduler_stops_all_the_same() -> None:
    """BR-38."""

    async def main(loop: VirtualTimeLoop) -> None:
        async def fails_to_go() -> None:
            try:
                await asyncio.sleep(100)
            finally:
                raise OSError

        runs = Runs(fails_to_go)
        scheduler = Scheduler().manual("job", runs.workflow, "start")
        async with scheduler:
            fire = scheduler.trigger("job")
            await asyncio.sleep(1)
        with pytest.raises((TaskExecutionError, WorkflowCancelledError)):
            await fire
        assert scheduler.status("job").phase is Phase.STOPPED

    play(main)


def test_a_reset_while_it_stops_fires_nothing() -> None:
    async def slow_to_go() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(3)

    async def main(loop: VirtualTimeLoop) -> None:
        slow, quick = Runs(slow_to_go), Runs(ValueError())
        scheduler = Scheduler().manual("slow", slow.workflow, "start")
        scheduler.every("quick", quick.workflow, "start", 1.0, fixed="rate", backoff=Backoff(initial=60.0))
        async with scheduler:
            scheduler.trigger("slow")
            await asyncio.sleep(5)
            stopping = asyncio.create_task(scheduler.stop())
            await asyncio.sleep(1)
            scheduler.reset("quick")
            await stopping
        assert quick.count == 1

    play(main)
