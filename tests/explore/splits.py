"""A split under any schedule: it is decided as its join says, no branch outlives it, and every stop is heard."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from random import Random
from typing import Any

from cano import All, AnyOf, CanoError, NoRetry, PartialResults, Percentage, Quorum, Split, Task, TaskConfig, Workflow
from cano.testing import simulate
from tests.explore.lives import FATES, Log, live, moment


class Branch(Task[str]):
    config = TaskConfig(retry=NoRetry())

    def __init__(self, story: Story, name: str, good: bool, delay: float) -> None:
        self.story, self.name, self.good, self.delay = story, name, good, delay

    async def run(self, ctx: Any) -> Any:
        self.story.inside += 1
        self.story.most = max(self.story.most, self.story.inside)
        try:
            await asyncio.sleep(self.delay)
            await moment(self.story.random)
            if not self.good:
                raise ValueError
            return self.name
        finally:
            try:
                if self.story.random.random() < 0.3:
                    await asyncio.sleep(0)  # whoever is cancelled may take its time
            finally:
                self.story.inside -= 1


class Story:
    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.inside = self.most = 0
        count = random.randrange(1, 6)
        self.good = [random.random() < 0.7 for _ in range(count)]
        need = random.randrange(1, count + 1)
        share = random.choice((0.25, 0.5, 0.75, 1.0))
        self.join, self.need = random.choice(
            [
                (All(), count),
                (AnyOf(), 1),
                (Quorum(need), need),
                (Percentage(share), math.ceil(share * count)),
                (PartialResults(need), need),
            ]
        )
        self.limit = random.choice((None, None, 1, 2))
        self.joined: list[list[str]] = []

    def flow(self, log: Log) -> Any:
        branches = [
            Branch(self, f"b{number}", good, self.random.choice((0, 0, 1, 1, 2))) for number, good in enumerate(self.good)
        ]

        async def merge(ctx: Any) -> str:
            assert self.inside == 0, "a branch outlived its split"
            self.joined.append([result.name for result in ctx.branches if result.succeeded])
            return "done"

        split: Any = Split(branches, join=self.join, then="merge", max_concurrency=self.limit)
        flow: Any = Workflow[str](checkpoint_store=log).register("fan out", split)
        return flow.register("merge", merge).add_exit_state("done")

    async def tell(self) -> None:
        log, end = Log(self.random, lambda row: None), None
        for fate in [*(self.random.choice(FATES) for _ in range(self.random.randrange(3))), "none"]:
            end = await live(self.flow(log), "fan out", log, fate)
            assert self.inside == 0, f"{self.inside} branches outlived the run"
            if end is not None or (self.joined and not await log.load_run("r")):
                break
        enough = sum(self.good) >= self.need
        assert bool(self.joined) == enough, (
            f"{sum(self.good)} of {self.need} were good and it was joined {len(self.joined)} times"
        )
        assert enough or isinstance(end, CanoError)
        assert all(len(names) >= self.need for names in self.joined), "joined too early"
        assert self.limit is None or self.most <= self.limit, f"{self.most} branches at once"


def explore(seeds: Iterable[int]) -> None:
    for seed in seeds:
        simulate(lambda seed=seed: Story(seed).tell(), seed=seed)
