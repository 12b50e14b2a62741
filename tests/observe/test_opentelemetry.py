"""A run as a trace: which spans there are, whose children, what they carry, and where they are the current ones."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from cano import (
    All,
    CancellationToken,
    CheckpointConflictError,
    CompensatableTask,
    DoNotRetry,
    FixedRetry,
    MemoryCheckpointStore,
    RunOwnedError,
    SkipAndContinue,
    Split,
    StreamTask,
    SubWorkflow,
    Task,
    TaskConfig,
    TaskExecutionError,
    Window,
    Workflow,
    WorkflowCancelledError,
    WorkflowObserver,
    WorkflowTimeoutError,
)
from cano.observe.opentelemetry import EVENTS, WINDOWS, OpenTelemetryObserver
from tests.streams import Probe, failing, machine, numbers, run, then_silence, until

ROOT = Path(__file__).parents[2]

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Trace:
    """An observer, and the spans it made, by name."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = provider.get_tracer("test")
        self.observer = OpenTelemetryObserver(self.tracer)

    @property
    def spans(self) -> list[Any]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Any:
        (span,) = self.named(name)
        return span


@pytest.fixture
def traced(caplog: Any) -> Any:
    """Nothing may be left attached, and OpenTelemetry may not complain of a context that is not its own."""
    caplog.set_level(logging.WARNING, "opentelemetry")
    before = context.get_current()
    yield Trace()
    assert context.get_current() is before
    assert [record.getMessage() for record in caplog.records if record.name.startswith("opentelemetry")] == []


def current() -> int:
    return trace.get_current_span().get_span_context().span_id


def events(span: Any) -> list[str]:
    return [event.name for event in span.events]


async def test_a_run_is_a_span_and_so_is_each_visit_and_nothing_else_is(traced: Any) -> None:
    class First(Task[str]):
        async def run(self, ctx: Any) -> str:
            return "work"

    flow = machine(Probe(numbers(1, 10)), MemoryCheckpointStore(), observers=[traced.observer], name="flow")
    flow.register("first", First())
    await flow.orchestrate("first", workflow_id="r")
    assert [span.name for span in traced.spans] == ["visit first", "visit work", "run flow"]
    whole, work = traced.one("run flow"), traced.one("visit work")
    assert whole.parent is None
    assert work.parent.span_id == whole.context.span_id
    assert work.start_time + 1_000 >= traced.one("visit first").end_time
    assert whole.start_time <= traced.one("visit first").start_time
    assert work.end_time <= whole.end_time
    assert dict(work.attributes) == {
        "cano.workflow": "flow",
        "cano.workflow_id": "r",
        "cano.state": "work",
        "cano.task": "Probe",
        "cano.task.kind": "stream",
        "cano.outcome": "completed",
        "cano.windows": 5,
        "cano.outputs": 10,
    }
    assert dict(whole.attributes) == {
        "cano.workflow": "flow",
        "cano.workflow_id": "r",
        "cano.outcome": "completed",
        "cano.end_state": "done",
    }
    assert {whole.status.status_code, work.status.status_code} == {StatusCode.UNSET}
    assert events(work) == ["cano.window"] * 5


async def test_the_run_is_a_child_of_the_callers_span_and_leaves_the_callers_context_alone(traced: Any) -> None:
    with traced.tracer.start_as_current_span("caller") as caller:
        token = context.attach(baggage.set_baggage("who", "me"))
        seen: list[Any] = []

        async def work(ctx: Any) -> str:
            seen.append(baggage.get_baggage("who"))
            return "done"

        before = context.get_current()
        await run(work, observers=[traced.observer])
        with pytest.raises(TaskExecutionError):
            await run(Probe(numbers(1, 2), process=failing(1)), observers=[traced.observer])
        assert context.get_current() is before
        context.detach(token)
    assert [span.parent.span_id for span in traced.named("run workflow")] == [caller.get_span_context().span_id] * 2
    assert seen == ["me"]


async def test_two_runs_at_once_do_not_mix_their_spans(traced: Any) -> None:
    gate = asyncio.Barrier(2)

    async def work(ctx: Any) -> str:
        before = current()
        await gate.wait()
        assert current() == before
        return "done"

    flow = machine(work, observers=[traced.observer])
    await asyncio.gather(flow.orchestrate("work", workflow_id="a"), flow.orchestrate("work", workflow_id="b"))
    runs = {span.attributes["cano.workflow_id"]: span.context.span_id for span in traced.named("run workflow")}
    for visit in traced.named("visit work"):
        assert visit.parent.span_id == runs[visit.attributes["cano.workflow_id"]]
    assert len(runs) == 2


