"""Resources: set up once, shared, torn down in reverse; and the bundled key-value store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cano import (
    ConfigurationError,
    Health,
    MemoryStore,
    Resource,
    ResourceNotFoundError,
    Resources,
    ResourceTypeMismatchError,
    StoreError,
    Workflow,
)


class Tracked(Resource):
    def __init__(self, name: str, log: list[str], fails: str = "") -> None:
        self.name, self.log, self.fails = name, log, fails

    async def setup(self) -> None:
        self.log.append(f"setup {self.name}")
        if self.fails == "setup":
            raise RuntimeError("boom")

    async def teardown(self) -> None:
        self.log.append(f"teardown {self.name}")
        if self.fails == "teardown":
            raise RuntimeError("boom")


async def work(ctx: Any) -> str:
    await asyncio.sleep(0.01)
    return "done"


def flow(resources: Any) -> Workflow[str]:
    return Workflow[str](resources=resources).register("work", work).add_exit_state("done")


@pytest.mark.asyncio
async def test_set_up_goes_in_order_and_teardown_in_reverse_once_for_each_run() -> None:
    log: list[str] = []
    resources = {name: Tracked(name, log) for name in "abc"}
    workflow = flow(resources)
    for _ in range(2):
        assert await workflow.orchestrate("work") == "done"
    assert log == ["setup a", "setup b", "setup c", "teardown c", "teardown b", "teardown a"] * 2


@pytest.mark.asyncio
async def test_overlapping_runs_share_one_lifetime() -> None:
    log: list[str] = []
    workflow = flow({"a": Tracked("a", log)})
    await asyncio.gather(*(workflow.orchestrate("work") for _ in range(20)))
    assert log == ["setup a", "teardown a"]


@pytest.mark.asyncio
async def test_entering_the_resources_keeps_them_up_around_many_runs() -> None:
    log: list[str] = []
    resources = Resources(a=Tracked("a", log))
    workflow = flow(resources)
    async with resources:
        for _ in range(3):
            await workflow.orchestrate("work")
    assert log == ["setup a", "teardown a"]


@pytest.mark.asyncio
async def test_a_failing_set_up_tears_down_those_already_up_and_surfaces() -> None:
    log: list[str] = []
    resources = {"a": Tracked("a", log), "b": Tracked("b", log), "c": Tracked("c", log, "setup"), "d": Tracked("d", log)}
    with pytest.raises(RuntimeError, match="boom"):
        await flow(resources).orchestrate("work")
    assert log == ["setup a", "setup b", "setup c", "teardown b", "teardown a"]


@pytest.mark.asyncio
async def test_a_failing_teardown_stops_nothing_and_masks_nothing() -> None:
    log: list[str] = []
    resources = {"a": Tracked("a", log), "b": Tracked("b", log, "teardown"), "c": Tracked("c", log)}
    assert await flow(resources).orchestrate("work") == "done"
    assert log[-3:] == ["teardown c", "teardown b", "teardown a"]


@pytest.mark.asyncio
async def test_a_context_manager_is_entered_and_gives_what_entering_gave() -> None:
    log: list[str] = []

    class Pool:
        async def __aenter__(self) -> Pool:
            log.append("enter")
            return self

        async def __aexit__(self, *exc_info: object) -> None:
            log.append("exit")

    @asynccontextmanager
    async def connected() -> AsyncIterator[str]:
        log.append("connect")
        yield "connection"
        log.append("disconnect")

    async def look(ctx: Any) -> str:
        assert ctx.get("connection", str) == "connection"
        assert ctx["pool"] is pool
        assert isinstance(ctx["lock"], asyncio.Lock)
        assert not ctx["lock"].locked()
        return "done"

    pool = Pool()
    objects = {"pool": pool, "connection": connected(), "lock": asyncio.Lock(), "plain": 5}
    workflow = Workflow[str](resources=objects).register("look", look).add_exit_state("done")
    assert await workflow.orchestrate("look") == "done"
    assert log == ["enter", "connect", "disconnect", "exit"]


@pytest.mark.asyncio
async def test_runs_in_several_threads_share_one_lifetime() -> None:
    log: list[str] = []
    gate = threading.Barrier(3)
    resources = Resources(a=Tracked("a", log))

    async def meet(ctx: Any) -> str:
        await asyncio.get_running_loop().run_in_executor(None, gate.wait)
        return "done"

    workflow = Workflow[str](resources=resources).register("meet", meet).add_exit_state("done")
    threads = [threading.Thread(target=lambda: asyncio.run(workflow.orchestrate("meet"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.get_running_loop().run_in_executor(None, thread.join)
    assert log == ["setup a", "teardown a"]


@pytest.mark.asyncio
async def test_look_ups_are_typed_and_say_what_is_there() -> None:
    resources = Resources({"number": 5}, text="a")
    assert resources.get("number", int) == 5
    assert resources["text"] == "a"
    assert list(resources) == ["number", "text"]
    assert "text" in resources
    assert len(resources) == 2
    with pytest.raises(ResourceNotFoundError, match="no resource 'other'; the known ones: number, text"):
        resources.get("other")
    with pytest.raises(ResourceTypeMismatchError, match="'number' is a int, not a str"):
        resources.get("number", str)
    assert repr(resources) == "Resources(number, text)"
    with pytest.raises(ConfigurationError):
        Resources({5: "x"})  # type: ignore[dict-item]  # wrong, on purpose


@pytest.mark.asyncio
async def test_health_asks_those_that_can_answer_and_survives_those_that_fail() -> None:
    class Sick(Resource):
        async def health(self) -> Health:
            return Health.degraded("slow")

    class Broken(Resource):
        async def health(self) -> Health:
            raise ValueError("secret")

    found = await Resources(a=Sick(), b=Broken(), c=5, d=Resource()).health()
    assert found == {
        "a": Health("degraded", "slow"),
        "b": Health("unhealthy", "ValueError"),
        "c": Health.healthy(),
        "d": Health.healthy(),
    }


def test_the_memory_store_keeps_values_and_names_what_is_wrong() -> None:
    store = MemoryStore()
    store.put("a", 1)
    store.append("list", 1)
    store.append("list", 2)
    assert (store.get("a", int), store.get("list"), store.keys(), len(store), "a" in store) == (1, [1, 2], ["a", "list"], 2, True)
    with pytest.raises(StoreError, match="key 'none' not found in store"):
        store.get("none")
    with pytest.raises(StoreError, match="holds a int, not a str"):
        store.get("a", str)
    with pytest.raises(StoreError, match="holds a int, not a list"):
        store.append("a", 2)
    assert store.get("a") == 1
    store.remove("a")
    store.remove("a")
    store.clear()
    assert len(store) == 0


def test_the_memory_store_loses_nothing_among_threads() -> None:
    store = MemoryStore()
    threads = [threading.Thread(target=lambda: [store.append("k", n) for n in range(200)]) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.get("k", list)) == 1000
