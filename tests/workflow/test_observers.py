"""What observers are told, in which order; and that nothing anyone is told holds a user's value."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cano import (
    All,
    AnyOf,
    CancellationToken,
    ConfigurationError,
    DoNotRetry,
    FixedRetry,
    MemoryCheckpointStore,
    Resource,
    RouterTask,
    RunOwnedError,
    SkipAndContinue,
    Split,
    Stop,
    StreamTask,
    TaskConfig,
    TaskExecutionError,
    Window,
    Workflow,
    WorkflowCancelledError,
    WorkflowObserver,
    WorkflowTimeoutError,
)
from cano.testing import RecordingObserver
from tests.streams import Probe, machine, numbers, run, then_silence

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


async def test_a_plain_run_is_told_in_order() -> None:
    recorder = RecordingObserver()

    async def work(ctx: Any) -> str:
        return "done"

    await run(work, MemoryCheckpointStore(), observers=[recorder], name="flow")
    assert recorder.names == [
        "run_start",
        "state_enter",
        "checkpoint",
        "task_start",
        "task_success",
        "state_enter",
        "checkpoint",
        "run_end",
    ]
    events = recorder.events
    assert {event.workflow_id for event in events} == {"r"}
    assert {event.workflow for event in events} == {"flow"}
    assert [event.state for event in events] == [None, "work", "work", "work", "work", "done", "done", "done"]
    assert events[-1].outcome == "completed"
    with pytest.raises(AttributeError):
        events[0].state = "changed"


async def test_a_stream_is_told_of_windows_drops_and_commits() -> None:
    recorder = RecordingObserver()

    def process(item: int) -> None:
        if item == 3:
            raise ValueError

    await run(
        Probe(
            numbers(1, 6), process=process, on_item_error=SkipAndContinue(), flush=lambda o: Stop("stopped") if 5 in o else None
        ),
        MemoryCheckpointStore(),
        observers=[recorder],
    )
    middle = recorder.names[4:-4]
    assert middle == ["checkpoint", "window", "item_dropped", "checkpoint", "window"]
    windows = recorder.of("window")
    assert [(event.count, event.stopped) for event in windows] == [(2, False), (2, True)]
    assert all(event.seconds >= 0 for event in windows)
    dropped = next(event for event in recorder.of("item_dropped"))
    assert (dropped.error_type, dropped.dead_lettered, dropped.task) == ("ValueError", False, "Probe")


async def test_a_cancel_is_told_once_after_the_failure_of_its_task_and_a_timeout_likewise() -> None:
    token, recorder = CancellationToken(), RecordingObserver()
    with pytest.raises(WorkflowCancelledError):
        await run(Probe(numbers(1, 9), process=lambda item: token.cancel()), token=token, observers=[recorder])
    assert recorder.names[-4:] == ["window", "task_failure", "cancelled", "run_end"]
    assert recorder.events[-1].outcome == "cancelled"
    recorder.clear()
    with pytest.raises(WorkflowTimeoutError):
        await run(Probe(then_silence(1)), observers=[recorder], total_timeout=0.01)
    assert recorder.names[-3:] == ["task_failure", "workflow_timeout", "run_end"]
    assert recorder.events[-1].outcome == "timeout"
    assert recorder.events[-2].limit == 0.01
    recorder.clear()
    with pytest.raises(WorkflowCancelledError):
        await run(Probe(numbers(1, 9)), token=token, observers=[recorder])
    assert recorder.names == ["run_start", "cancelled", "run_end"]
    recorder.clear()
    running = asyncio.create_task(run(Probe(then_silence(1)), observers=[recorder]))
    await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert recorder.names[-3:] == ["task_failure", "cancelled", "run_end"]


async def test_failures_resumes_crashes_and_clear_failures_are_told() -> None:
    class Sticky(MemoryCheckpointStore):
        async def clear(self, workflow_id: str) -> None:
            raise OSError

    class Bad(Resource):
        async def teardown(self) -> None:
            raise ValueError

    store, recorder = Sticky(), RecordingObserver()

    def failing(item: int) -> None:
        raise ValueError

    with pytest.raises(TaskExecutionError) as caught:
        await run(Probe(numbers(1, 3), process=failing), store, observers=[recorder])
    assert recorder.names[-2:] == ["task_failure", "run_end"]
    assert recorder.events[-2].error is caught.value
    assert recorder.events[-1].outcome == "failed"
    recorder.clear()
    flow = machine(Probe(numbers(1, 3)), store, observers=[recorder], resources={"bad": Bad()})
    assert await flow.resume_from("r") == "done"
    assert recorder.names[:3] == ["run_start", "resume", "state_enter"]
    assert recorder.events[0].resumed
    assert recorder.events[1].sequence == 0
    assert recorder.names[-3:] == ["checkpoint_clear_failed", "teardown_failed", "run_end"]
    recorder.clear()

    def crash(item: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run(Probe(numbers(1, 3), process=crash), observers=[recorder])
    assert recorder.events[-1].outcome == "crashed"


async def test_an_event_names_its_execution_its_kind_of_task_and_how_long_it_took() -> None:
    recorder = RecordingObserver()
    store, gate = MemoryCheckpointStore(), asyncio.Event()

    async def wait(ctx: Any) -> str:
        await gate.wait()
        return "done"

    flow = machine(wait, store, observers=[recorder])
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r"))
    while "task_start" not in recorder.names:
        await asyncio.sleep(0)
    with pytest.raises(RunOwnedError):
        await flow.resume_from("r")
    refused = recorder.events[-1]
    assert (refused.outcome, refused.error_type, refused.category) == ("failed", "RunOwnedError", "checkpoint_store")
    gate.set()
    assert await running == "done"
    ended = recorder.events[-1]
    assert ended.run != refused.run
    assert {event.run for event in recorder.events} == {ended.run, refused.run}
    assert (ended.outcome, ended.error_type, ended.category) == ("completed", None, None)
    started, succeeded = (next(event for event in recorder.of(f"task_{what}")) for what in ("start", "success"))
    assert (started.kind, succeeded.kind) == ("single", "single")
    assert 0 <= succeeded.seconds <= ended.seconds


async def test_the_kind_of_every_task_is_told() -> None:
    recorder = RecordingObserver()

    async def branch(ctx: Any) -> int:
        return 1

    class Route(RouterTask[str]):
        async def route(self, ctx: Any) -> str:
            return "stream"

    flow = Workflow[str](observers=[recorder])
    flow.register("split", Split([branch], join=All(), then="route")).register("route", Route())
    flow.register("stream", Probe(numbers(1, 3))).add_exit_state("done")
    assert await flow.orchestrate("split") == "done"
    kinds = [(event.task, event.kind) for event in recorder.of("task_start")]
    assert kinds == [("split", "split"), ("branch[0]", "branch"), ("Route", "router"), ("Probe", "stream")]
    ends = [(event.task, event.kind) for event in recorder.of("task_success")]
    assert ends == [("branch[0]", "branch"), ("split", "split"), ("Route", "router"), ("Probe", "stream")]


async def test_a_branch_that_the_join_had_no_more_use_for_is_told_as_cancelled_and_one_that_failed_is_not() -> None:
    recorder = RecordingObserver()

    async def quick(ctx: Any) -> int:
        return 1

    async def slow(ctx: Any) -> int:
        await asyncio.Event().wait()
        return 2

    async def bad(ctx: Any) -> int:
        raise DoNotRetry

    split = Split([bad, slow, quick], join=AnyOf(), then="done")
    await Workflow[str](observers=[recorder]).register("split", split).add_exit_state("done").orchestrate("split")
    failures = {event.task: event.error.category for event in recorder.of("task_failure")}
    assert failures == {"bad[0]": "task_execution", "slow[1]": "cancelled"}


async def test_the_retries_of_an_item_are_told() -> None:
    for in_flight in (1, 2):
        recorder, failures = RecordingObserver(), [ValueError(), ValueError()]

        def process(item: int, failures: list[ValueError] = failures) -> None:
            if item == 2 and failures:
                raise failures.pop()

        await run(
            Probe(numbers(1, 3), process=process, item_retry=FixedRetry(3, 0), max_in_flight=in_flight), observers=[recorder]
        )
        retries = recorder.of("retry")
        assert [(event.task, event.attempt, event.error_type) for event in retries] == [
            ("Probe", 1, "ValueError"),
            ("Probe", 2, "ValueError"),
        ]


async def test_an_observer_that_raises_changes_nothing_and_the_next_is_told_all() -> None:
    """BR-136."""

    class Broken(WorkflowObserver):
        def __getattribute__(self, name: str) -> Any:
            if name.startswith("on_"):

                def boom(event: Any) -> None:
                    raise ValueError("secret")

                return boom
            return super().__getattribute__(name)

    reference, second = RecordingObserver(), RecordingObserver()
    for observers in ([reference], [Broken(), second]):
        store = MemoryCheckpointStore()
        probe = Probe(numbers(1, 5))
        assert await run(probe, store, observers=observers) == "done"
        assert probe.items == [1, 2, 3, 4, 5]
    assert second.names == reference.names


async def test_an_observer_must_be_one_and_not_be_async() -> None:
    class Async(WorkflowObserver):
        async def on_window(self, event: Any) -> None:  # type: ignore[override]  # wrong, on purpose
            pass

    for observer in (object(), Async(), RecordingObserver):
        with pytest.raises(ConfigurationError):
            Workflow[str](observers=[observer])  # type: ignore[list-item]  # wrong, on purpose


class Secretive(StreamTask[str, dict[str, str], dict[str, str], dict[str, str]]):
    """Everything a user has holds a secret."""

    window = Window(count=2)
    config = TaskConfig(attempt_timeout=1)

    def __init__(self, place: str) -> None:
        self.place = place
        self.sick = True

    def _maybe(self, place: str) -> None:
        if self.place == place and self.sick:
            raise KeyError("secret-error")

    async def open(self, ctx: Any, cursor: Any) -> AsyncIterator[dict[str, str]]:
        self._maybe("open")
        for number in range(4):
            yield {"password": f"secret-item-{number}"}
        self._maybe("read")

    async def process_item(self, ctx: Any, item: dict[str, str]) -> Any:
        self._maybe("process")
        ctx.data["secret-key"] = "secret-data"
        if self.place == "pair":
            return "secret-output"
        if self.place == "cursor":
            return item, {"secret-cursor": ("secret",)}
        return {"out": "secret-output"}, {"cursor": "secret-cursor"}

    async def flush_window(self, ctx: Any, outputs: Any) -> Any:
        self._maybe("flush")
        if self.place == "data":
            ctx.data["bad"] = {"secret-data"}
        return "secret-decision" if self.place == "decision" else None

    async def on_close(self, ctx: Any, reason: Any) -> Any:
        self._maybe("close")
        return {"secret": "secret-state"} if self.place == "state" else "done"


@pytest.mark.parametrize(
    "place", ["open", "read", "process", "pair", "cursor", "flush", "decision", "data", "close", "state", "none"]
)
async def test_no_message_log_line_or_event_holds_a_users_value(place: str, caplog: Any, tmp_path: Any) -> None:
    """BR-78."""
    from cano import SqliteCheckpointStore

    caplog.set_level(logging.DEBUG)
    recorder, store = RecordingObserver(), SqliteCheckpointStore(tmp_path / "runs.db")
    task = Secretive(place)
    flow = machine(task, store, observers=[recorder], resources={"r": "secret-resource"})
    try:
        await flow.orchestrate("work", workflow_id="r", data={"start": "secret-data"})
        assert place == "none"
    except Exception as error:
        assert "secret" not in str(error)
        assert "secret" not in repr(error)
        task.sick = False
        if place in ("open", "read", "process", "flush", "close"):
            await flow.resume_from("r")
    assert "secret" not in caplog.text
    for event in recorder.events:
        assert "secret" not in repr(event)
    for row in await store.load_run("r"):
        assert "secret" not in repr(row)
    await store.close()
