"""A chain of states with every kind of task under any schedule: none is skipped, none is entered before its time, and what
the run keeps in `ctx.data` has each of them once.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from cano import (
    BatchTask,
    CheckpointRow,
    Done,
    FixedRetry,
    More,
    Pending,
    PollTask,
    Ready,
    RowKind,
    SteppedTask,
    StreamTask,
    Task,
    TaskConfig,
    TimerTask,
    Window,
    Workflow,
)
from cano.testing import simulate
from tests.explore.lives import FATES, Log, live, moment


class Told:
    """What each of these tasks has: its number, where to go on, and how to say in `ctx.data` that it is done."""

    def __init__(self, number: int, random: Random) -> None:
        self.number, self.random, self.then = number, random, str(number + 1)

    async def done(self, ctx: Any) -> str:
        await moment(self.random)
        ctx.data.append(self.number)
        await moment(self.random)
        return self.then


class Plain(Told, Task[str]):
    config = TaskConfig(retry=FixedRetry(5, 1.0))

    async def run(self, ctx: Any) -> str:
        then = await self.done(ctx)
        if self.random.random() < 0.2:
            raise ValueError  # and what this attempt did to ctx.data is forgotten
        return then


class Polled(Told, PollTask[str]):
    async def poll(self, ctx: Any) -> Any:
        await moment(self.random)
        return Ready(await self.done(ctx)) if self.random.random() < 0.5 else Pending(self.random.choice((0, 0.5, 1)))


class Timed(Told, TimerTask[str]):
    async def wait(self, ctx: Any) -> float:
        return self.random.choice((0, 1, 3))

    async def after_wait(self, ctx: Any) -> str:
        return await self.done(ctx)


class Batched(Told, BatchTask[str, int, int]):
    concurrency = 2

    async def load(self, ctx: Any) -> list[int]:
        return [1, 2, 3, 4]

    async def process_item(self, ctx: Any, item: int) -> int:
        await moment(self.random)
        return item * item

    async def finish(self, ctx: Any, outcomes: Any) -> str:
        assert [outcome.value for outcome in outcomes] == [1, 4, 9, 16]
        return await self.done(ctx)


class Stepped(Told, SteppedTask[str, int]):
    async def step(self, ctx: Any, cursor: int | None) -> Any:
        await moment(self.random)
        return Done(await self.done(ctx)) if cursor == 2 else More((cursor or 0) + 1)


class Streamed(Told, StreamTask[str, int, int, int]):
    window = Window(count=2)

    def open(self, ctx: Any, cursor: int | None) -> Any:
        return range((cursor or 0) + 1, 6)

    async def process_item(self, ctx: Any, item: int) -> tuple[int, int]:
        await moment(self.random)
        return item, item

    async def flush_window(self, ctx: Any, outputs: list[int]) -> None:
        await moment(self.random)

    async def on_close(self, ctx: Any, reason: Any) -> str:
        return await self.done(ctx)


KINDS = (Plain, Polled, Timed, Batched, Stepped, Streamed)


async def story(seed: int) -> None:
    random, entered = Random(seed), list[int]()

    def written(row: CheckpointRow) -> None:
        if row.kind is RowKind.STATE_ENTRY:
            entered.append(int(row.state))

    log = Log(random, written)
    kinds = [random.choice(KINDS) for _ in range(random.randrange(1, 6))]
    seen: list[list[int]] = []

    async def look(ctx: Any) -> str:
        seen.append(list(ctx.data))
        return "99"

    end: Any = None
    for fate in [*(random.choice(FATES) for _ in range(random.randrange(4))), "none"]:
        flow: Any = Workflow[str, list[int]](checkpoint_store=log).add_exit_state("99")
        for number, kind in enumerate(kinds):
            flow.register(str(number), kind(number, random))
        flow.register(str(len(kinds)), look)
        end = await live(flow, "0", log, fate, data=[])
        if end is not None or (entered and entered[-1] == 99 and not await log.load_run("r")):
            break
    assert end == "99" or entered[-1] == 99, f"ended with {type(end).__name__}"
    assert sorted(set(entered)) == [*range(len(kinds) + 1), 99], f"entered {entered}"
    assert entered == sorted(entered), f"went back: {entered}"
    assert seen, "the last state was never run"
    assert all(data == list(range(len(kinds))) for data in seen), f"ctx.data was {seen}"


def explore(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(lambda seed=seed: story(seed), seed=seed)
