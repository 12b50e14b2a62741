"""A stream under any schedule: random delays, windows, bad items, cancels, timeouts and crashes, all chosen by a seed.

What it did is held against the promises of a stream at every step. Moments are whole or half seconds, so that many things
happen at the same instant, in an order that the seed chooses too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from cano import (
    CancellationToken,
    CheckpointRow,
    MemoryCheckpointStore,
    RowKind,
    SkipAndContinue,
    StreamTask,
    Window,
    Workflow,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)
from cano.testing import Crashed, simulate

MOMENTS = (0, 0, 0, 0.5, 0.5, 1, 1, 2)
SILENCE = (0, 0, 0, 0.5, 1, 1, 2, 5, 100)
PROMPT = 25.0
"""How long a stopped run may take to drain: more than all hooks together, less than the drain timeout and any silence."""


@dataclass
class World:
    """What outlives a process: the input, the log, the sink, and what has been seen to be true of them."""

    random: Random
    good: list[bool]
    silence: list[float]
    window: Window
    in_flight: int
    last: int = 0
    pending: list[int] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    finished: int = 0
    stopped_at: float | None = None
    open_sources: int = 0
    crash_at: int = 0
    crash_before: bool = True
    broken: list[str] = field(default_factory=list)

    def demand(self, holds: bool, otherwise: str) -> None:
        """Keep what does not hold: an error out of a hook might be taken for the user's, and a stop might hide it."""
        if not holds:
            self.broken.append(otherwise)

    async def moment(self) -> None:
        delay = self.random.choice(MOMENTS)
        if delay or self.random.random() < 0.3:
            await asyncio.sleep(delay)

    def between(self, low: int, high: int) -> list[int]:
        return [number for number in range(low + 1, high + 1) if self.good[number - 1]]


class Log(MemoryCheckpointStore):
    """A log that takes its time, dies when it is to, and demands that what a cursor passes has been flushed."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        world = self.world
        await world.moment()
        world.crash_at -= 1
        if world.crash_at == 0 and world.crash_before:
            raise Crashed
        if row.kind is RowKind.STEP_CURSOR:
            cursor = int(row.blob or b"")
            passed = world.between(world.last, cursor)
            world.demand(world.pending == passed, f"committed {passed} after a flush of {world.pending}")
            world.committed += passed
            world.last, world.pending = cursor, []
        await super().append(workflow_id, row)
        if world.crash_at == 0 and not world.crash_before:
            raise Crashed
        await world.moment()


class Life(StreamTask[str, int, int, int]):
    """The stream as one process runs it."""

    on_item_error = SkipAndContinue()

    def __init__(self, world: World) -> None:
        self.world, self.window, self.max_in_flight = world, world.window, world.in_flight
        self.since: float | None = None

    async def open(self, ctx: Any, cursor: int | None) -> AsyncIterator[int]:
        world = self.world
        world.demand((cursor or 0) == world.last, f"opened at {cursor} after a commit of {world.last}")
        await world.moment()
        return self.read(cursor or 0)

    async def read(self, passed: int) -> AsyncIterator[int]:
        world = self.world
        world.open_sources += 1
        try:
            for number in range(passed + 1, len(world.good) + 1):
                world.demand(world.stopped_at is None, "an item was pulled after the stop")
                silence = world.silence[number - 1]
                if silence:
                    await asyncio.sleep(silence)
                yield number
        finally:
            world.open_sources -= 1

    async def process_item(self, ctx: Any, item: int) -> tuple[int, int]:
        await self.world.moment()
        if not self.world.good[item - 1]:
            raise ValueError
        self.world.finished = max(self.world.finished, item)
        if self.since is None:
            self.since = asyncio.get_running_loop().time()
        return item, item

    async def flush_window(self, ctx: Any, outputs: list[int]) -> None:
        if self.since is not None and self.window.seconds is not None and self.max_in_flight == 1:
            late = asyncio.get_running_loop().time() - self.since - self.window.seconds
            self.world.demand(late <= 3 * max(MOMENTS), f"a window was flushed {late} s late")
        self.since = None
        await self.world.moment()
        self.world.demand(outputs == sorted(outputs), "out of order")
        self.world.pending = outputs
        await self.world.moment()

    async def on_close(self, ctx: Any, reason: Any) -> str:
        return "done"


def world_of(random: Random) -> World:
    count = random.randrange(1, 9)
    windows = (
        Window(count=random.randrange(1, 4)),
        Window(seconds=1.0),
        Window(count=2, seconds=2.0),
        Window(count=100, seconds=5.0),
    )
    return World(
        random,
        good=[random.random() < 0.8 for _ in range(count)],
        silence=[random.choice(SILENCE) for _ in range(count)],
        window=random.choice(windows),
        in_flight=random.choice((1, 1, 1, 3)),
    )


async def live(world: World, log: Log, fate: str) -> str | None:
    """One process: until the end, or until its fate. None if it has to be resumed."""
    loop, token = asyncio.get_running_loop(), CancellationToken()
    world.crash_at = world.random.randrange(1, 6) if fate == "crash" else 0
    world.crash_before = world.random.random() < 0.5
    world.pending, world.finished, world.stopped_at = [], world.last, None
    limit = world.random.choice((1.0, 2.0, 4.0)) if fate == "timeout" else None
    flow = Workflow[str](checkpoint_store=log, total_timeout=limit).register("work", Life(world)).add_exit_state("done")

    def stop() -> None:
        world.stopped_at = loop.time()
        token.cancel()

    run = asyncio.ensure_future(flow.orchestrate("work", workflow_id="r", token=token, if_exists="resume"))
    moment = world.random.choice((0, 0.5, 1, 1, 1.5, 2, 2, 3, 4, 6))
    timer = {"token": stop, "outside": run.cancel}.get(fate)
    stopping = None if timer is None else loop.call_later(moment, timer)
    began = loop.time()
    try:
        await asyncio.wait((run,))
    finally:
        if stopping is not None:
            stopping.cancel()
    assert not world.broken, "; ".join(world.broken)
    assert world.open_sources == 0, "a source was left open"
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"{left} outlived the run"
    try:
        return run.result()
    except Crashed:
        return None
    except (WorkflowCancelledError, WorkflowTimeoutError, asyncio.CancelledError) as error:
        expected = {"token": WorkflowCancelledError, "outside": asyncio.CancelledError, "timeout": WorkflowTimeoutError}[fate]
        assert type(error) is expected, f"a stop by {fate} surfaced as {type(error).__name__}"
        late = loop.time() - began - (moment if limit is None else limit)
        assert late < PROMPT, f"it took {late} s to stop"
        assert world.last >= world.finished, "an item in hand was not committed by the drain"
        complete = fate == "outside" and world.last and not await log.load_run("r")
        return "done" if complete else None  # a cancel that comes when all is done is raised all the same


async def story(seed: int) -> None:
    random = Random(seed)
    world = world_of(random)
    log = Log(world)
    fates: Iterable[str] = [random.choice(("crash", "token", "outside", "timeout")) for _ in range(random.randrange(3))]
    for fate in [*fates, "none"]:
        if (end := await live(world, log, fate)) is not None:
            break
    assert end == "done", "it did not come to its end"
    assert world.committed == world.between(0, len(world.good)), f"{world.committed} of {world.good}"
    assert not world.pending, "something was flushed and never committed"


def explore(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(lambda seed=seed: story(seed), seed=seed)