class Everywhere(StreamTask[str, int, int, int]):
    """Notes which span is the current one, in every hook there is."""

    window = Window(count=2, seconds=0.005)

    def __init__(self, in_flight: int) -> None:
        self.max_in_flight = in_flight
        self.seen: dict[str, set[int]] = {}
        self.flushes = 0

    def note(self, where: str) -> None:
        self.seen.setdefault(where, set()).add(current())

    async def open(self, ctx: Any, cursor: int | None) -> AsyncIterator[int]:
        self.note("open")
        yield 1
        yield 2
        yield 3
        await until(lambda: self.flushes == 2)  # the second flush is beside this read
        self.note("read")
        yield 4

    async def process_item(self, ctx: Any, item: int) -> tuple[int, int]:
        self.note("process")
        await asyncio.to_thread(self.note, "thread")
        return item, item

    async def flush_window(self, ctx: Any, outputs: list[int]) -> None:
        self.flushes += 1
        self.note("flush")

    async def on_close(self, ctx: Any, reason: Any) -> str:
        self.note("close")
        return "done"


@pytest.mark.parametrize("in_flight", [1, 3])
async def test_the_span_of_the_visit_is_current_in_every_hook_and_in_threads(in_flight: int, traced: Any) -> None:
    """BR-131."""
    task = Everywhere(in_flight)
    await run(task, observers=[traced.observer])
    visit = traced.one("visit work").context.span_id
    assert task.seen == {where: {visit} for where in ("open", "read", "process", "thread", "flush", "close")}


async def test_a_span_that_a_source_holds_open_is_a_child_and_does_not_outlive_its_visit(traced: Any) -> None:
    async def source(cursor: int | None) -> AsyncIterator[int]:
        with traced.tracer.start_as_current_span("reading"):
            for number in range(5):
                yield number

    after: list[int] = []

    async def close(reason: Any) -> str:
        after.append(current())
        return "done"

    for process in (None, failing(2)):
        with pytest.raises(TaskExecutionError) if process else nullcontext():
            await run(Probe(source, process=process, close=close), observers=[traced.observer])
    first, second = traced.named("visit work")
    assert [span.parent.span_id for span in traced.named("reading")] == [first.context.span_id, second.context.span_id]
    assert after == [first.context.span_id]


async def test_branches_are_events_of_the_visit_and_inner_workflows_its_children(traced: Any) -> None:
    seen: list[int] = []

    async def branch(ctx: Any) -> int:
        seen.append(current())
        return 1

    async def bad(ctx: Any) -> int:
        raise DoNotRetry

    inner = machine(branch_state := Probe(numbers(1, 2)), name="inner")
    flow = Workflow[str](observers=[traced.observer], name="outer").add_exit_state("done")
    flow.register("split", Split([branch, branch, SubWorkflow(inner, "work")], join=All(), then="sub"))
    flow.register("sub", SubWorkflow(inner, "work", exits={"done": "done", "stopped": "done"}))
    assert await flow.orchestrate("split") == "done"
    assert branch_state.items == [1, 2, 1, 2]
    split, sub = traced.one("visit split"), traced.one("visit sub")
    assert seen == [split.context.span_id] * 2
    assert sorted(event.attributes["cano.task"] for event in split.events) == ["branch[0]", "branch[1]", "inner[2]"]
    assert {event.attributes["cano.outcome"] for event in split.events} == {"completed"}
    parents = [span.parent.span_id for span in traced.named("run inner")]
    assert parents == [split.context.span_id, sub.context.span_id]
    assert len({span.context.trace_id for span in traced.spans}) == 1
    traced.exporter.clear()
    failed = Workflow[str](observers=[traced.observer]).add_exit_state("done")
    failed.register("split", Split([bad], join=All(), then="done"))
    with pytest.raises(Exception, match="split"):
        await failed.orchestrate("split")
    (event,) = traced.one("visit split").events
    assert event.attributes["cano.error.cause"] == "DoNotRetry"


