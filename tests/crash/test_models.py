"""A workflow that uses every processing model in a row, crashed at every append, and stopped at random moments."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cano import (
    All,
    BatchTask,
    CancellationToken,
    CheckpointRow,
    CompensatableTask,
    Done,
    FixedRetry,
    MemoryCheckpointStore,
    More,
    Pending,
    PollTask,
    Ready,
    RouterTask,
    Split,
    SqliteCheckpointStore,
    SteppedTask,
    StreamTask,
    SubWorkflow,
    Task,
    TaskConfig,
    TimerTask,
    Window,
    Workflow,
    WorkflowCancelledError,
)
from cano.testing import Crashed, RecordingObserver
from tests.models import dying

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]

RETRIES = TaskConfig(retry=FixedRetry(2, 0))
EXPECTED = [
    *("plain", "router", "poll", "wait", "timer", "batch", None, 1, 2, "stepped"),
    *("window [1, 2]", "window [3, 4]", "window [5]", "book", "nest", "merge [7, 7]"),
]
INNER = [None, 1, 2]


class World:
    """What happened outside of the runs: every piece of work, as often as it was done."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.flaky: set[Any] = set()

    def work(self, ctx: Any, what: Any) -> None:
        """Do a piece of work; the first time it fails after having changed the data, so that it is retried."""
        ctx.data.append(what)
        if what not in self.flaky:
            self.flaky.add(what)
            raise ValueError(what)
        self.done.append(what)


def every_model(world: World, store: Any, inside: Any, seen: list[Any]) -> Workflow[str]:
    class Router(RouterTask[str]):
        config = RETRIES

        async def route(self, ctx: Any) -> str:
            world.work(ctx, "router")
            return "poll"

    class Poll(PollTask[str]):
        config = RETRIES

        async def poll(self, ctx: Any) -> Any:
            if ctx.data[-1] != "asked":
                ctx.data.append("asked")
                return Pending()
            ctx.data.pop()
            world.work(ctx, "poll")
            return Ready("timer")

    class Timer(TimerTask[str]):
        config = RETRIES

        async def wait(self, ctx: Any) -> float:
            world.work(ctx, "wait")
            return 0.002

        async def after_wait(self, ctx: Any) -> str:
            world.work(ctx, "timer")
            return "batch"

    class Batch(BatchTask[str, int, int]):
        concurrency, config, item_retry = 2, RETRIES, FixedRetry(2, 0)

        async def load(self, ctx: Any) -> Any:
            return range(3)

        async def process_item(self, ctx: Any, item: int) -> int:
            if ctx.attempt < 2:
                raise ValueError
            return item

        async def finish(self, ctx: Any, outcomes: Any) -> str:
            assert [outcome.value for outcome in outcomes] == [0, 1, 2]
            world.work(ctx, "batch")
            return "stepped"

    class Steps(SteppedTask[str, int]):
        config = RETRIES

        def __init__(self, then: str, name: Any) -> None:
            self.then, self.last_word = then, name

        async def step(self, ctx: Any, cursor: int | None) -> Any:
            if cursor == 3:
                if self.last_word is not None:
                    world.work(ctx, self.last_word)
                return Done(self.then)
            world.work(ctx, cursor)
            return More((cursor or 0) + 1)

    class Stream(StreamTask[str, int, int, int]):
        window = Window(count=2)

        async def open(self, ctx: Any, cursor: int | None) -> Any:
            for item in range((cursor or 0) + 1, 6):
                yield item

        async def process_item(self, ctx: Any, item: int) -> tuple[int, int]:
            return item, item

        async def flush_window(self, ctx: Any, outputs: list[int]) -> None:
            ctx.data.append(f"window {outputs}")
            world.done.append(f"window {outputs}")

        async def on_close(self, ctx: Any, reason: Any) -> str:
            return "book"

    class Book(CompensatableTask[str, int]):
        config = RETRIES

        async def run(self, ctx: Any) -> tuple[str, int]:
            world.work(ctx, "book")
            return "nest", 1

        async def compensate(self, ctx: Any, output: int) -> None:
            raise AssertionError

    async def plain(ctx: Any) -> str:
        world.work(ctx, "plain")
        return "router"

    async def nested(ctx: Any) -> str:
        world.work(ctx, "nest")
        return "split"

    async def branch(ctx: Any) -> int:
        ctx.data.append("dropped")
        return 7

    async def merge(ctx: Any) -> str:
        world.work(ctx, f"merge {ctx.branches.values}")
        return "last"

    async def last(ctx: Any) -> str:
        seen.append(list(ctx.data))
        return "done"

    inner = Workflow[str](checkpoint_store=inside).register("deep", Steps("up", None)).add_exit_state("up")
    sub = SubWorkflow(inner, "deep", exits={"up": "nested"}, data=lambda ctx: [])
    flow = Workflow[str](checkpoint_store=store).register("plain", fast(plain)).register("router", Router())
    flow.register("poll", Poll()).register("timer", Timer()).register("batch", Batch()).register(
        "stepped", Steps("stream", "stepped")
    )
    flow.register("stream", Stream()).register("book", Book()).register("nest", sub).register("nested", fast(nested))
    flow.register("split", Split([branch, branch], join=All(), then="merge")).register("merge", fast(merge))
    return flow.register("last", last).add_exit_state("done")


