"""A run as log lines: which level says what, what a record carries, and what no line ever holds."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from cano import (
    All,
    AnyOf,
    CancellationToken,
    CompensatableTask,
    ConfigurationError,
    DoNotRetry,
    FixedRetry,
    MemoryCheckpointStore,
    Resource,
    SkipAndContinue,
    Split,
    Task,
    TaskConfig,
    TaskExecutionError,
    Workflow,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)
from cano.observe.logs import LoggingObserver
from cano.observer import Retried
from tests.streams import Probe, failing, machine, numbers, run, then_silence

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Undone(CompensatableTask[str, int]):
    """A step whose compensation may fail."""

    def __init__(self, bad: bool) -> None:
        self.bad = bad

    async def run(self, ctx: Any) -> tuple[str, int]:
        return "fail", 1

    async def compensate(self, ctx: Any, output: int) -> None:
        if self.bad:
            raise ValueError


def lines_of(caplog: Any) -> list[Any]:
    return [record for record in caplog.records if record.name == "cano.run"]


def told(caplog: Any) -> list[tuple[str, str]]:
    return [(record.levelname, record.cano_event) for record in lines_of(caplog)]


async def test_a_run_that_goes_well_is_two_lines_of_its_life_and_its_steps_are_for_debugging(caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    await run(Probe(numbers(1, 2)), MemoryCheckpointStore(), observers=[LoggingObserver()], name="flow")
    lines = told(caplog)
    assert [line for line in lines if line[0] != "DEBUG"] == [("INFO", "run_start"), ("INFO", "run_end")]
    assert {name for level, name in lines if level == "DEBUG"} == {
        "state_enter",
        "checkpoint",
        "task_start",
        "window",
        "task_success",
    }
    messages = [record.getMessage() for record in lines_of(caplog)]
    assert messages[0] == "flow r: started"
    assert messages[1] == "flow r in work: entered"
    assert "flow r in work: row 0 (STATE_ENTRY) is durable" in messages
    assert messages[-1].startswith("flow r in done: completed after ")


async def test_a_record_carries_what_it_tells(caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    await run(Probe(numbers(1, 2)), MemoryCheckpointStore(), observers=[LoggingObserver()], name="flow")
    window = next(record for record in lines_of(caplog) if record.cano_event == "window")
    assert (window.cano_workflow, window.cano_workflow_id, window.cano_state) == ("flow", "r", "work")
    assert (window.cano_task, window.cano_count, window.cano_stopped) == ("Probe", 2, False)
    assert len({record.cano_run for record in lines_of(caplog)}) == 1
    assert {key for record in lines_of(caplog) for key in vars(record) if key.startswith("cano_")} >= {"cano_kind", "cano_row"}


async def test_what_was_hoped_for_otherwise_is_a_warning_and_a_failed_run_one_error(caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    observers, config = [LoggingObserver()], TaskConfig(retry=FixedRetry(1, 0))

    async def work(ctx: Any) -> str:
        raise ValueError

    class Work(Task[str]):
        async def run(self, ctx: Any) -> str:
            raise ValueError

    task = Work()
    task.config = config
    with pytest.raises(Exception, match="failed 2 times"):
        await run(task, observers=observers)
    assert told(caplog) == [
        ("INFO", "run_start"),
        ("WARNING", "retry"),
        ("WARNING", "task_failure"),
        ("ERROR", "run_end"),
    ]
    ended = lines_of(caplog)[-1]
    assert (ended.cano_outcome, ended.cano_error_type, ended.cano_category) == (
        "failed",
        "RetryExhaustedError",
        "retry_exhausted",
    )
    failure = lines_of(caplog)[-2]
    assert (failure.cano_error_type, failure.cano_cause_type) == ("RetryExhaustedError", "ValueError")
    caplog.clear()
    await run(Probe(numbers(1, 3), process=failing(2), on_item_error=SkipAndContinue()), observers=observers)
    assert told(caplog) == [("INFO", "run_start"), ("WARNING", "item_dropped"), ("INFO", "run_end")]


async def test_a_stop_is_one_warning_and_only_a_timeout_ends_in_an_error(caplog: Any) -> None:
    caplog.set_level(logging.INFO)
    token = CancellationToken()
    with pytest.raises(WorkflowCancelledError):
        await run(Probe(numbers(1, 9), process=lambda item: token.cancel()), token=token, observers=[LoggingObserver()])
    assert told(caplog) == [("INFO", "run_start"), ("WARNING", "cancelled"), ("INFO", "run_end")]
    caplog.clear()
    with pytest.raises(WorkflowTimeoutError):
        await run(Probe(then_silence(1)), observers=[LoggingObserver()], total_timeout=0.01)
    assert told(caplog) == [("INFO", "run_start"), ("WARNING", "workflow_timeout"), ("ERROR", "run_end")]


async def test_the_branch_a_join_cancelled_is_no_warning_and_the_one_that_failed_is(caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)

    async def quick(ctx: Any) -> int:
        return 1

    async def slow(ctx: Any) -> int:
        await asyncio.Event().wait()
        return 2

    async def bad(ctx: Any) -> int:
        raise DoNotRetry

    flow = Workflow[str](observers=[LoggingObserver()]).add_exit_state("done")
    await flow.register("split", Split([bad, slow, quick], join=AnyOf(), then="done")).orchestrate("split")
    levels = {record.cano_task: record.levelname for record in lines_of(caplog) if record.cano_event == "task_failure"}
    assert levels == {"bad[0]": "WARNING", "slow[1]": "DEBUG"}


@pytest.mark.parametrize("bad", [False, True])
async def test_a_step_undone_is_a_warning_and_one_that_could_not_be_an_error(bad: bool, caplog: Any) -> None:
    caplog.set_level(logging.INFO)

    async def fail(ctx: Any) -> str:
        raise DoNotRetry

    flow = Workflow[str](observers=[LoggingObserver()], checkpoint_store=MemoryCheckpointStore())
    flow.register("step", Undone(bad)).register("fail", fail).add_exit_state("done")
    with pytest.raises(Exception, match="rollback" if bad else "fail"):
        await flow.orchestrate("step", workflow_id="r")
    assert ("ERROR" if bad else "WARNING", "compensation") in told(caplog)


async def test_a_resume_a_clear_that_failed_and_a_teardown_that_failed_have_their_lines(caplog: Any) -> None:
    class Sticky(MemoryCheckpointStore):
        async def clear(self, workflow_id: str) -> None:
            raise OSError

    class Bad(Resource):
        async def teardown(self) -> None:
            raise ValueError

    store = Sticky()
    with pytest.raises(TaskExecutionError):
        await run(Probe(numbers(1, 3), process=failing(2)), store)
    caplog.set_level(logging.INFO)
    flow = machine(Probe(numbers(1, 3)), store, observers=[LoggingObserver()], resources={"bad": Bad()})
    await flow.resume_from("r")
    assert told(caplog) == [
        ("INFO", "run_start"),
        ("INFO", "resume"),
        ("WARNING", "checkpoint_clear_failed"),
        ("WARNING", "teardown_failed"),
        ("INFO", "run_end"),
    ]
    resumed, failed = (
        next(record for record in lines_of(caplog) if record.cano_event == name) for name in ("resume", "teardown_failed")
    )
    assert resumed.cano_sequence == 0
    assert (failed.cano_resource, failed.cano_error_type) == ("bad", "ValueError")


async def test_a_logger_of_ones_own_is_used_and_nothing_is_built_for_a_level_that_is_off() -> None:
    class Untouchable:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    own = logging.getLogger("mine")
    own.setLevel(logging.ERROR)
    observer = LoggingObserver(own)
    for name in (
        "on_run_start",
        "on_resume",
        "on_state_enter",
        "on_task_start",
        "on_task_success",
        "on_retry",
        "on_circuit_open",
    ):
        getattr(observer, name)(Untouchable())
    for name in ("on_checkpoint", "on_window", "on_item_dropped", "on_workflow_timeout", "on_cancelled", "on_teardown_failed"):
        getattr(observer, name)(Untouchable())
    records: list[logging.LogRecord] = []
    own.addFilter(lambda record: records.append(record) is not None)  # keeps the record and lets nothing through
    own.setLevel(logging.WARNING)
    observer.on_retry(
        Retried(
            run=1, workflow_id="r", workflow="a\nb", state="s\x1b[0m", task="t", attempt=1, delay=0.5, error_type="ValueError"
        )
    )
    (record,) = records
    assert record.name == "mine"
    assert record.getMessage() == "a\\nb r in s\\x1b[0m: t failed in attempt 1 with ValueError, and is tried again in 0.500 s"


async def test_a_logger_must_be_one() -> None:
    for wrong in ("cano", logging.LoggerAdapter(logging.getLogger("mine"), {})):
        with pytest.raises(ConfigurationError):
            LoggingObserver(wrong)  # type: ignore[arg-type]  # wrong, on purpose


async def test_all_branches_are_told_of_when_all_go_well(caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)

    async def one(ctx: Any) -> int:
        return 1

    flow = Workflow[str](observers=[LoggingObserver()]).add_exit_state("done")
    await flow.register("split", Split([one, one], join=All(), then="done")).orchestrate("split")
    ended = [record.cano_task for record in lines_of(caplog) if record.cano_event == "task_success"]
    assert ended == ["one[0]", "one[1]", "split"]
