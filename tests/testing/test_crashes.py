"""A workflow that is killed at each of its appends, and what is handed back."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from cano import ConfigurationError, SqliteCheckpointStore, Window, Workflow
from cano.testing import Crashed, every_crash_point
from tests.sagas import Plain, raises, saga
from tests.streams import Probe, numbers

pytestmark = pytest.mark.asyncio


class Copy(Probe):
    """Writes items 1 to 5 to a list, each once unless it is told to write in `process`."""

    def __init__(self, sink: list[int], *, early: bool = False, **attributes: Any) -> None:
        super().__init__(
            numbers(1, 5), process=sink.append if early else None, flush=None if early else sink.extend, **attributes
        )


def copying(sink: list[int], **attributes: Any) -> Workflow[str]:
    return Workflow[str]().register("work", Copy(sink, **attributes)).add_exit_state("done")


async def test_a_stream_loses_nothing_and_repeats_only_the_window_that_was_flushed_but_not_committed() -> None:
    points = await every_crash_point(copying, "work")
    assert [(point.append, point.when) for point in points] == [
        (0, "never"),
        *itertools.product(range(1, 6), ("before", "after")),
    ]
    assert {point.end for point in points} == {"done"}
    assert [point.error for point in points] == [None] * 11
    assert {str(point): point.seen for point in points if point.seen != [1, 2, 3, 4, 5]} == {
        "killed before append 2 was written": [1, 2, 1, 2, 3, 4, 5],
        "killed before append 3 was written": [1, 2, 3, 4, 3, 4, 5],
        "killed before append 4 was written": [1, 2, 3, 4, 5, 5],
    }
    assert [point.observer.names.count("run_start") for point in points] == [1, *[2] * 10]
    assert [point.observer.of("run_end")[0].outcome for point in points[1:]] == ["crashed"] * 10


async def test_where_to_kill_can_be_chosen() -> None:
    points = await every_crash_point(copying, "work", between=["after"])
    assert [point.when for point in points] == ["never", *["after"] * 5]
    assert all(point.seen == [1, 2, 3, 4, 5] for point in points)


async def test_effects_of_a_hook_that_may_run_again_are_seen_twice() -> None:
    points = await every_crash_point(lambda sink: copying(sink, early=True), "work")
    assert points[0].seen == [1, 2, 3, 4, 5]
    assert any(len(point.seen) > 5 for point in points)


async def test_what_only_the_process_remembers_is_not_carried_over_a_crash() -> None:
    class Forgetful(Copy):
        """Keeps its outputs on itself until the end, against the rules."""

        async def flush_window(self, ctx: Any, outputs: list[int]) -> None:
            self.flushed.append(outputs)

        async def on_close(self, ctx: Any, reason: Any) -> str:
            self.sink.extend(self.items)
            return "done"

    def forgetful(sink: list[int]) -> Workflow[str]:
        task = Forgetful(sink)
        task.sink = sink
        return Workflow[str]().register("work", task).add_exit_state("done")

    points = await every_crash_point(forgetful, "work")
    assert points[0].seen == [1, 2, 3, 4, 5]
    assert [3, 4, 5] in [point.seen for point in points], "a crash loses what was not written down"


async def test_a_workflow_itself_may_be_given_and_is_left_as_it_was() -> None:
    sink: list[int] = []

    def cleared() -> list[int]:
        sink.clear()
        return sink

    flow = copying(sink)
    points = await every_crash_point(flow, "work", outside=cleared)
    assert [point.seen for point in points] == [point.seen for point in await every_crash_point(copying, "work")]
    assert (flow.checkpoint_store, flow.observers) == (None, ())


async def test_a_transactional_stream_flushes_each_item_once_whatever_the_crash(tmp_path: Path) -> None:
    counter = itertools.count()

    async def write(ctx: Any, outputs: list[int]) -> None:
        await ctx.transaction.execute("CREATE TABLE IF NOT EXISTS item (number)")
        await ctx.transaction.executemany("INSERT INTO item VALUES (?)", [(output,) for output in outputs])

    class Exact(Probe):
        transactional = True

        async def flush_window(self, ctx: Any, outputs: list[int]) -> None:
            await write(ctx, outputs)

        async def on_close(self, ctx: Any, reason: Any) -> str:
            return "read"

    def exact(sink: list[int]) -> Workflow[str]:
        async def read(ctx: Any) -> str:
            async with SqliteCheckpointStore(tmp_path / f"{path[-1]}.db").transaction("other") as transaction:
                rows = await transaction.connection.execute_fetchall("SELECT number FROM item ORDER BY number")
            sink[:] = [number for (number,) in rows]
            return "done"

        return Workflow[str]().register("work", Exact(numbers(1, 5))).register("read", read).add_exit_state("done")

    path: list[int] = []

    def store() -> SqliteCheckpointStore:
        path.append(next(counter))
        return SqliteCheckpointStore(tmp_path / f"{path[-1]}.db")

    points = await every_crash_point(exact, "work", store=store)
    assert len(points) > 8
    for point in points:
        assert (point.end, point.seen) == ("done", [1, 2, 3, 4, 5]), point


async def test_a_run_that_fails_hands_back_its_error_and_every_step_is_undone_once() -> None:
    points = await every_crash_point(lambda log: saga(log, last=raises(KeyError())), "a")
    assert points[0].seen == ["+A", "+B", "+C", "last", "-C 3", "-B 2", "-A 1"]
    assert len(points) > 12
    for point in points:
        assert point.end is None
        assert point.error is not None, point
        for name in "ABC":
            assert sum(entry.startswith(f"-{name}") for entry in point.seen) >= 1, point


async def test_ctx_data_is_the_runs() -> None:
    async def add(ctx: Any) -> str:
        ctx.data["total"] += 1
        return "show"

    def adding(sink: list[int]) -> Workflow[str]:
        flow = Workflow[str]().register("add", add).add_exit_state("done")
        return flow.register("show", Plain([], "show", "done", lambda ctx: sink.append(ctx.data["total"])))

    for point in await every_crash_point(adding, "add", data={"total": 6}):
        assert set(point.seen) == {7}, point


async def test_a_run_that_does_not_repeat_itself_is_refused() -> None:
    runs = itertools.count()

    def shrinking(sink: list[int]) -> Workflow[str]:
        window = Window(count=1 if next(runs) == 0 else 5)
        return copying(sink, window=window)

    with pytest.raises(AssertionError, match="did not come to append"):
        await every_crash_point(shrinking, "work")


async def test_a_crash_of_ones_own_is_not_taken_for_a_kill() -> None:
    with pytest.raises(KeyboardInterrupt):
        await every_crash_point(lambda sink: copying(sink, close=raises(KeyboardInterrupt())), "work")
    with pytest.raises(Crashed):
        await every_crash_point(lambda sink: copying(sink, close=raises(Crashed())), "work")


@pytest.mark.parametrize(
    "between", ["before", "after", [], ("befor",), ("never",), [None], ("after", 5), iter(["after"]), None, 5]
)
async def test_anything_but_a_collection_of_before_and_after_is_refused(between: Any) -> None:
    with pytest.raises(ConfigurationError, match="between must be a collection"):
        await every_crash_point(copying, "work", between=between)


async def test_a_set_of_moments_is_as_good_as_a_tuple() -> None:
    points = await every_crash_point(copying, "work", between={"after", "before"})
    assert [point.when for point in points] == ["never", *["before", "after"] * 5]


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ({"initial": "nope"}, "nope"),
        ({"workflow": lambda sink: Workflow[str]().add_exit_state("done")}, "no registered state handlers"),
        ({"workflow_id": ""}, "workflow_id must be 1 to 255"),
        ({"workflow_id": 5}, "workflow_id must be a str"),
        ({"workflow_id": "x" * 255}, "workflow_id must be 1 to 255"),
        ({"data": object()}, "ctx.data"),
        ({"workflow": 5}, "a Workflow, or a function that builds one, is needed, not a int"),
        ({"workflow": lambda sink: None}, "must return a Workflow, not a NoneType"),
        ({"outside": []}, "outside must be a function"),
    ],
)
async def test_what_is_wrong_with_the_call_is_what_it_says(arguments: dict[str, Any], cause: str) -> None:
    with pytest.raises(ConfigurationError, match=cause):
        await every_crash_point(**{"workflow": copying, "initial": "work", **arguments})


async def test_an_async_function_where_a_plain_one_is_wanted_is_refused() -> None:
    async def later(*given: Any) -> Any: ...

    with pytest.raises(ConfigurationError, match="the function that builds the workflow must be a plain function"):
        await every_crash_point(later, "work")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ConfigurationError, match="outside must be a plain function"):
        await every_crash_point(lambda sink: copying([]), "work", outside=later)


async def test_a_workflow_without_outside_has_seen_nothing_that_could_pass_for_right() -> None:
    points = await every_crash_point(copying([]), "work")
    assert [(point.end, point.seen) for point in points] == [("done", None)] * 11