async def test_retries_drops_and_windows_are_events_with_totals_and_bounded(traced: Any) -> None:
    many = 10 * WINDOWS
    task = Probe(numbers(1, many), process=failing(*range(1, many, 2)), on_item_error=SkipAndContinue())
    await run(task, observers=[traced.observer])
    visit = traced.one("visit work")
    assert events(visit).count("cano.window") == WINDOWS
    assert events(visit).count("cano.item_dropped") == EVENTS
    assert (visit.attributes["cano.windows"], visit.attributes["cano.outputs"]) == (many // 4, many // 2)
    assert visit.attributes["cano.items_dropped"] == many // 2
    dropped = next(event for event in visit.events if event.name == "cano.item_dropped")
    assert dict(dropped.attributes) == {"cano.task": "Probe", "error.type": "ValueError", "cano.dead_lettered": False}
    traced.exporter.clear()
    failures = [ValueError(), ValueError()]

    class Work(Task[str]):
        config = TaskConfig(retry=FixedRetry(3, 0))

        async def run(self, ctx: Any) -> str:
            if failures:
                raise failures.pop()
            return "done"

    await run(Work(), observers=[traced.observer])
    visit = traced.one("visit work")
    assert [dict(event.attributes) for event in visit.events] == [
        {"cano.task": "Work", "cano.attempt": attempt, "cano.delay": 0.0, "error.type": "ValueError"} for attempt in (1, 2)
    ]
    assert visit.attributes["cano.retries"] == 2


async def test_a_failure_is_an_error_of_types_and_a_cancel_is_none(traced: Any) -> None:
    with pytest.raises(TaskExecutionError):
        await run(Probe(numbers(1, 3), process=failing(2)), observers=[traced.observer])
    visit, whole = traced.spans
    assert (visit.status.status_code, visit.status.description) == (StatusCode.ERROR, "TaskExecutionError from ValueError")
    assert visit.attributes["error.type"] == "TaskExecutionError"
    assert visit.attributes["cano.error.cause"] == "ValueError"
    assert (whole.status.status_code, whole.status.description) == (StatusCode.ERROR, "TaskExecutionError")
    assert (whole.attributes["cano.outcome"], whole.attributes["cano.error.category"]) == ("failed", "task_execution")
    assert "bad 2" not in "".join(span.to_json() for span in traced.spans)
    traced.exporter.clear()
    token = CancellationToken()
    with pytest.raises(WorkflowCancelledError):
        await run(Probe(numbers(1, 9), process=lambda item: token.cancel()), token=token, observers=[traced.observer])
    assert [span.status.status_code for span in traced.spans] == [StatusCode.UNSET] * 2
    assert [span.attributes["cano.outcome"] for span in traced.spans] == ["cancelled"] * 2
    traced.exporter.clear()
    with pytest.raises(WorkflowTimeoutError):
        await run(Probe(then_silence(1)), observers=[traced.observer], total_timeout=0.01)
    visit, whole = traced.spans
    assert [span.status.status_code for span in traced.spans] == [StatusCode.ERROR] * 2
    assert whole.attributes["cano.outcome"] == "timeout"
    assert events(whole) == ["cano.timeout"]


async def test_a_crash_ends_both_spans(traced: Any) -> None:
    def crash(item: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await run(Probe(numbers(1, 3), process=crash), observers=[traced.observer])
    visit, whole = traced.spans
    assert (visit.name, whole.name) == ("visit work", "run workflow")
    assert {span.attributes["cano.outcome"] for span in traced.spans} == {"crashed"}
    assert {span.status.description for span in traced.spans} == {"KeyboardInterrupt"}
    assert traced.observer._executions == {}


@pytest.mark.parametrize("process", [None, failing(1)])
async def test_when_a_run_has_ended_the_callers_context_is_back_for_the_observers_that_follow(process: Any, traced: Any) -> None:
    seen: list[int] = []

    class Next(WorkflowObserver):
        def on_run_start(self, event: Any) -> None:
            seen.append(current())

        def on_run_end(self, event: Any) -> None:
            seen.append(current())

    with traced.tracer.start_as_current_span("caller") as caller:
        with pytest.raises(TaskExecutionError) if process else nullcontext():
            await run(Probe(numbers(1, 3), process=process), observers=[traced.observer, Next()])
        assert seen == [traced.one("run workflow").context.span_id, caller.get_span_context().span_id]


async def test_a_rollback_is_told_on_the_run(traced: Any) -> None:
    seen: list[int] = []

    class Step(CompensatableTask[str, int]):
        async def run(self, ctx: Any) -> tuple[str, int]:
            return "fail", 1

        async def compensate(self, ctx: Any, output: int) -> None:
            seen.append(current())

    async def fail(ctx: Any) -> str:
        raise DoNotRetry

    flow = Workflow[str](observers=[traced.observer]).register("step", Step()).register("fail", fail).add_exit_state("done")
    with pytest.raises(TaskExecutionError):
        await flow.orchestrate("step")
    whole = traced.one("run workflow")
    assert seen == [whole.context.span_id]
    assert whole.attributes["cano.compensations"] == 1
    (event,) = whole.events
    assert (event.name, event.attributes["cano.outcome"]) == ("cano.compensation", "completed")


@pytest.mark.parametrize("how", ["resume_from", "if_exists"])
async def test_a_resume_links_to_the_execution_that_wrote_last(how: str, traced: Any) -> None:
    store = MemoryCheckpointStore()
    task = Probe(numbers(1, 5), process=failing(4))
    flow = machine(task, store, observers=[traced.observer])
    with pytest.raises(TaskExecutionError):
        await flow.orchestrate("work", workflow_id="r")
    with pytest.raises(CheckpointConflictError):
        await flow.orchestrate("work", workflow_id="r")
    task.hooks["process"] = None
    with traced.tracer.start_as_current_span("another trace"):
        if how == "resume_from":
            await flow.resume_from("r")
        else:
            await flow.orchestrate("work", workflow_id="r", if_exists="resume")
    first, refused, resumed = traced.named("run workflow")
    assert [link.context.span_id for link in resumed.links] == [first.context.span_id]
    assert resumed.context.trace_id != first.context.trace_id
    assert resumed.attributes["cano.resumed"]
    assert not first.links
    assert not refused.links
    assert traced.observer._last == {}


async def test_an_execution_that_is_refused_does_not_disturb_the_one_that_is_alive(traced: Any) -> None:
    store, gate = MemoryCheckpointStore(), asyncio.Event()
    inside: list[int] = []

    async def work(ctx: Any) -> str:
        inside.append(current())
        await gate.wait()
        inside.append(current())
        return "done"

    flow = machine(work, store, observers=[traced.observer])
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r"))
    await until(lambda: bool(inside))
    with pytest.raises(RunOwnedError):
        await flow.resume_from("r")
    gate.set()
    await running
    refused, alive = traced.named("run workflow")
    assert refused.attributes["error.type"] == "RunOwnedError"
    assert alive.attributes["cano.outcome"] == "completed"
    assert inside == [traced.one("visit work").context.span_id] * 2


async def test_only_so_many_runs_are_remembered_for_a_link(traced: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("cano.observe.opentelemetry.REMEMBERED", 3)
    flow = machine(Probe(numbers(1, 5), process=failing(1)), MemoryCheckpointStore(), observers=[traced.observer])
    for number in range(10):
        with pytest.raises(TaskExecutionError):
            await flow.orchestrate("work", workflow_id=f"r{number}")
    assert list(traced.observer._last) == ["r7", "r8", "r9"]


PROGRAM = """
import asyncio
from cano import Workflow
from cano.observe.opentelemetry import OpenTelemetryObserver
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

async def work(ctx):
    return "done"

workflow = Workflow(observers=[OpenTelemetryObserver()]).register("work", work).add_exit_state("done")
provider, exporter = TracerProvider(), InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
asyncio.run(workflow.orchestrate("work"))
print([span.name for span in exporter.get_finished_spans()], exporter.get_finished_spans()[0].instrumentation_scope.name)
"""


async def test_the_global_provider_is_used_even_if_it_is_set_later() -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    ran = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert (ran.stdout, ran.stderr) == ("['visit work', 'run workflow'] cano\n", "")


async def test_without_a_provider_nothing_is_recorded_and_the_callers_span_is_passed_on() -> None:
    seen: list[int] = []

    async def work(ctx: Any) -> str:
        seen.append(current())
        return "done"

    carried = trace.SpanContext(trace_id=7, span_id=9, is_remote=True)
    token = context.attach(trace.set_span_in_context(trace.NonRecordingSpan(carried)))
    await run(work, observers=[OpenTelemetryObserver(trace.NoOpTracer())])
    context.detach(token)
    assert seen == [9]


async def test_a_run_of_a_loop_that_was_closed_ends_its_spans_wherever_it_is_collected(traced: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "unraisablehook", lambda told: None)  # asyncio complains of a loop left behind, and rightly
    reached = threading.Event()

    async def work(ctx: Any) -> str:
        reached.set()
        await asyncio.Event().wait()
        return "done"

    held: list[Any] = []

    def abandoned() -> None:
        context.attach(baggage.set_baggage("whose", "the loop's"))
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: None)
        held.append(loop.create_task(machine(work, observers=[traced.observer]).orchestrate("work")))
        while not reached.is_set():
            loop.call_soon(loop.stop)
            loop.run_forever()
        loop.close()

    await asyncio.to_thread(abandoned)
    assert traced.spans == []
    held.clear()
    gc.collect()  # here, where another context is the current one
    assert [span.name for span in traced.spans] == ["visit work", "run workflow"]
    assert traced.observer._executions == {}
    assert baggage.get_baggage("whose") is None


async def test_a_visit_begins_when_its_state_is_entered_before_its_row_is_written(traced: Any) -> None:
    class Timed(MemoryCheckpointStore):
        began = 0

        async def append(self, workflow_id: str, row: Any) -> None:
            self.began = self.began or time.time_ns()
            await asyncio.sleep(0.01)
            await super().append(workflow_id, row)

    store = Timed()
    await run(Probe(numbers(1, 2)), store, observers=[traced.observer])
    assert traced.one("visit work").start_time <= store.began + 1_000
