"""A scheduler under random days: its flows fire, fail, overrun, are triggered, cancelled and reset, while the wall clock steps
and the event loop is blocked, and it is stopped and started again at any moment. A ledger of each flow, kept by reading
its status whenever anything happens, is held against what has to happen and when.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

from cano import CheckpointRow, Done, MemoryCheckpointStore, More, NoRetry, Resource, SteppedTask, Task, TaskConfig, Workflow
from cano.errors import WorkflowError
from cano.scheduler.backoff import Backoff
from cano.scheduler.scheduler import Scheduler
from cano.scheduler.status import FlowStatus, Phase
from cano.testing import Crashed, VirtualTimeLoop, simulate
from tests.explore.plans import Calendar, Calls, Delay, Jumpy, Plan, Rate, seconds_of

DAYS = ("2024-01-01T00:00", "2024-03-31T00:59:30", "2024-10-27T00:59:50", "2024-12-31T23:59:00")
GAPS = (0, 0, 0.25, 0.5, 1, 2, 5, 12, 31, 70)
LENGTHS = (0, 0, 0.25, 0.5, 1, 1, 3, 8, 20)
STEPS = (-86400, -3600, -61, -29, -5, -0.5, 0.5, 5, 29, 61, 3600, 86400)
CALENDARS = {"*/15 * * * * *": 15, "* * * * *": 60, "*/2 * * * *": 120, "0 * * * *": 3600}
ALL = ("wait", "wait", "wait", "trigger", "trigger", "cancel", "at once", "reset", "block", "step")
THEMES = {
    "anything": (("rate", "delay", "cron", "manual"), 0.3, ALL),
    "wall clock": (("cron",), 0.0, ("wait", "wait", "wait", "wait", "step", "step", "block", "trigger")),
    "one id": (("delay", "manual"), 0.8, ("wait", "wait", "trigger", "trigger", "cancel", "reset")),
}
"""What kinds of flows there are, how likely a fixed id is, and what is done to them."""
STOP_TIMEOUT, GRACE, DRAIN, STUBBORN = 4.0, 2.0, 0.5, 20.0


@dataclass
class Run:
    """What the hook of one run is to do, and what it has come to."""

    length: float
    fate: str
    inside: bool = False
    done: bool = False
    cancelled_at: float = math.inf


class Ledger:
    """One flow as it has to be."""

    def __init__(self, name: str, plan: Plan, backoff: Backoff, fixed_id: bool) -> None:
        self.name, self.plan, self.backoff, self.fixed_id = name, plan, backoff, fixed_id
        self.run: Run | None = None
        self.open = self.tripped = self.forgiven = self.own = False
        self.began = self.free = self.eligible = 0.0
        self.due: float | None = None
        self.runs = self.skipped = self.streak = 0
        self.last: Any = None
        self.ids: set[str] = set()

    def opened(self, now: float, wall: float) -> None:
        self.open, self.free, self.eligible = True, now, 0.0
        self.plan.open(now, wall)

    @property
    def waits(self) -> bool:
        """Whether it may fire by itself, at some time."""
        return self.open and self.run is None and not self.tripped

    def quiet_since(self, disturbed: float) -> float:
        return max(self.free, self.eligible, disturbed)

    def fires_at(self) -> float:
        return max(self.plan.next, self.free, self.eligible) if self.waits else math.inf

    def fired(self, now: float, wall: float, run: Run, day: Day, *, own: bool) -> None:
        assert self.open, f"{self.name} fired while the scheduler did not run"
        assert self.run is None, f"{self.name} overlaps itself"
        assert not self.tripped, f"{self.name} fired though it is tripped"
        self.own, self.due = own, wall
        if own and isinstance(self.plan, Jumpy):
            assert now >= self.eligible, "fired during a back-off"
            self.plan.took(now, wall, self.quiet_since(day.disturbed))
            self.due = None
        elif own:
            expected = day.awake(self.fires_at())
            assert expected == now, f"{self.name} fired at {now} instead of {expected}"
            self.due, missed = self.plan.took(now, wall)
            self.skipped += missed
        self.run, self.began, self.forgiven = run, now, False
        self.runs += 1

    def ended(self, outcome: Any, day: Day) -> None:
        now, run = self.began + outcome.seconds, self.run
        assert run is not None
        assert now <= day.now
        self.last, self.run, self.free = outcome, None, now
        self.plan.ended(now) if not isinstance(self.plan, Jumpy) else None
        due = seconds_of(outcome.due)
        if self.due is None:
            self.plan.came(due)
        else:
            assert due == self.due, f"{self.name} was for another instant"
        assert self.fixed_id or outcome.workflow_id not in self.ids, "two fires have one id"
        self.ids.add(outcome.workflow_id)
        day.ends.add(outcome.kind)
        self.judge(outcome, run, now, day)
        if outcome.kind == "completed":
            self.streak, self.eligible = 0, 0.0
        elif outcome.kind in ("failed", "crashed") and not self.forgiven:
            self.streak += 1
            self.tripped = self.backoff.trips(self.streak)
            self.eligible = 0.0 if self.tripped else now + self.backoff.delay(self.streak)
        self.skipped += outcome.kind == "skipped"

    def judge(self, outcome: Any, run: Run, now: float, day: Day) -> None:
        """Whether it may have ended like this, and at this time."""
        if outcome.kind == "skipped":
            assert self.name in day.sharing, "skipped, and nobody else has that id"
            return
        if outcome.kind == "abandoned":
            assert run.fate == "stubborn", f"a run that is {run.fate} was abandoned"
            return
        stopped = min(run.cancelled_at, day.stopped_at)
        if stopped <= now and not run.done:
            assert outcome.kind == "cancelled", f"a cancel was missed: {self.name} {outcome.kind}"
            late = now - day.awake(day.awake(stopped) + self.patience(run, day))
            assert late <= 0, f"{self.name} took {late} s too long to be cancelled"
        elif run.done:
            expected = {"fails": "failed", "dies": "crashed"}.get(run.fate, "completed")
            assert outcome.kind in (expected, "cancelled" if stopped <= now else expected), f"{run.fate}, so {outcome.kind}"
        else:
            raise AssertionError(f"{self.name} {outcome.kind} without having been run")

    def patience(self, run: Run, day: Day) -> float:
        """How long it may take to end when it is cancelled."""
        if run.fate == "late" and day.stopped_at < math.inf:  # the stop cancels it for a second time
            return max(day.stopped_at - min(run.cancelled_at, day.stopped_at), 0.0) + STOP_TIMEOUT
        return {"late": STUBBORN, "stubborn": math.inf}.get(run.fate, DRAIN)

    def reset(self, now: float, wall: float) -> None:
        if self.tripped and self.open:
            self.skipped += self.plan.passed(now, wall) or 0
        self.free = now if self.tripped else max(self.free, min(self.eligible, now))
        self.tripped, self.streak, self.eligible, self.forgiven = False, 0, 0.0, True

    def check(self, status: FlowStatus, day: Day) -> None:
        """The flow is as it has to be, now."""
        now = day.now
        assert status.runs == self.runs, f"{status.runs} runs of {self.name}, and {self.runs} were due"
        assert status.phase is self.phase(now), f"{self.name} is {status.phase}, not {self.phase(now)}"
        assert status.streak == self.streak, f"a streak of {status.streak}, not {self.streak}"
        if isinstance(self.plan, Jumpy):
            assert status.skipped >= self.skipped
            self.skipped = status.skipped
            if self.waits:
                self.plan.check(now, day.wall, self.quiet_since(day.disturbed))
            return
        assert status.skipped == self.skipped, f"{self.name} skipped {status.skipped}, not {self.skipped}"
        due = self.fires_at()
        assert day.awake(due) >= now, f"{self.name} was due at {due}, and it is {now}"
        if self.run is None:
            left = None if status.next_fire is None else seconds_of(status.next_fire) - day.wall
            assert left == (None if due == math.inf else max(due - now, 0.0)), f"{self.name} says it fires in {left} s"

    def phase(self, now: float) -> Phase:
        if self.run is not None:
            return Phase.RUNNING
        if not self.open:
            return Phase.STOPPED
        if self.tripped:
            return Phase.TRIPPED
        return Phase.BACKOFF if self.eligible > now else Phase.IDLE


class Body(Task[str]):
    config = TaskConfig(retry=NoRetry())

    def __init__(self, day: Day, name: str) -> None:
        self.day, self.name = day, name

    async def run(self, ctx: Any) -> str:
        async with self.day.inside(self.name) as run:
            await self.day.through(run, run.length)
        return "done"


class Steps(SteppedTask[str, int]):
    """The work of a fixed id. What it did not come to the end of, the next fire goes on with."""

    config = TaskConfig(retry=NoRetry())

    def __init__(self, day: Day, name: str) -> None:
        self.day, self.name = day, name

    async def step(self, ctx: Any, cursor: int | None) -> Any:
        async with self.day.inside(self.name) as run:
            self.day.demand(cursor == self.day.log.reached, f"resumed at {cursor}, and {self.day.log.reached} was reached")
            last = self.day.log.over = cursor == 3
            await self.day.through(run, run.length / 4, ends=last)
            return Done("done") if last else More((cursor or 0) + 1)


class Log(MemoryCheckpointStore):
    """Remembers how far the run with the fixed id has come."""

    reached: int | None = None
    over = False

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        await super().append(workflow_id, row)
        if workflow_id == "only" and row.blob is not None:
            self.reached = int(row.blob)

    async def clear(self, workflow_id: str) -> None:
        await super().clear(workflow_id)
        if workflow_id == "only" and self.over:  # else its log is lost, and a resume begins too early
            self.reached = None


class Shared(Resource):
    """Is up while the scheduler runs."""

    def __init__(self, day: Day) -> None:
        self.day = day

    async def setup(self) -> None:
        self.day.up += 1
        await asyncio.sleep(self.day.random.choice((0, 0, 0.5)))

    async def teardown(self) -> None:
        await asyncio.sleep(self.day.random.choice((0, 0, 0.5)))
        self.day.up -= 1


class Day:
    """A scheduler, what is done to it, and what has been seen of it."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        self.loop = loop
        self.log = Log()
        self.scheduler = Scheduler(stop_timeout=STOP_TIMEOUT)
        theme = random.choice(("anything", "anything", *THEMES))
        kinds, self.fixed, self.acts = THEMES[theme]
        self.jumpy = theme == "wall clock" or random.random() < 0.2
        self.stopped_at, self.disturbed, self.up = math.inf, 0.0, 0
        self.blocked: list[tuple[float, float]] = []
        self.within: set[str] = set()
        self.ends: set[str] = set()
        self.broken: list[str] = []
        self.unseen = False
        self.ledgers: dict[str, Ledger] = {}
        self.sharing: set[str] = set()
        for number in range(random.randrange(1, 4)):
            self.add(f"f{number}", random.choice(kinds))

    @property
    def now(self) -> float:
        return self.loop.time()

    @property
    def wall(self) -> float:
        return seconds_of(self.loop.wall())

    def demand(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.broken.append(otherwise)

    def add(self, name: str, kind: str) -> None:
        random = self.random
        initial = random.choice((0.0, 0.5, 4.0))
        backoff = Backoff(initial, 2.0, 16.0, 0.0, trip_after=random.choice((None, 1, 2, 3)))
        fixed_id = random.random() < self.fixed
        task: Any = Steps(self, name) if fixed_id else Body(self, name)
        stored = fixed_id or random.random() < 0.2
        flow = Workflow[str](checkpoint_store=self.log if stored else None, resources={"shared": Shared(self)})
        flow.register("work", task).add_exit_state("done")
        options: Any = {"backoff": backoff, "workflow_id": "only" if fixed_id else None, "data": lambda due: self.look()}
        if fixed_id:
            self.sharing.add(name)
        interval, first = random.choice((2.0, 10.0, 45.0)), random.choice((0.0, 0.0, 1.5))
        plan: Plan = Calls()
        if kind == "cron":
            expression = random.choice(list(CALENDARS))
            self.scheduler.cron(name, flow, "work", expression, tz=random.choice(("UTC", "Europe/Berlin")), **options)
            plan = (Jumpy if self.jumpy else Calendar)(CALENDARS[expression])
        elif kind == "manual":
            self.scheduler.manual(name, flow, "work", **options)
        else:
            fixed: Any = kind
            self.scheduler.every(name, flow, "work", interval, fixed=fixed, first=first, **options)
            plan = (Rate if kind == "rate" else Delay)(interval, first)
        self.ledgers[name] = Ledger(name, plan, backoff, fixed_id)

    # -- what the runs do -------------------------------------------------------------------------------------------

    def fate(self) -> Run:
        draw, length = self.random.random(), self.random.choice(LENGTHS)
        odds = {"fails": 0.25, "slow": 0.35, "late": 0.39, "stubborn": 0.42, "dies": 0.44, "succeeds": 1.0}
        return Run(length, next(fate for fate, below in odds.items() if draw < below))

    @asynccontextmanager
    async def inside(self, name: str) -> Any:
        self.look()
        ledger = self.ledgers[name]
        run = ledger.run
        assert run is not None
        key = "only" if ledger.fixed_id else name
        self.demand(key not in self.within, f"two runs of {key} at once")
        self.demand(run.inside or run.cancelled_at == math.inf, "a run that was cancelled before it began was begun")
        run.inside = True
        self.within.add(key)
        try:
            yield run
        finally:
            self.within.discard(key)

    async def through(self, run: Run, length: float, *, ends: bool = True) -> None:
        until, cancels = self.now + length, 0
        while True:
            try:
                await asyncio.sleep(until - self.now)
                break
            except asyncio.CancelledError:
                cancels += 1
                if run.fate == "stubborn" or (run.fate == "late" and cancels == 1):
                    until = max(until, self.now + STUBBORN)
                    continue
                if run.fate == "slow":
                    await asyncio.sleep(DRAIN)
                raise
        if not ends:
            return
        run.done = True
        if run.fate == "dies":
            self.stopped_at = min(self.stopped_at, self.now)
            raise Crashed
        if run.fate == "fails":
            raise ValueError

    # -- what is seen of it -----------------------------------------------------------------------------------------

    def awake(self, moment: float) -> float:
        """When what is due at a moment can be done at the earliest."""
        for began, ended in self.blocked:
            if began <= moment < ended:
                moment = ended
        return moment

    def look(self) -> None:
        """Read the status of every flow, and see that it is as it has to be. A hook would hide an error, so it is kept."""
        if self.broken or self.unseen:
            return
        try:
            for name, ledger in self.ledgers.items():
                status = self.scheduler.status(name)
                over = self.stopped_at < math.inf and status.phase is Phase.STOPPED
                if over and ledger.run is not None and status.runs > ledger.runs:
                    self.unseen = True  # one run and the next both ended in the instant in which another died
                    return
                if ledger.run is not None and status.last is not ledger.last:
                    ledger.ended(status.last, self)
                if status.runs > ledger.runs:
                    ledger.fired(self.now, self.wall, self.fate(), self, own=True)
                    if status.last is not ledger.last:
                        ledger.ended(status.last, self)
                if self.stopped_at == math.inf or ledger.open is False:
                    ledger.check(status, self)
        except AssertionError as error:
            self.broken.append(str(error) or "it does not hold")

    # -- what is done to it -----------------------------------------------------------------------------------------

    def trigger(self, name: str) -> None:
        self.look()
        ledger = self.ledgers[name]
        refused = ledger.run is not None or ledger.tripped
        try:
            self.scheduler.trigger(name)
        except WorkflowError as error:
            self.demand(refused, f"a trigger of {name} was refused: {type(error).__name__}")
            return
        self.demand(not refused, f"a trigger of {name} was not refused")
        if not refused:
            ledger.fired(self.now, self.wall, self.fate(), self, own=False)

    def cancel(self, name: str) -> None:
        self.look()
        run = self.ledgers[name].run
        there = self.scheduler.cancel(name)
        self.demand(there == (run is not None), f"cancel of {name} says {there}")
        if run is not None:
            run.cancelled_at = min(run.cancelled_at, self.now)

    def reset(self, name: str) -> None:
        self.look()
        self.scheduler.reset(name)
        self.ledgers[name].reset(self.now, self.wall)

    def block(self) -> None:
        self.look()
        began = self.now
        self.loop.block(self.random.choice((0.25, 1, 7, 40)))
        self.blocked.append((began, self.now))
        self.disturbed = self.now

    def step_wall(self) -> None:
        if self.jumpy:
            self.look()
            self.loop.step_wall(self.random.choice(STEPS))
            self.disturbed = self.now

    async def act(self) -> None:
        random = self.random
        name = random.choice(list(self.ledgers))
        if self.stopped_at < math.inf:  # a run has died in this instant: whether all has stopped already depends
            await asyncio.sleep(0)
            return
        match random.choice(self.acts):
            case "trigger":
                self.trigger(name)
            case "cancel":
                self.cancel(name)
            case "at once":
                self.trigger(name)
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
                if self.stopped_at == math.inf:
                    self.cancel(name)
            case "reset":
                self.reset(name)
            case "block":
                self.block()
            case "step":
                self.step_wall()
            case _:
                await asyncio.sleep(random.choice(GAPS))
        self.look()

    # -- from a start to a stop -------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Start, do things, and stop: by leaving the block, by `stop`, or because a run dies."""
        self.stopped_at = math.inf
        self.ends.clear()
        before = asyncio.all_tasks()
        crashed = False
        try:
            async with self.scheduler:
                for ledger in self.ledgers.values():
                    ledger.opened(self.now, self.wall)
                self.look()
                for _ in range(self.random.randrange(15)):
                    await self.act()
                self.stop()
        except Crashed:
            crashed = True
        began = self.stopped_at
        self.look()
        for ledger in self.ledgers.values():
            ledger.open = False
        late = self.now - self.awake(began)
        self.demand(late <= 2 * STOP_TIMEOUT + 3 * GRACE, f"it took {late} s to stop")
        self.stopped_at = math.inf
        self.look()
        self.demand(crashed == ("crashed" in self.ends), "a crash came out of nowhere, or did not come out")
        left = asyncio.all_tasks() - before
        self.demand(not left or "abandoned" in self.ends, "an asyncio task outlived the stop")
        if left:
            await asyncio.wait(left)  # before that it would not start again
        self.demand(self.up == 0, "a resource was left up, or torn down twice")

    def stop(self) -> None:
        self.look()
        self.stopped_at = min(self.stopped_at, self.now)


async def story(seed: int) -> None:
    day = Day(seed)
    for _ in range(day.random.randrange(1, 4)):
        await day.live()
        assert not day.broken, "; ".join(day.broken)
        if day.unseen:
            return
        await asyncio.sleep(day.random.choice(GAPS))
        day.disturbed = day.now


def explore(seeds: Iterable[int]) -> None:
    for seed in seeds:
        start = datetime.fromisoformat(Random(seed).choice(DAYS)).replace(tzinfo=UTC)
        simulate(lambda seed=seed: story(seed), seed=seed, start=start)
