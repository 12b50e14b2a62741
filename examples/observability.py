"""A stream seen from outside: as log lines, as metrics for Prometheus, and as a trace.

Lines from INFO on are printed as they are written (only their fields, for the lines tell how long things took), then some of
the counters that a scrape would find, then the spans, each with its parent and its events.

Prints:
    INFO    import nightly: run_start
    WARNING import nightly: item_dropped
    WARNING import nightly: retry
    INFO    import nightly: run_end
    cano_observed_task_runs_total{outcome="completed",task="Read",workflow="import"} 1.0
    cano_observed_task_runs_total{outcome="completed",task="Send",workflow="import"} 1.0
    cano_stream_items_dropped_total{dead_lettered="false",state="READ",workflow="import"} 1.0
    cano_stream_outputs_committed_total{state="READ",workflow="import"} 5.0
    cano_stream_windows_committed_total{state="READ",workflow="import"} 3.0
    cano_task_retries_total{task="Send",workflow="import"} 1.0
    run import of nothing []
    visit READ of run import ['cano.window', 'cano.item_dropped', 'cano.window', 'cano.window']
    asked a service of visit READ []
    visit SEND of run import ['cano.retry']
"""

import asyncio
import logging
import sys
from enum import StrEnum, auto
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

import cano
from cano import CloseReason, Context, FixedRetry, SkipAndContinue, StreamTask, Task, TaskConfig, Window, Workflow

SHOWN = ("cano_stream_outputs", "cano_stream_windows", "cano_stream_items", "cano_task_retries", "cano_observed_task")


class Step(StrEnum):
    READ = auto()
    SEND = auto()
    DONE = auto()


class Read(StreamTask[Step, str, int, int]):
    window = Window(count=2)
    on_item_error = SkipAndContinue()

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer

    async def open(self, ctx: Context[Any], cursor: int | None) -> list[str]:
        with self.tracer.start_as_current_span("asked a service"):  # lands in the span of this visit
            return ["1", "2", "three", "4", "5", "6"]

    async def process_item(self, ctx: Context[Any], item: str) -> tuple[int, int]:
        return int(item), int(item)

    async def flush_window(self, ctx: Context[Any], outputs: list[int]) -> None: ...

    async def on_close(self, ctx: Context[Any], reason: CloseReason) -> Step:
        return Step.SEND


class Send(Task[Step]):
    config = TaskConfig(retry=FixedRetry(retries=2, delay=0.01))

    async def run(self, ctx: Context[Any]) -> Step:
        if ctx.attempt == 1:
            raise ConnectionError
        return Step.DONE


async def main() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(levelname)-7s %(cano_workflow)s %(cano_workflow_id)s: %(cano_event)s"))
    logging.getLogger("cano.run").addHandler(handler)
    logging.getLogger("cano.run").setLevel(logging.INFO)
    registry, exporter, provider = CollectorRegistry(), InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("example")
    observers = [cano.LoggingObserver(), cano.PrometheusObserver(registry), cano.OpenTelemetryObserver(tracer)]
    workflow = Workflow[Step](name="import", observers=observers)
    workflow.register(Step.READ, Read(tracer)).register(Step.SEND, Send()).add_exit_state(Step.DONE)
    await workflow.orchestrate(Step.READ, workflow_id="nightly")
    lines = generate_latest(registry).decode().splitlines()
    print(*sorted(line for line in lines if line.startswith(SHOWN) and not line.endswith(" 0.0")), sep="\n")
    spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
    for span in sorted(spans.values(), key=lambda span: span.start_time or 0):
        parent = spans[span.parent.span_id].name if span.parent else "nothing"
        print(span.name, "of", parent, [event.name for event in span.events])


if __name__ == "__main__":
    asyncio.run(main())
