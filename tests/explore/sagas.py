"""A saga under any schedule: no step is done again once its row is there, each is undone once and last-first, and a
rollback that has begun never turns back.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from cano import CanoError, CheckpointRow, CompensatableTask, NoRetry, RowKind, Task, TaskConfig, Workflow
from cano.testing import simulate
from tests.explore.lives import FATES, Log, live, moment

STEPS = "abcd"


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.log = Log(self.random, self.written)
        self.fails = self.random.random() < 0.5
        self.recorded: list[str] = []
        self.undone: list[str] = []
        self.undoing = False
        self.broken: list[str] = []

    def written(self, row: CheckpointRow) -> None:
        if row.kind is RowKind.COMPENSATION:
            self.recorded.append(row.state)
        elif row.kind is RowKind.ROLLBACK_STARTED:
            self.undoing = True
        elif row.kind is RowKind.COMPENSATED:
            self.undone.append(row.state)

    def demand(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.broken.append(otherwise)


class Deed(CompensatableTask[str, str]):
    config = TaskConfig(retry=NoRetry())

    def __init__(self, world: World, name: str, then: str) -> None:
        self.world, self.label, self.then = world, name, then

    async def run(self, ctx: Any) -> tuple[str, str]:
        world = self.world
        world.demand(self.label not in world.recorded, f"{self.label} was done again")
        world.demand(not world.undoing, f"{self.label} was done in a rollback")
        await moment(world.random)
        return self.then, self.label

    async def compensate(self, ctx: Any, output: str) -> None:
        world = self.world
        await moment(world.random)
        expected = world.recorded[-1 - len(world.undone)]
        world.demand(output == self.label == expected, f"{self.label} was undone when it was the turn of {expected}")


class Last(Task[str]):
    config = TaskConfig(retry=NoRetry())

    def __init__(self, world: World) -> None:
        self.world = world

    async def run(self, ctx: Any) -> str:
        self.world.demand(not self.world.undoing, "a rollback turned back")
        await moment(self.world.random)
        if self.world.fails:
            raise ValueError
        return "done"


async def story(seed: int) -> None:
    world = World(seed)
    random, end, asked = world.random, None, False
    for fate in [*(random.choice((*FATES, "rollback")) for _ in range(random.randrange(4))), "none"]:
        flow: Any = Workflow[str](checkpoint_store=world.log).register("last", Last(world)).add_exit_state("done")
        for name, then in zip(STEPS, [*STEPS[1:], "last"], strict=True):
            flow.register(name, Deed(world, name, then))
        before = list(world.undone)
        end = await live(flow, "a", world.log, fate, prompt=60)
        if fate in ("token", "outside", "timeout") and not world.undoing:
            world.demand(world.undone == before, f"a stop by {fate} undid something")
        asked = asked or fate == "rollback"
        assert not world.broken, "; ".join(world.broken)
        if end is not None or (world.recorded and not await world.log.load_run("r")):
            break
    assert not await world.log.load_run("r"), "the log of a run that is over was left"
    if world.undone:
        assert world.fails or asked, "undone for no reason"
        assert world.undone == world.recorded[::-1], f"did {world.recorded}, undid {world.undone}"
    elif end == "done" or not isinstance(end, CanoError):
        assert world.recorded in (list(STEPS), []), f"only {world.recorded} was done"


def explore(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(lambda seed=seed: story(seed), seed=seed)
