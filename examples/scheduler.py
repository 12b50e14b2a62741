"""Workflows run by the clock, by a calendar, and when asked.

Three flows share one scheduler. "tick" fires at a fixed rate. "report" waits for half past two at night. "load" runs when it
is triggered; it has a store and one id for all its fires, so the fire after a failure goes on where that one ended.

Prints:
    report: idle, next fire at 02:30 UTC
    load: fetched page 1
    load: fetched page 2
    load: fetched page 3
    load failed with ConnectionError; phase: backoff
    load: fetched page 3
    load: fetched page 4
    load -> DONE; resumed: True, failures in a row: 0
    tick: 3 runs on the grid, never two at once
    stopped: tick cancelled, load completed
"""

import asyncio
import logging
from enum import StrEnum, auto

from cano import Backoff, Context, Done, MemoryCheckpointStore, More, NoRetry, Scheduler, SteppedTask, TaskConfig, Workflow


class Step(StrEnum):
    START = auto()
    DONE = auto()


class Load(SteppedTask[Step, int]):
    """Fetches pages, and remembers durably which were fetched. The network fails once."""

    config = TaskConfig(retry=NoRetry())
    broken = True

    async def step(self, ctx: Context[None], cursor: int | None) -> More[int] | Done[Step]:
        page = 1 if cursor is None else cursor + 1
        print(f"load: fetched page {page}")
        if page == 3 and self.broken:
            self.broken = False
            raise ConnectionError
        return Done(Step.DONE) if page == 4 else More(page)


async def main() -> None:
    ticks = 0
    enough = asyncio.Event()

    async def tick(ctx: Context[None]) -> Step:
        nonlocal ticks
        ticks += 1
        if ticks == 3:
            enough.set()
            await asyncio.Event().wait()  # stays, until the scheduler stops
        return Step.DONE

    async def report(ctx: Context[None]) -> Step:
        return Step.DONE

    ticking = Workflow[Step](name="ticking").register(Step.START, tick).add_exit_state(Step.DONE)
    reporting = Workflow[Step](name="reporting").register(Step.START, report).add_exit_state(Step.DONE)
    loading = Workflow[Step](name="loading", checkpoint_store=MemoryCheckpointStore())
    loading.register(Step.START, Load()).add_exit_state(Step.DONE)

    scheduler = Scheduler(stop_timeout=5.0)
    scheduler.every("tick", ticking, Step.START, 0.05, fixed="rate")
    scheduler.cron("report", reporting, Step.START, "30 2 * * *", tz="UTC")
    scheduler.manual("load", loading, Step.START, workflow_id="load", backoff=Backoff(trip_after=5))

    async with scheduler:
        status = scheduler.status("report")
        assert status.next_fire is not None
        print(f"report: {status.phase}, next fire at {status.next_fire:%H:%M} UTC")
        fire = scheduler.trigger("load")
        try:
            await fire
        except Exception:
            assert fire.outcome is not None
            phase = scheduler.status("load").phase
            print(f"load failed with {fire.outcome.error_type}; phase: {phase}")
        fire = scheduler.trigger("load")  # a trigger does not wait for the back-off
        end = await fire
        assert fire.outcome is not None
        print(f"load -> {end.name}; resumed: {fire.outcome.resumed}, failures in a row: {scheduler.status('load').streak}")
        await enough.wait()
        print(f"tick: {scheduler.status('tick').runs} runs on the grid, never two at once")
    ended = {status.name: status.last.kind for status in scheduler.statuses() if status.last is not None}
    print("stopped:", ", ".join(f"{name} {kind}" for name, kind in ended.items()))


if __name__ == "__main__":
    logging.getLogger("cano").setLevel(logging.ERROR)  # a flow that fails is a warning
    asyncio.run(main())