def fast(function: Any) -> Any:
    """The function as a task whose retries do not wait."""

    class Fast(Task[str]):
        config = RETRIES

        async def run(self, ctx: Any) -> str:
            return await function(ctx)

    return Fast()


async def go_on(flow: Workflow[str], store: Any, token: CancellationToken | None = None) -> str:
    """Resume the run if it has left anything, else start it."""
    if await store.load_run("r"):
        return await flow.resume_from("r", token=token)
    return await flow.orchestrate("plain", workflow_id="r", data=[], token=token)


def check(world: World, seen: list[Any], repeats: int) -> None:
    """Nothing is lost, the data agree with what was done, and no more is repeated than `repeats`."""
    work = [what for what in EXPECTED if what not in INNER]
    assert seen[-1] == EXPECTED
    for what in work:
        assert world.done.count(what) >= 1
    for step in INNER:  # in the stepped task, and in the inner workflow
        assert world.done.count(step) >= 2
    assert len(world.done) - len(EXPECTED) - len(INNER) <= repeats


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("dies", ["outer", "inner"])
async def test_a_crash_at_any_append_loses_nothing_and_repeats_one_piece_of_work(dies: str, after: bool) -> None:
    place = crashes = 0
    while True:
        store = dying(place + 1 if dies == "outer" else 0, after=after)
        inside = dying(place + 1 if dies == "inner" else 0, after=after)
        world, seen = World(), []
        flow = every_model(world, store, inside, seen)
        try:
            await go_on(flow, store)
        except Crashed:
            crashes += 1
            assert await go_on(flow, store) == "done"
        else:
            break
        check(world, seen, repeats=2)  # a router is repeated with the state before it
        assert await store.list_runs() == []
        place += 1
    assert crashes == place == (5 if dies == "inner" else 21)


async def test_a_run_that_crashes_at_every_single_append_gets_there_all_the_same() -> None:
    class OneByOne(MemoryCheckpointStore):
        def __init__(self) -> None:
            super().__init__()
            self.entered: set[tuple[str, int]] = set()

        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            await super().append(workflow_id, row)
            if row.kind != "STATE_ENTRY" or (row.state, row.visit) not in self.entered:
                self.entered.add((row.state, row.visit))
                raise Crashed

    store, inside, world, seen = OneByOne(), OneByOne(), World(), []
    flow = every_model(world, store, inside, seen)
    crashes, end = 0, None
    while end is None:
        try:
            end = await go_on(flow, store)
        except Crashed:
            crashes += 1
    assert 20 < crashes < 59
    check(world, seen, repeats=crashes)


@pytest.mark.parametrize("seed", range(25))
async def test_cancels_at_random_moments_lose_nothing(seed: int) -> None:
    """Cancel by the token or the asyncio task, at any turn of the loop, again and again, then let it run."""
    chance, world, seen = random.Random(seed), World(), []
    store, inside = MemoryCheckpointStore(), MemoryCheckpointStore()
    flow = every_model(world, store, inside, seen)
    stops = 0
    for _ in range(12):
        token = CancellationToken()
        running = asyncio.create_task(go_on(flow, store, token))
        for _ in range(chance.randrange(60)):
            await asyncio.sleep(0)
        if chance.random() < 0.5:
            token.cancel()
        else:
            running.cancel()
        with suppress(WorkflowCancelledError, asyncio.CancelledError):
            await running
        if seen and await store.list_runs() == []:
            break  # it was complete before the cancel was seen
        stops += 1
    else:
        assert await go_on(flow, store) == "done"
    check(world, seen, repeats=3 * stops)
    assert len(seen) <= 1 + stops
    assert await store.list_runs() == await inside.list_runs() == []


async def test_every_model_keeps_its_rows_in_a_file_too(tmp_path: Path) -> None:
    store, world, seen, recorder = SqliteCheckpointStore(tmp_path / "runs.db"), World(), [], RecordingObserver()
    flow = every_model(world, store, store, seen)
    flow.observers = (recorder,)
    assert await go_on(flow, store) == "done"
    check(world, seen, repeats=0)
    assert len(recorder.of("checkpoint")) == 21 + 5
    assert await store.list_runs() == []
    await store.close()
