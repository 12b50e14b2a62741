"""What a killed life does after the kill does not count: each of these workflows loses data in a crash, and it is seen."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cano import All, ConfigurationError, MemoryCheckpointStore, Resource, Split, SqliteCheckpointStore, SubWorkflow, Workflow
from cano.testing import CrashPoint, every_crash_point, simulate
from tests.splits import Branch
from tests.streams import Probe, numbers

pytestmark = pytest.mark.asyncio


def flow(task: Probe, **options: Any) -> Workflow[str]:
    return Workflow[str](**options).register("work", task).add_exit_state("done")


def void(left_alone: Any) -> None:
    """For hooks, which would wait for what they get."""


def lossy(points: list[CrashPoint[list[int]]]) -> list[str]:
    """Where something was lost."""
    assert {point.end for point in points} == {"done"}
    assert sorted(points[0].seen) == [1, 2, 3, 4, 5], "without a crash it does its work"
    return [str(point) for point in points if set(point.seen) != {1, 2, 3, 4, 5}]


# -- workflows that lose data -----------------------------------------------------------------------------------------


def in_tasks(sink: list[int], *, seconds: float = 0.01) -> Workflow[str]:
    """Leaves the writing of a window to an asyncio task, which nobody waits for before the commit."""
    writes: list[asyncio.Task[None]] = []

    async def write(outputs: list[int]) -> None:
        await asyncio.sleep(seconds)
        sink.extend(outputs)

    async def close(reason: Any) -> None:
        await asyncio.gather(*writes)

    return flow(Probe(numbers(1, 5), flush=lambda outputs: writes.append(asyncio.create_task(write(outputs))), close=close))


def in_tasks_of_tasks(sink: list[int]) -> Workflow[str]:
    """Likewise, by way of a timer, and with an asyncio task that does not give up when it is cancelled."""
    written: list[asyncio.Future[None]] = []

    async def write(outputs: list[int], done: asyncio.Future[None]) -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.001)
        sink.extend(outputs)
        done.set_result(None)

    def flush(outputs: list[int]) -> None:
        loop = asyncio.get_running_loop()
        written.append(loop.create_future())
        loop.call_later(0.001, lambda done=written[-1]: loop.create_task(write(outputs, done)))

    async def close(reason: Any) -> None:
        await asyncio.gather(*written)

    return flow(Probe(numbers(1, 5), flush=flush, close=close))


def in_a_teardown(sink: list[int]) -> Workflow[str]:
    """Writes when its resource is torn down, as a file does that is buffered and closed."""
    buffer: list[int] = []

    class Writer(Resource):
        async def setup(self) -> None: ...

        async def teardown(self) -> None:
            sink.extend(buffer)

    return flow(Probe(numbers(1, 5), flush=buffer.extend), resources={"writer": Writer()})


def in_a_finally(sink: list[int]) -> Workflow[str]:
    """Writes when its source is closed."""
    buffer: list[int] = []

    async def source(cursor: int | None) -> Any:
        try:
            for number in range((cursor or 0) + 1, 6):
                yield number
        finally:
            sink.extend(buffer)

    async def close(reason: Any) -> None:
        sink.extend(number for number in buffer if number not in sink)

    return flow(Probe(source, flush=buffer.extend, close=close))


@pytest.mark.parametrize("losing", [in_tasks, in_tasks_of_tasks, in_a_teardown, in_a_finally])
async def test_a_loss_that_only_the_dead_could_make_good_is_seen(losing: Callable[[list[int]], Workflow[str]]) -> None:
    assert "killed after append 3 was written" in lossy(await every_crash_point(losing, "work"))


async def test_so_it_is_in_a_workflow_that_is_shared() -> None:
    sink: list[int] = []

    def cleared() -> list[int]:
        sink.clear()
        return sink

    def flush(outputs: list[int]) -> None:
        async def write() -> None:
            await asyncio.sleep(0.01)
            sink.extend(outputs)

        asyncio.create_task(write()).set_name("write")

    async def close(reason: Any) -> None:
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "write"))

    shared = flow(Probe(numbers(1, 5), flush=flush, close=close))
    assert "killed after append 3 was written" in lossy(await every_crash_point(shared, "work", outside=cleared))


async def test_so_it_is_with_a_thread_that_writes() -> None:
    with ThreadPoolExecutor(1) as pool:
        gates: list[threading.Event] = []

        def threaded(sink: list[int]) -> Workflow[str]:
            gates.append(gate := threading.Event())

            def write(outputs: list[int]) -> None:
                gate.wait(10)
                sink.extend(outputs)

            async def close(reason: Any) -> None:
                for each in gates:
                    each.set()
                await asyncio.wrap_future(pool.submit(int))  # those before it have written

            return flow(Probe(numbers(1, 5), flush=lambda outputs: void(pool.submit(write, outputs)), close=close))

        assert "killed after append 3 was written" in lossy(await every_crash_point(threaded, "work"))


# -- what is left of a life ---------------------------------------------------------------------------------------------


async def test_asyncio_tasks_of_a_life_end_with_it_and_others_do_not() -> None:
    ended: list[str] = []
    kept = []

    async def wait(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    async def other() -> list[CrashPoint[Any]]:
        kept.append(asyncio.create_task(wait("other"), name="other"))
        return await every_crash_point(lambda sink: in_tasks(sink, seconds=0), "work")

    def starting(sink: list[int]) -> Workflow[str]:
        return flow(Probe(numbers(1, 5), process=lambda item: void(asyncio.create_task(wait("own"))), flush=sink.extend))

    kept.append(asyncio.create_task(wait("mine"), name="mine"))
    await asyncio.gather(every_crash_point(starting, "work"), other())
    assert set(ended) == {"own"}
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert {task.get_name() for task in left} == {"mine", "other"}
    assert asyncio.get_running_loop().get_task_factory() is None
    for task in left:
        task.cancel()
    await asyncio.wait(left)


async def test_one_that_does_not_mind_being_cancelled_is_not_waited_for_without_end() -> None:
    def stubborn(sink: list[int]) -> Workflow[str]:
        async def stay() -> None:
            for _ in range(3):
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(1000)

        return flow(Probe(numbers(1, 1), process=lambda item: void(asyncio.create_task(stay())), flush=sink.extend))

    points = await asyncio.to_thread(simulate, lambda: every_crash_point(stubborn, "work", between=["after"]))
    assert [point.seen for point in points] == [[1]] * 4


async def test_what_a_store_does_in_asyncio_tasks_of_its_own_goes_on(tmp_path: Path) -> None:
    class Queued(MemoryCheckpointStore):
        """Appends in one asyncio task, which it starts when it is first asked."""

        def __init__(self) -> None:
            super().__init__()
            self.queue: asyncio.Queue[Any] = asyncio.Queue()
            self.worker: asyncio.Task[None] | None = None

        async def append(self, workflow_id: str, row: Any) -> None:
            self.worker = self.worker or asyncio.create_task(self.work())
            done = asyncio.get_running_loop().create_future()
            self.queue.put_nowait((workflow_id, row, done))
            await done

        async def work(self) -> None:
            while True:
                workflow_id, row, done = await self.queue.get()
                await super().append(workflow_id, row)
                done.set_result(None)

        async def close(self) -> None:
            assert self.worker is not None
            assert not self.worker.cancelled()
            self.worker.cancel()

    points = await every_crash_point(lambda sink: flow(Probe(numbers(1, 5), flush=sink.extend)), "work", store=Queued)
    assert len(points) == 11
    assert {point.end for point in points} == {"done"}


async def test_a_dead_life_writes_no_row_and_has_its_transaction_rolled_back(tmp_path: Path) -> None:
    from cano.testing.crash import Crashed
    from cano.testing.life import Life
    from cano.testing.mortal import MortalStore
    from tests.recovery.logs import entry

    behind, life = SqliteCheckpointStore(tmp_path / "runs.db"), Life()
    store = MortalStore(behind, life, crash_at=2, before=False)
    await store.append("r", entry(0))
    with pytest.raises(Crashed):
        async with store.transaction("r") as transaction:
            await transaction.append(entry(1))
            await transaction.connection.execute("CREATE TABLE effect (x)")
            life.die()
    for call in (store.append("r", entry(1)), store.load_run("r"), store.clear("r")):
        with pytest.raises(Crashed):
            await call
    with pytest.raises(Crashed):
        async with store.transaction("r"):
            raise AssertionError("it was given to the dead")
    assert await behind.load_run("r") == [entry(0)]
    async with behind.transaction("r") as transaction:
        assert await transaction.connection.execute_fetchall("SELECT * FROM sqlite_master WHERE name = 'effect'") == []
    await behind.close()


# -- copies -------------------------------------------------------------------------------------------------------------


@dataclass
class World:
    rows: list[int] = field(default_factory=list)
    names: dict[str, set[int]] = field(default_factory=dict)


async def test_an_object_of_ones_own_is_copied_whole() -> None:
    def building(world: World) -> Workflow[str]:
        def flush(outputs: list[int]) -> None:
            world.rows.extend(outputs)
            world.names.setdefault("all", set()).update(outputs)

        class Closing(Resource):
            async def setup(self) -> None: ...

            async def teardown(self) -> None:
                if len(world.rows) < 5:
                    world.names.get("all", set()).add(-1)

        return flow(Probe(numbers(1, 5), flush=flush), resources={"closing": Closing()})

    for point in await every_crash_point(building, "work", outside=World):
        assert (point.end, set(point.seen.rows), point.seen.names["all"]) == ("done", {1, 2, 3, 4, 5}, {1, 2, 3, 4, 5}), point


@pytest.mark.parametrize(
    "shared", [[1], {1: [2]}, {1}, deque([1]), bytearray(b"1"), World([1])], ids=lambda it: type(it).__name__
)
async def test_what_a_shared_workflow_writes_to_is_set_back_to_what_it_was_at_the_kill(shared: Any) -> None:
    def spoil() -> None:
        vars(shared).clear() if isinstance(shared, World) else shared.clear()

    class Spoiling(Resource):
        async def setup(self) -> None: ...

        async def teardown(self) -> None:
            spoil()

    kept = [repr(shared)]
    workflow = flow(Probe(numbers(1, 2), flush=lambda outputs: kept.append(repr(shared))), resources={"spoiling": Spoiling()})

    def outside() -> Any:
        if isinstance(shared, World):
            vars(shared).update(vars(World([1])))
        elif not shared:
            shared.update({1: [2]} if isinstance(shared, dict) else {1}) if isinstance(shared, dict | set) else shared.extend(
                b"1" if isinstance(shared, bytearray) else [1]
            )
        return shared

    await every_crash_point(workflow, "work", outside=outside)
    assert len(kept) > 5
    assert len(set(kept)) == 1


class Slotted:
    __slots__ = ("rows",)


@pytest.mark.parametrize(
    "outside", [lambda: threading.Lock(), lambda: sqlite3.connect(":memory:"), lambda: (number for number in ())]
)
async def test_what_cannot_be_copied_is_refused_at_once_and_says_what_to_do(outside: Any) -> None:
    made: list[Any] = []

    def giving() -> Any:
        made.append(outside())
        return made[-1]

    with pytest.raises(ConfigurationError, match=r"cannot be copied \(TypeError\): give what is a value, such as a list"):
        await every_crash_point(lambda sink: flow(Probe(numbers(1, 5))), "work", outside=giving)
    for given in made:
        if hasattr(given, "close"):
            given.close()


async def test_so_is_what_becomes_uncopyable_while_it_is_used() -> None:
    with pytest.raises(ConfigurationError, match="cannot be copied"):
        await every_crash_point(
            lambda sink: flow(Probe(numbers(1, 5), flush=lambda outputs: sink.append(threading.Lock()))), "work"
        )


async def test_so_is_what_cannot_be_set_back_for_a_workflow_that_is_shared() -> None:
    with pytest.raises(ConfigurationError, match="a Slotted cannot be set back .* give a function that builds the workflow"):
        await every_crash_point(flow(Probe(numbers(1, 5))), "work", outside=Slotted)
    points = await every_crash_point(flow(Probe(numbers(1, 5))), "work", outside=lambda: Path("x"))
    assert {point.seen for point in points} == {Path("x")}


async def test_a_split_and_a_workflow_in_a_workflow_are_killed_like_any_other() -> None:
    def building(sink: list[int]) -> Workflow[str]:
        def branch(number: int) -> Any:
            async def run() -> int:
                await asyncio.sleep(0.001 * number)
                sink.append(number)
                return number

            return Branch(lambda ctx: run(), f"branch-{number}")

        inner = flow(Probe(numbers(1, 5), flush=sink.extend))
        outer = Workflow[str]().register("split", Split([branch(10), branch(11)], join=All(), then="inner"))
        return outer.register("inner", SubWorkflow(inner, "work", exits={"done": "done"})).add_exit_state("done")

    points = await every_crash_point(building, "split")
    assert len(points) > 5
    for point in points:
        assert (point.end, set(point.seen)) == ("done", {1, 2, 3, 4, 5, 10, 11}), point
