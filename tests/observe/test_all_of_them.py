"""What holds for every observer that comes with cano: it changes nothing, shows nothing of a user's, and costs nothing when it
is not there.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections import Counter
from types import FrameType
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest
from rich.console import Console

from cano import (
    CircuitBreaker,
    CircuitOpenError,
    FixedRetry,
    MemoryCheckpointStore,
    NoRetry,
    SkipAndContinue,
    StreamTask,
    Task,
    TaskConfig,
    TaskExecutionError,
    Window,
    Workflow,
    WorkflowObserver,
)
from cano.observe.logs import LoggingObserver
from cano.observe.opentelemetry import OpenTelemetryObserver
from cano.observe.progress import ProgressObserver
from cano.observe.prometheus import PrometheusObserver
from tests.streams import Probe, failing, numbers, run

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Everyone:
    """All observers at once, and all that they show."""

    def __init__(self) -> None:
        self.lines = io.StringIO()
        handler = logging.StreamHandler(self.lines)
        handler.format = lambda record: str(vars(record)) + record.getMessage()  # type: ignore[method-assign]  # the whole record
        logger = logging.Logger("everyone", logging.DEBUG)
        logger.addHandler(handler)
        self.registry = CollectorRegistry()
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.screen = io.StringIO()
        self.progress = ProgressObserver(Console(file=self.screen, force_terminal=True, width=200), refresh=0.001)
        self.observers: list[WorkflowObserver] = [
            LoggingObserver(logger),
            PrometheusObserver(self.registry),
            OpenTelemetryObserver(provider.get_tracer("test")),
            self.progress,
        ]

    @property
    def shown(self) -> dict[str, str]:
        return {
            "lines": self.lines.getvalue(),
            "metrics": generate_latest(self.registry).decode(),
            "spans": "".join(span.to_json() for span in self.exporter.get_finished_spans()),
            "screen": self.screen.getvalue(),
        }


class Secretive(StreamTask[str, dict[str, str], str, dict[str, str]]):
    """Everything it has is a secret, and it may fail with one in any of its hooks."""

    window = Window(count=2)
    on_item_error = SkipAndContinue()
    config = TaskConfig(attempt_timeout=1)

    def __init__(self, place: str) -> None:
        self.place = place

    def _maybe(self, place: str) -> None:
        if self.place == place:
            raise KeyError("secret-error")

    async def open(self, ctx: Any, cursor: Any) -> Any:
        self._maybe("open")
        return [{"password": f"secret-item-{number}"} for number in range(4)]

    async def process_item(self, ctx: Any, item: dict[str, str]) -> tuple[str, dict[str, str]]:
        self._maybe("process")
        ctx.data["secret-key"] = "secret-data"
        return "secret-output", {"cursor": "secret-cursor"}

    async def flush_window(self, ctx: Any, outputs: Any) -> None:
        self._maybe("flush")

    async def on_close(self, ctx: Any, reason: Any) -> str:
        self._maybe("close")
        return "task"


class Failing(Task[str]):
    """Fails with a secret, twice."""

    config = TaskConfig(retry=FixedRetry(1, 0))

    async def run(self, ctx: Any) -> str:
        raise ValueError("secret-error") from KeyError("secret-cause")


@pytest.mark.parametrize("place", ["open", "process", "flush", "close", "none"])
async def test_no_line_metric_span_or_screen_holds_a_users_value(place: str) -> None:
    """BR-78."""
    everyone = Everyone()
    flow = Workflow[str](
        observers=everyone.observers, checkpoint_store=MemoryCheckpointStore(), resources={"r": "secret-resource"}
    )
    flow.register("work", Secretive(place)).register("task", Failing()).add_exit_state("done")
    with everyone.progress, pytest.raises(Exception, match="Failing|Secretive"):
        await flow.orchestrate("work", workflow_id="r", data={"start": "secret-data"})
    for where, text in everyone.shown.items():
        assert "secret" not in text, where
        assert "workflow" in text, where


async def test_with_all_of_them_a_run_is_what_it_is_without() -> None:
    """BR-136: and one that breaks costs the others nothing."""

    class Broken(WorkflowObserver):
        def on_window(self, event: Any) -> None:
            raise ValueError

    everyone = Everyone()
    plain, watched = MemoryCheckpointStore(), MemoryCheckpointStore()
    for store, observers in ((plain, []), (watched, [Broken(), *everyone.observers])):
        task = Probe(numbers(1, 9), process=failing(4), on_item_error=SkipAndContinue())
        assert await run(task, store, observers=observers) == "done"
        assert task.items == [1, 2, 3, 5, 6, 7, 8, 9]
    assert 'cano_stream_windows_committed_total{state="work",workflow="workflow"} 4.0' in everyone.shown["metrics"]


async def test_a_refusal_by_a_circuit_breaker_is_seen() -> None:
    class Guarded(Task[str]):
        config = TaskConfig(retry=NoRetry(), circuit_breaker=CircuitBreaker(failure_threshold=1))

        async def run(self, ctx: Any) -> str:
            raise ValueError

    everyone, task = Everyone(), Guarded()
    for error in (TaskExecutionError, CircuitOpenError):
        with pytest.raises(error):
            await run(task, observers=everyone.observers)
    shown = everyone.shown
    assert 'cano_circuit_open_events_total{task="Guarded",workflow="workflow"} 1.0' in shown["metrics"]
    assert shown["lines"].count("Guarded was refused an attempt by its circuit breaker") == 1
    assert shown["spans"].count('"cano.circuit_open"') == 1


async def test_one_of_each_serves_several_event_loops_one_after_another() -> None:
    everyone = Everyone()

    def in_a_loop() -> None:
        asyncio.run(run(Probe(numbers(1, 4)), observers=everyone.observers))

    for _ in range(2):
        await asyncio.to_thread(in_a_loop)
    assert 'cano_workflow_runs_total{outcome="completed",workflow="workflow"} 2.0' in everyone.shown["metrics"]
    assert len(everyone.exporter.get_finished_spans()) == 4


async def _calls(items: int, windows: int, observers: list[WorkflowObserver]) -> Counter[str]:
    """How often which function of the observers' modules ran during a run, and which events were made."""
    found: Counter[str] = Counter()

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "")
            if module.startswith(("cano.observe", "opentelemetry", "prometheus_client", "rich")):
                found[frame.f_code.co_qualname] += 1

    task = Probe(numbers(1, items))
    task.window = Window(count=items // windows)
    work = asyncio.ensure_future(run(task, MemoryCheckpointStore(), observers=observers))
    sys.setprofile(profile)
    try:
        await work
    finally:
        sys.setprofile(None)
    assert len(task.flushed) == windows
    return found


async def test_without_observers_nothing_is_built_and_no_item_costs_a_call() -> None:
    few, many = await _calls(100, 10, []), await _calls(10_000, 10, [])
    assert many == few
    assert not any("__init__" in name for name in few.keys() - {"Audience.__init__"}), "no event was built"
    assert few.total() < 60
    with_more_windows = await _calls(10_000, 100, [])
    assert (with_more_windows - many).keys() <= {"Audience.__bool__"}


async def test_with_observers_a_window_costs_calls_but_an_item_none() -> None:
    everyone = Everyone()
    few, many = await _calls(100, 10, everyone.observers), await _calls(10_000, 10, everyone.observers)
    assert many["LoggingObserver.on_window"] == few["LoggingObserver.on_window"] == 10
    assert many.total() < few.total() + 100
