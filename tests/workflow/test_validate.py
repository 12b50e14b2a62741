"""Bad definitions: refused at the earliest moment, with the remedy, all problems at once."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from cano import (
    CancellationToken,
    ConfigurationError,
    MemoryCheckpointStore,
    RetryOnError,
    StreamTask,
    Task,
    TaskConfig,
    Window,
    Workflow,
)
from tests.streams import Probe, machine, numbers


async def work(ctx: Any) -> str:
    return "done"


def test_every_problem_is_in_one_error() -> None:
    class Transactional(Probe):
        transactional = True

    flow = Workflow[str](aliases={"old": "nowhere"}).register("work", Transactional(numbers(1, 2)))
    with pytest.raises(ConfigurationError) as caught:
        flow.validate()
    for problem in ("no exit states", "transactional", "'old' leads to 'nowhere'"):
        assert problem in str(caught.value)
    with pytest.raises(ConfigurationError, match="no registered state handlers.*no exit states"):
        Workflow[str]().validate()


def test_a_good_definition_is_fine_and_an_unknown_start_is_not() -> None:
    flow = machine(work)
    flow.validate()
    flow.validate("work")
    flow.validate("done")
    with pytest.raises(ConfigurationError, match="initial state elsewhere is neither registered nor an exit state"):
        flow.validate("elsewhere")
    with pytest.raises(ConfigurationError, match="label of a state in use"):
        Workflow[str](aliases={"work": "done"}).register("work", work).add_exit_state("done").validate()


@pytest.mark.asyncio
async def test_a_run_is_refused_before_anything_happens() -> None:
    store = MemoryCheckpointStore()
    with pytest.raises(ConfigurationError, match="no exit states"):
        await Workflow[str](checkpoint_store=store).register("work", work).orchestrate("work", workflow_id="r")
    flow = machine(work, store)
    for call in (
        flow.orchestrate("elsewhere", workflow_id="r"),
        flow.orchestrate(None, workflow_id="r"),  # type: ignore[arg-type]  # wrong, on purpose
        flow.orchestrate("work", workflow_id="r", if_exists="perhaps"),  # type: ignore[arg-type]  # wrong, on purpose
        flow.orchestrate("work", workflow_id="r", token=CancellationToken),  # type: ignore[arg-type]  # wrong, on purpose
    ):
        with pytest.raises(ConfigurationError):
            await call
    assert await store.list_runs() == []


def test_a_class_that_misses_hooks_is_refused_with_their_names() -> None:
    class Half(StreamTask[str, int, int, int]):
        async def open(self, ctx: Any, cursor: Any) -> Any:
            yield 1

        async def process_item(self, ctx: Any, item: int) -> tuple[int, int]:
            return item, item

    class Idle(Task[str]):
        pass

    with pytest.raises(ConfigurationError, match="Half must define flush_window, on_close"):
        Workflow[str]().register("work", Half())  # type: ignore[abstract]  # wrong, on purpose
    with pytest.raises(ConfigurationError, match="Idle must define run"):
        Workflow[str]().register("work", Idle())  # type: ignore[abstract]  # wrong, on purpose


@pytest.mark.parametrize("task", [5, "work", object(), lambda ctx: "done", Probe, len])
def test_what_is_no_task_is_refused(task: Any) -> None:
    with pytest.raises(ConfigurationError):
        Workflow[str]().register("work", task)


def test_a_task_whose_run_is_not_async_is_refused() -> None:
    class Sync(Task[str]):
        def run(self, ctx: Any) -> str:  # type: ignore[override]  # wrong, on purpose
            return "done"

    with pytest.raises(ConfigurationError, match="async def"):
        Workflow[str]().register("work", Sync())


@pytest.mark.parametrize("state", [None, 5, "", ("a",), object()])
def test_what_is_no_state_is_refused(state: Any) -> None:
    with pytest.raises(ConfigurationError, match="Enum member or a non-empty str"):
        Workflow[Any]().register(state, work)
    with pytest.raises(ConfigurationError, match="Enum member or a non-empty str"):
        Workflow[Any]().add_exit_state(state)
    with pytest.raises(ConfigurationError, match="Enum member or a non-empty str"):
        Workflow[Any]().register(state)


@pytest.mark.parametrize(
    "options",
    [
        {"total_timeout": -1},
        {"total_timeout": "5"},
        {"total_timeout": math.nan},
        {"total_timeout": True},
        {"drain_timeout": timedelta(seconds=-1)},
        {"compensation_timeout": -0.1},
        {"workflow_version": -1},
        {"workflow_version": 1.5},
        {"workflow_version": True},
        {"name": ""},
        {"name": 5},
        {"checkpoint_store": object()},
        {"checkpoint_store": "runs.db"},
        {"checkpoint_store": MemoryCheckpointStore},
        {"resources": [1]},
        {"resources": {"": 1}},
        {"aliases": 5},
        {"aliases": {"": "work"}},
        {"aliases": {"old": 5}},
        {"observers": 5},
        {"data_type": 5},
        {"workflow_version": 2**70},
    ],
)
def test_wrong_options_are_refused_by_the_constructor(options: Any) -> None:
    with pytest.raises(ConfigurationError):
        Workflow[str](**options)


@pytest.mark.parametrize(
    "options", [{"total_timeout": timedelta(hours=1)}, {"drain_timeout": None}, {"total_timeout": math.inf}, {"drain_timeout": 0}]
)
def test_durations_may_be_timedeltas_or_none(options: Any) -> None:
    Workflow[str](**options)


@pytest.mark.parametrize(
    "arguments", [{}, {"count": 2.5}, {"count": "2"}, {"count": True}, {"seconds": "1"}, {"seconds": math.nan}, {"seconds": True}]
)
def test_a_window_of_nothing_or_of_nonsense_is_refused(arguments: Any) -> None:
    with pytest.raises(ConfigurationError, match="Window|window"):
        Window(**arguments)


def test_degenerate_windows_are_raised_to_their_floors() -> None:
    assert Window(count=0) == Window(count=1)
    assert Window(seconds=-3).seconds == 0.001
    assert Window(seconds=timedelta(seconds=2)).seconds == 2.0
    assert Window(count=5, seconds=1).count == 5


@pytest.mark.parametrize("value", [-1, 1.5, True, None, "1"])
def test_an_error_budget_is_a_count(value: Any) -> None:
    with pytest.raises(ConfigurationError):
        RetryOnError(value)


@pytest.mark.parametrize("value", [-1, math.nan, "1", True])
def test_an_attempt_timeout_is_a_duration(value: Any) -> None:
    with pytest.raises(ConfigurationError):
        TaskConfig(attempt_timeout=value)


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("window", 5), ("window", Window), ("on_item_error", "skip"), ("transactional", 1), ("config", None), ("name", "")],
)
def test_a_wrong_attribute_of_a_stream_is_refused_at_registration(attribute: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=attribute):
        Workflow[str]().register("work", Probe(numbers(1, 2), **{attribute: value}))


def test_a_cursor_type_that_cannot_be_stored_is_refused_at_registration() -> None:
    class Opaque:
        pass

    class Odd(StreamTask[str, int, int, Opaque]):
        open = process_item = flush_window = on_close = work  # type: ignore[assignment]  # wrong, on purpose

    with pytest.raises(ConfigurationError, match=r"cursor of Odd is declared .*Opaque"):
        Workflow[str]().register("work", Odd())


def test_the_name_of_a_task_is_its_class_unless_it_says_otherwise() -> None:
    class Named(Probe):
        name = "ingest"

    assert Probe(numbers(1, 2)).name == "Probe"
    assert Named(numbers(1, 2)).name == "ingest"
    own = Probe(numbers(1, 2), name="own")
    assert own.name == "own"
    assert Probe.name == "Probe"
