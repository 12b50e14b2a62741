"""`ctx.data`: committed with every row, restored by a resume, isolated between runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel

from cano import (
    ConfigurationError,
    Context,
    MemoryCheckpointStore,
    StreamTask,
    TaskExecutionError,
    Window,
    Workflow,
)
from cano.testing import Crashed
from tests.streams import Probe, numbers

pytestmark = pytest.mark.asyncio


class Totals(BaseModel):
    count: int = 0
    names: list[str] = []


@dataclass
class Plain:
    count: int = 0
    names: list[str] = field(default_factory=list)


class Counting(Probe):
    """Counts in `ctx.data`, and crashes when asked to."""

    crash_at = 0

    async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
        if item == self.crash_at:
            raise Crashed
        if isinstance(ctx.data, dict):
            ctx.data["count"] += 1
        elif isinstance(ctx.data, int):
            ctx.data += 1
        else:
            ctx.data.count += 1
            ctx.data.names.append(f"n{item}")
        return item, item

    async def on_close(self, ctx: Context, reason: Any) -> str:
        self.final = ctx.data
        return "done"


def flow(task: Any, store: Any = None, kind: Any = None) -> Workflow[str, Any]:
    return Workflow[str, Any](checkpoint_store=store, data_type=kind).register("work", task).add_exit_state("done")


@pytest.mark.parametrize(
    ("kind", "data"), [(Totals, Totals()), (Plain, Plain()), (None, {"count": 0}), (None, 0), (dict[str, int], {"count": 0})]
)
async def test_data_and_cursor_never_disagree_through_crashes(kind: Any, data: Any) -> None:
    store = MemoryCheckpointStore()
    task = Counting(numbers(1, 11), window=Window(count=3))
    task.crash_at = 5
    workflow = flow(task, store, kind)
    with pytest.raises(Crashed):
        await workflow.orchestrate("work", workflow_id="r", data=data)
    task.crash_at = 9
    with pytest.raises(Crashed):
        await workflow.resume_from("r")
    task.crash_at = 0
    assert await workflow.resume_from("r") == "done"
    assert type(task.final) is type(data)
    count = task.final["count"] if isinstance(data, dict) else task.final if isinstance(data, int) else task.final.count
    assert count == 11
    if kind in (Totals, Plain):
        assert task.final.names == [f"n{n}" for n in range(1, 12)]
        assert data.names == []


async def test_the_type_may_come_from_the_workflows_subscript_or_subclass() -> None:
    class Typed(Workflow[str, Totals]):
        pass

    for make in (lambda: Workflow[str, Totals](), lambda: Typed()):
        task = Counting(numbers(1, 3))
        workflow = make().register("work", task).add_exit_state("done")
        assert await workflow.orchestrate("work", data=Totals()) == "done"
        assert task.final == Totals(count=3, names=["n1", "n2", "n3"])


async def test_every_state_entry_stores_the_data() -> None:
    store = MemoryCheckpointStore()
    seen: list[Any] = []

    async def first(ctx: Context) -> str:
        ctx.data["first"] = True
        return "second"

    async def second(ctx: Context) -> str:
        seen.append(dict(ctx.data))
        ctx.data["second"] = True
        if len(seen) == 1:
            raise Crashed
        return "done"

    workflow = flow(second, store)
    workflow = Workflow[str](checkpoint_store=store).register("first", first).register("second", second).add_exit_state("done")
    with pytest.raises(Crashed):
        await workflow.orchestrate("first", workflow_id="r", data={})
    assert await workflow.resume_from("r") == "done"
    assert seen == [{"first": True}, {"first": True}]


@pytest.mark.parametrize("data", [object(), (1, 2), {1: 2}, {"a": {1, 2}}, float("nan"), Totals(), {"x": object()}])
async def test_data_that_would_not_come_back_is_refused_before_anything_runs(data: Any) -> None:
    store = MemoryCheckpointStore()
    task = Counting(numbers(1, 3))
    with pytest.raises(ConfigurationError, match=r"Workflow\[State, Data\]"):
        await flow(task, store).orchestrate("work", workflow_id="r", data=data)
    assert task.opened == []
    assert await store.list_runs() == []


async def test_data_of_another_type_than_declared_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Totals"):
        await flow(Counting(numbers(1, 3)), kind=Totals).orchestrate("work", data={"count": 0})


async def test_data_that_became_unstorable_fails_the_window_and_names_the_type_only() -> None:
    class Spoils(Counting):
        async def flush_window(self, ctx: Context, outputs: list[int]) -> None:
            ctx.data["count"] = {"secret-value"}

    store = MemoryCheckpointStore()
    with pytest.raises(TaskExecutionError, match="of type dict") as caught:
        await flow(Spoils(numbers(1, 3)), store).orchestrate("work", workflow_id="r", data={"count": 0})
    assert "secret-value" not in str(caught.value)
    assert [row.blob for row in await store.load_run("r")] == [None]


async def test_stored_data_that_cannot_be_read_is_an_error_and_nothing_is_written() -> None:
    store = MemoryCheckpointStore()
    task = Counting(numbers(1, 5))
    task.crash_at = 4
    with pytest.raises(Crashed):
        await flow(task, store).orchestrate("work", workflow_id="r", data={"count": 0})
    rows = await store.load_run("r")
    with pytest.raises(TaskExecutionError, match=r"ctx\.data cannot be read"):
        await flow(task, store, int).resume_from("r")
    assert await store.load_run("r") == rows


async def test_data_is_none_when_not_given_and_may_be_set_later() -> None:
    class Late(StreamTask[str, int, int, int]):
        def open(self, ctx: Context, cursor: int | None) -> Any:
            assert (ctx.data is None) == (cursor is None)
            return range(1 if cursor is None else cursor + 1, 5)

        def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
            if item == 3 and ctx.data == {"seen": 2} and "again" not in marks:
                marks.append("again")
                raise Crashed
            ctx.data = {"seen": item}
            return item, item

        def flush_window(self, ctx: Context, outputs: list[int]) -> None:
            pass

        def on_close(self, ctx: Context, reason: Any) -> str:
            marks.append(ctx.data)
            return "done"

    marks: list[Any] = []
    store = MemoryCheckpointStore()
    workflow = flow(Late(), store)
    with pytest.raises(Crashed):
        await workflow.orchestrate("work", workflow_id="r")
    assert await workflow.resume_from("r") == "done"
    assert marks == ["again", {"seen": 4}]
