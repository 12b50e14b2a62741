"""Flows: registered, fired, triggered, backing off, tripped, reset, and seen from outside."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest

from cano import (
    ConfigurationError,
    Resource,
    TaskExecutionError,
    Workflow,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowObserver,
)
from cano.scheduler.backoff import Backoff
from cano.scheduler.scheduler import Scheduler
from cano.scheduler.status import BUCKETS, FlowCounters, Phase
from cano.testing import VirtualTimeLoop
from tests.scheduler.runs import BEGINNING, Runs, play

QUIET = Backoff(initial=0, jitter=0)


def at(*seconds: float) -> list[float]:
    return [pytest.approx(second, abs=1e-6) for second in seconds]


def test_registration_checks_everything_at_once() -> None:
    workflow, scheduler = Runs().workflow, Scheduler()
    scheduler.manual("a", workflow, "start").every("b", workflow, "start", timedelta(minutes=1), fixed="rate")
    assert len(scheduler) == 2
    assert "a" in scheduler
    assert "z" not in scheduler
    wrong: list[Any] = [
        lambda: scheduler.manual("a", workflow, "start"),
        lambda: scheduler.manual("", workflow, "start"),
        lambda: scheduler.manual("a\nb", workflow, "start"),
        lambda: scheduler.manual("x" * 201, workflow, "start"),
        lambda: scheduler.manual("c", object(), "start"),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: scheduler.manual("c", workflow, None),
        lambda: scheduler.manual("c", workflow, "start", workflow_id="a\tb"),
        lambda: scheduler.manual("c", workflow, "start", backoff=1),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: scheduler.manual("c", workflow, "start", data=asyncio.sleep),
        lambda: scheduler.every("c", workflow, "start", 1.0, fixed="both"),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: scheduler.every("c", workflow, "start", 0, fixed="rate"),
        lambda: scheduler.every("c", workflow, "start", -1.0, fixed="delay"),
        lambda: scheduler.every("c", workflow, "start", float("inf"), fixed="delay"),
        lambda: scheduler.every("c", workflow, "start", float("nan"), fixed="delay"),
        lambda: scheduler.every("c", workflow, "start", 1.0, fixed="rate", first=float("inf")),
        lambda: scheduler.cron("c", workflow, "start", "every day"),
        lambda: scheduler.cron("c", workflow, "start", "* * * * *", tz="Mars/Olympus"),
        lambda: Scheduler(stop_timeout=float("inf")),
        lambda: Scheduler(stop_timeout=-1),
    ]
    for register in wrong:
        with pytest.raises(ConfigurationError):
            register()
    with pytest.raises(TypeError, match="fixed"):
        scheduler.every("c", workflow, "start", 1.0)  # type: ignore[call-arg]  # wrong, on purpose
    assert [status.name for status in scheduler.statuses()] == ["a", "b"]


def test_a_fixed_rate_fires_at_once_keeps_its_grid_and_makes_up_once_for_a_run_that_took_longer() -> None:
    """BR-102."""

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(1.0, 35.0, 1.0)
        scheduler = Scheduler().every("tick", runs.workflow, "start", 10.0, fixed="rate")
        async with scheduler:
            await asyncio.sleep(62)
        assert runs.at == at(0, 10, 45, 50, 60)
        assert runs.most == 1
        assert scheduler.status("tick").skipped == 2

    play(main)


def test_a_fixed_delay_counts_from_the_end_of_a_run() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(4.0)
        scheduler = Scheduler().every("tick", runs.workflow, "start", 10.0, fixed="delay", first=3.0)
        async with scheduler:
            await asyncio.sleep(35)
        assert runs.at == at(3, 17, 31)
        assert scheduler.status("tick").skipped == 0

    play(main)


def test_a_blocked_event_loop_gives_one_catch_up_run() -> None:
    """BR-102."""

    async def main(loop: VirtualTimeLoop) -> None:
        runs, other, nightly = Runs(), Runs(), Runs()
        scheduler = Scheduler().every("rate", runs.workflow, "start", 60.0, fixed="rate")
        scheduler.every("delay", other.workflow, "start", 60.0, fixed="delay").cron(
            "cron", nightly.workflow, "start", "* * * * *"
        )
        async with scheduler:
            await asyncio.sleep(70)
            loop.block(600)
            await asyncio.sleep(55)
        assert runs.at == at(0, 60, 670, 720)
        assert other.at == at(0, 60, 670)
        assert nightly.at == at(60, 670, 720)
        assert [scheduler.status(name).skipped for name in ("rate", "delay", "cron")] == [9, 0, 9]

    play(main)


def test_cron_fires_by_the_wall_clock_of_its_zone_across_a_change_of_the_clocks() -> None:
    """BR-100."""

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs()
        scheduler = Scheduler().cron("nightly", runs.workflow, "start", "30 2 * * *", tz="Europe/Berlin")
        async with scheduler:
            next_fire = scheduler.status("nightly").next_fire
            assert next_fire is not None
            assert next_fire.isoformat() == "2024-03-30T01:30:00+00:00"
            await asyncio.sleep(3 * 86400)
        assert [f"{wall:%d %H:%M:%S}" for wall in runs.walls] == ["30 01:30:00", "31 01:00:00", "01 00:30:00"]
        assert runs.ids == [f"nightly-{stamp}Z" for stamp in ("20240330T013000", "20240331T010000", "20240401T003000")]

    play(main, datetime.fromisoformat("2024-03-30T00:00+00:00"))


def test_a_wall_clock_that_jumps_neither_stalls_cron_nor_makes_it_early_or_double() -> None:
    """BR-98: put forward by a day, back by a day, and by half a minute just after a fire."""

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs()
        scheduler = Scheduler().cron("hourly", runs.workflow, "start", "0 * * * *")
        async with scheduler:
            await asyncio.sleep(10)
            loop.step_wall(86400)  # 00:00:10 of the next day: made up for once, within 30 seconds
            await asyncio.sleep(31)
            assert [scheduler.status("hourly").runs, scheduler.status("hourly").skipped] == [1, 23]
            loop.step_wall(-86400)
            await asyncio.sleep(3600)
            assert scheduler.status("hourly").runs == 2
            loop.step_wall(-90)  # 00:59:11 again
            await asyncio.sleep(3600)
            loop.step_wall(7200)
            await asyncio.sleep(31)
        assert all(f"{outcome:%M%S}" >= "0000" for outcome in runs.walls)
        hours = [wall.replace(minute=0, second=0, microsecond=0) for wall in runs.walls]
        assert len(hours) == len(set(hours)) == 3
        assert min(wall - BEGINNING for wall in runs.walls) >= timedelta(hours=1)

    play(main)


def test_a_trigger_gives_the_exit_state_or_what_the_run_raised_to_whoever_awaits() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(1.0, ValueError("no"), 1.0)
        scheduler = Scheduler().manual("job", runs.workflow, "start", backoff=QUIET, data={"from": "the flow"})
        async with scheduler:
            fire = scheduler.trigger("job", data={"from": "the trigger"})
            assert (fire.flow, fire.done, fire.outcome) == ("job", False, None)
            assert await asyncio.gather(fire, fire) == ["done", "done"]
            assert await fire == "done"
            assert fire.outcome is not None
            assert (fire.outcome.kind, fire.outcome.exit_state, fire.outcome.seconds) == ("completed", "done", pytest.approx(1.0))
            failed = scheduler.trigger("job")
            with pytest.raises(TaskExecutionError):
                await failed
            last = scheduler.status("job").last
            assert last is not None
            assert last is failed.outcome
            assert (last.kind, last.category, last.error_type) == ("failed", "task_execution", "ValueError")
            assert "no" not in repr(last)
            unawaited = scheduler.trigger("job")
            await asyncio.sleep(2)
            assert unawaited.done
            assert not unawaited.cancel()
        assert runs.data == [{"from": "the trigger"}, {"from": "the flow"}, {"from": "the flow"}]

    play(main)


def test_data_may_be_made_for_each_fire_from_its_instant() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs()
        scheduler = Scheduler().cron("day", runs.workflow, "start", "0 0 * * *", data=lambda due: {"day": due.date().isoformat()})
        async with scheduler:
            await asyncio.sleep(2 * 86400 + 1)
        assert runs.data == [{"day": "2024-01-02"}, {"day": "2024-01-03"}]

    play(main)


def test_a_data_function_or_an_observer_that_fails_never_leaves_a_flow_running() -> None:
    class Broken(WorkflowObserver):
        def on_state_enter(self, event: Any) -> None:
            raise RuntimeError

    def no_data(due: datetime) -> Any:
        raise LookupError

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(observers=[Broken()])
        scheduler = Scheduler().manual("data", runs.workflow, "start", data=no_data).manual("observer", runs.workflow, "start")
        async with scheduler:
            with pytest.raises(LookupError):
                await scheduler.trigger("data")
            assert scheduler.status("data").phase is Phase.BACKOFF
            for _ in range(2):
                assert await scheduler.trigger("observer") == "done"

    play(main)


def test_a_trigger_is_refused_with_a_reason() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(5.0)
        scheduler = Scheduler().manual("job", runs.workflow, "start")
        with pytest.raises(WorkflowError, match="not running"):
            scheduler.trigger("job")
        for method in (scheduler.trigger, scheduler.cancel, scheduler.reset, scheduler.status):
            with pytest.raises(ConfigurationError, match="there is no flow 'other'"):
                method("other")
        async with scheduler:
            assert scheduler.cancel("job") is False
            fire = scheduler.trigger("job")
            with pytest.raises(WorkflowError, match="is running"):
                scheduler.trigger("job")
            with ThreadPoolExecutor() as threads, pytest.raises(WorkflowError, match="event loop"):
                threads.submit(scheduler.trigger, "job").result()
            assert scheduler.status("job").runs == scheduler.active == 1
            assert scheduler.status("job").workflow_id == fire.workflow_id
            await fire
            with pytest.raises(ConfigurationError, match="before the scheduler is started"):
                scheduler.manual("late", runs.workflow, "start")
        with pytest.raises(WorkflowError, match="not running"):
            scheduler.trigger("job")
        assert runs.most == 1

    play(main)


def test_a_flow_that_is_due_while_a_triggered_run_goes_on_waits_for_its_end() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(25.0, 0.0)
        scheduler = Scheduler().every("tick", runs.workflow, "start", 10.0, fixed="rate", first=10.0)
        async with scheduler:
            await scheduler.trigger("tick")
            await asyncio.sleep(10)
        assert runs.at == at(0, 25, 30)
        assert runs.most == 1

    play(main)


def test_failures_back_off_twice_as_long_each_time_and_a_success_ends_that() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        no = ValueError()
        runs = Runs(no, no, no, 0.0)
        backoff = Backoff(initial=15.0, jitter=0.0)
        scheduler = Scheduler().every("tick", runs.workflow, "start", 10.0, fixed="rate", backoff=backoff)
        async with scheduler:
            await asyncio.sleep(5)
            status = scheduler.status("tick")
            assert (status.phase, status.streak) == (Phase.BACKOFF, 1)
            assert status.next_fire == BEGINNING + timedelta(seconds=15)
            await asyncio.sleep(120)
            status = scheduler.status("tick")
            assert (status.phase, status.streak) == (Phase.IDLE, 0)
        # the points at 10, at 20 to 40 and at 50 to 100 were missed; one run makes up for those of each back-off
        assert runs.at == at(0, 15, 45, 105, 110, 120)
        assert status.skipped == 0 + 2 + 5
        counters = scheduler.counters["tick"]
        assert (counters.completed, counters.failed, counters.backoffs, counters.trips) == (3, 3, 3, 0)

    play(main)


def test_cron_does_not_fire_during_a_back_off_and_makes_up_for_it_once() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(ValueError(), 0.0)
        backoff = Backoff(initial=200.0, jitter=0.0)
        scheduler = Scheduler().cron("tick", runs.workflow, "start", "* * * * *", backoff=backoff)
        async with scheduler:
            await asyncio.sleep(301)
        assert runs.at == at(60, 260, 300)
        assert scheduler.status("tick").skipped == 2

    play(main)


def test_a_trip_ends_the_firing_until_a_reset_and_is_not_made_up_for() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        no = ValueError()
        runs = Runs(no, no, 0.0, no, no, 0.0)
        scheduler = Scheduler()
        scheduler.every("tick", runs.workflow, "start", 10.0, fixed="rate", backoff=Backoff(0, jitter=0, trip_after=2))
        async with scheduler:
            await asyncio.sleep(95)
            status = scheduler.status("tick")
            assert (status.phase, status.streak, status.runs, status.next_fire) == (Phase.TRIPPED, 2, 2, None)
            with pytest.raises(WorkflowError, match=r"reset\('tick'\)"):
                scheduler.trigger("tick")
            scheduler.reset("tick")
            status = scheduler.status("tick")
            assert (status.phase, status.streak, status.skipped) == (Phase.IDLE, 0, 8)
            await asyncio.sleep(30)
            assert scheduler.status("tick").phase is Phase.TRIPPED, "it may trip again"
            scheduler.reset("tick")
            assert await scheduler.trigger("tick") == "done"
        assert runs.at == at(0, 10, 100, 110, 120, 125)
        assert scheduler.counters["tick"].trips == 2

    play(main)


def test_a_trigger_goes_through_a_back_off_and_its_success_ends_it() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(ValueError(), 0.0)
        scheduler = Scheduler().every("tick", runs.workflow, "start", 10.0, fixed="delay", backoff=Backoff(initial=300.0))
        async with scheduler:
            await asyncio.sleep(1)
            assert scheduler.status("tick").phase is Phase.BACKOFF
            await scheduler.trigger("tick")
            status = scheduler.status("tick")
            assert (status.phase, status.streak) == (Phase.IDLE, 0)
            await asyncio.sleep(10.5)
        assert runs.at == at(0, 1, 11)

    play(main)


def test_a_reset_during_a_run_forgets_the_failure_of_that_run_too() -> None:
    async def fail() -> None:
        await asyncio.sleep(5)
        raise ValueError

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(ValueError(), fail, ValueError())
        scheduler = Scheduler().manual("job", runs.workflow, "start", backoff=Backoff(trip_after=2))
        async with scheduler:
            await asyncio.gather(scheduler.trigger("job"), return_exceptions=True)
            fire = scheduler.trigger("job")
            await asyncio.sleep(1)
            scheduler.reset("job")
            await asyncio.gather(fire, return_exceptions=True)
            status = scheduler.status("job")
            assert (status.phase, status.streak) == (Phase.IDLE, 0)
            await asyncio.gather(scheduler.trigger("job"), return_exceptions=True)
            assert scheduler.status("job").streak == 1

    play(main)


def test_twenty_triggers_leave_nothing_behind() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs()
        scheduler = Scheduler().manual("job", runs.workflow, "start")
        async with scheduler:
            for _ in range(20):
                await scheduler.trigger("job")
            assert len(asyncio.all_tasks()) == 2, "this one and the keeper"
            assert scheduler.status("job").runs == 20
        assert len(set(runs.ids)) == 20, "the wall clock stood still, and the ids differ all the same"

    play(main)


def test_a_start_names_every_problem_and_starts_nothing() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs()
        empty: Workflow[Any] = Workflow()
        scheduler = Scheduler().manual("good", runs.workflow, "start").manual("lost", runs.workflow, "nowhere")
        scheduler.manual("empty", empty, "start")
        with pytest.raises(ConfigurationError, match=r"flow lost: .*nowhere.*; flow empty: "):
            await scheduler.start()
        assert scheduler.status("good").phase is Phase.STOPPED
        await scheduler.stop()
        await scheduler.wait()

    play(main)


def test_the_resources_of_all_workflows_are_up_from_start_to_stop() -> None:
    log: list[str] = []

    class Noted(Resource):
        def __init__(self, name: str, error: Exception | None = None) -> None:
            self.name, self.error = name, error

        async def setup(self) -> None:
            if self.error is not None:
                raise self.error
            log.append(f"+{self.name}")

        async def teardown(self) -> None:
            log.append(f"-{self.name}")

    async def main(loop: VirtualTimeLoop) -> None:
        one, two = Runs(resources={"a": Noted("a"), "b": Noted("b")}), Runs(resources={"c": Noted("c")})
        scheduler = Scheduler().manual("one", one.workflow, "start").manual("two", two.workflow, "start")
        scheduler.manual("again", one.workflow, "start")
        for _ in range(2):
            async with scheduler:
                assert log == ["+a", "+b", "+c"]
                await scheduler.trigger("one")
                await scheduler.trigger("two")
                assert log == ["+a", "+b", "+c"]
            assert log == ["+a", "+b", "+c", "-c", "-b", "-a"]
            log.clear()
        bad = Runs(resources={"d": Noted("d", OSError("no"))})
        scheduler.manual("bad", bad.workflow, "start")
        with pytest.raises(OSError, match="no"):
            await scheduler.start()
        assert log == ["+a", "+b", "+c", "-c", "-b", "-a"]
        assert {status.phase for status in scheduler.statuses()} == {Phase.STOPPED}

    play(main)


def test_counters_hold_durations_in_buckets() -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(0.05, 5.0, 7200.0)
        scheduler = Scheduler().manual("job", runs.workflow, "start")
        async with scheduler:
            for _ in range(3):
                await scheduler.trigger("job")
            fire = scheduler.trigger("job")
            await asyncio.sleep(1)
            assert scheduler.active == 1
            fire.cancel()
            with pytest.raises(WorkflowCancelledError):
                await fire
        assert scheduler.active == 0
        counters = scheduler.counters["job"]
        assert isinstance(counters, FlowCounters)
        assert (counters.completed, counters.cancelled) == (3, 1)
        assert counters.seconds == pytest.approx(7206.05)
        assert [counters.buckets[BUCKETS.index(bound)] for bound in (0.1, 1.0, 5.0)] == [1, 1, 1]
        assert counters.buckets[-1] == 1
        assert sum(counters.buckets) == 4

    play(main)


def test_a_rough_day_never_overlaps_and_never_loses_count() -> None:
    """BR-102, BR-90: one fire is one run, whatever the back-off."""

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs(*(3.0, 700.0, ValueError(), 59.0, 61.0, 0.0) * 40, 0.0)
        scheduler = Scheduler().cron("tick", runs.workflow, "start", "* * * * *", backoff=Backoff(initial=130, jitter=0.5))
        async with scheduler:
            await asyncio.sleep(86401)
        status = scheduler.status("tick")
        assert runs.most == 1
        assert runs.count == status.runs
        assert status.runs + status.skipped == 1440

    play(main)


def test_a_wall_clock_that_lags_a_little_makes_no_fire_early() -> None:
    """BR-98."""

    async def main(loop: VirtualTimeLoop) -> None:
        runs = Runs()
        scheduler = Scheduler().cron("tick", runs.workflow, "start", "* * * * *")
        async with scheduler:
            await asyncio.sleep(59.9)
            loop.step_wall(-0.3)
            await asyncio.sleep(1)
        assert runs.at == at(60.3)
        assert runs.walls[0] >= BEGINNING + timedelta(minutes=1)

    play(main)
