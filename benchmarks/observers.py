"""What observers cost: the engine with each of them beside the engine without any.

That nobody pays for observers who has none is in `loops.py`, whose figures are taken without.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from benchmarks.measure import Benchmark, Effort, Figure, Target, compare, timed
from benchmarks.tasks import Ready, Step
from cano import Context, Window, Workflow, WorkflowObserver
from cano.observe.logs import LoggingObserver
from cano.observe.opentelemetry import OpenTelemetryObserver
from cano.observe.progress import ProgressObserver
from cano.observe.prometheus import PrometheusObserver

ITEMS = 200_000
RUNS = 500


def _silent() -> WorkflowObserver:
    """The base class: what the events alone cost."""
    return WorkflowObserver()


def _logging() -> WorkflowObserver:
    """Lines from INFO on, formatted and written to where nobody reads them."""
    logger = logging.Logger("benchmark", logging.INFO)
    logger.addHandler(logging.FileHandler(os.devnull))
    return LoggingObserver(logger)


def _prometheus() -> WorkflowObserver:
    return PrometheusObserver(CollectorRegistry())


def _opentelemetry() -> WorkflowObserver:
    """Spans of the SDK, all recorded, none exported."""
    return OpenTelemetryObserver(TracerProvider().get_tracer("benchmark"))


def _progress() -> WorkflowObserver:
    """Where there is no terminal."""
    return ProgressObserver()


async def _once(ctx: Context[Any]) -> Step:
    return Step.DONE


@dataclass(frozen=True, slots=True)
class Streamed:
    """Windows of a stream, with an observer and without."""

    title: str
    make: Callable[[], WorkflowObserver]
    size: int = 1_000
    per: str = "item"
    target: Target | None = None

    async def run(self, effort: Effort) -> Figure:
        items = effort.units(ITEMS if self.size > 1 else ITEMS // 10)
        task = Ready(items, Window(count=self.size))

        def one(*observers: WorkflowObserver) -> Callable[[], Any]:
            workflow = Workflow[Step](observers=observers).register(Step.WORK, task).add_exit_state(Step.DONE)

            async def work() -> None:
                await workflow.orchestrate(Step.WORK)
                task.settle()

            return work

        samples = (timed(work, items, thread_time) for work in (one(self.make()), one()))
        return await compare(self.title, *samples, pairs=effort.pairs(15), per=self.per, target=self.target)


@dataclass(frozen=True, slots=True)
class Single:
    """Runs of one function that does nothing, with an observer and without."""

    title: str
    make: Callable[[], WorkflowObserver]

    async def run(self, effort: Effort) -> Figure:
        runs = effort.units(RUNS)

        def many(*observers: WorkflowObserver) -> Callable[[], Any]:
            workflow = Workflow[Step](observers=observers).register(Step.WORK, _once).add_exit_state(Step.DONE)

            async def work() -> None:
                for _ in range(runs):
                    await workflow.orchestrate(Step.WORK)

            return work

        samples = (timed(work, runs, thread_time) for work in (many(self.make()), many()))
        return await compare(self.title, *samples, pairs=effort.pairs(15), per="run")


WHO: dict[str, Callable[[], WorkflowObserver]] = {
    "nobody": _silent,
    "logging": _logging,
    "prometheus": _prometheus,
    "opentelemetry": _opentelemetry,
    "progress": _progress,
}
NAMES = {
    "nobody": "an observer that does nothing",
    "logging": "LoggingObserver at INFO",
    "prometheus": "PrometheusObserver",
    "opentelemetry": "OpenTelemetryObserver",
    "progress": "ProgressObserver, idle",
}
BENCHMARKS: dict[str, Benchmark] = {
    **{f"stream-{key}": Streamed(f"windows of 1,000: {NAMES[key]}", make, target=Target(1.1)).run for key, make in WHO.items()},
    "window-nobody": Streamed(f"windows of one: {NAMES['nobody']}", _silent, 1, "window").run,
    "window-prometheus": Streamed(f"windows of one: {NAMES['prometheus']}", _prometheus, 1, "window").run,
    **{f"run-{key}": Single(f"a run: {NAMES[key]}", make).run for key, make in WHO.items()},
}
