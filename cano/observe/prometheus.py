"""PrometheusObserver: what happened in runs, as metrics for Prometheus."""

# ruff: noqa: D102  (what each method is told of is in the docstrings of WorkflowObserver)
from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self

from cano.errors import ConfigurationError
from cano.observe.metrics import RunCounts, outcome_of
from cano.observe.tally import SERIES, Family, Histogram, Number, Tally
from cano.observe.watched import Watched
from cano.observer import (
    Checkpointed,
    ClearFailed,
    Compensated,
    ItemDropped,
    Resumed,
    Retried,
    RunEnded,
    RunStarted,
    StateEntered,
    TaskEvent,
    TaskFailed,
    TaskStarted,
    TaskSucceeded,
    TeardownFailed,
    WindowFlushed,
    WorkflowObserver,
)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric


class PrometheusObserver(WorkflowObserver):
    """Counts what happens in runs, for a Prometheus registry. Needs `pip install cano[prometheus]`.

    registry:  a `CollectorRegistry`; default `prometheus_client.REGISTRY`
    watch:     things that count by themselves, see `watch`

    Events only change numbers of this object; metrics are made of them when the registry is scraped, which may be in
    another thread. One observer may serve many workflows, event loops and threads, and counts them exactly; a scrape sees
    all runs at one moment. `docs/observing.md` lists the metrics.

    Labels are names of workflows, states and tasks, and outcomes; never ids, types of errors or anything of a user's. A
    label has at most 100 values and a metric some 1,000 series; whatever is beyond counts as "other".

    Raises:
        ConfigurationError: prometheus-client is not installed, or the registry has a PrometheusObserver already: share
            that one, or `close` it.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, watch: Iterable[Any] = ()) -> None:
        try:
            import prometheus_client  # noqa: PLC0415  (an extra, imported on first use)
            from prometheus_client import core  # noqa: PLC0415  (likewise)
        except ImportError:
            raise ConfigurationError("PrometheusObserver needs prometheus-client: pip install cano[prometheus]") from None
        self._core = core
        self._counts = RunCounts()
        self._lock = self._counts.lock
        self._watched = Watched()
        self._expected: set[Any] = set()
        if not isinstance(watch, Iterable):
            raise ConfigurationError(f"watch must be several things to watch, not a {type(watch).__name__}")
        for thing in watch:
            self.watch(thing)
        if registry is not None and not callable(getattr(registry, "register", None)):
            raise ConfigurationError(f"registry must be a CollectorRegistry, not a {type(registry).__name__}")
        self._registry = prometheus_client.REGISTRY if registry is None else registry
        self._open = True
        try:
            self._registry.register(self)
        except ValueError:
            raise ConfigurationError(
                "the registry has metrics of these names already, perhaps a PrometheusObserver's: share that one, or close it"
            ) from None

    def watch(self, thing: Any, name: str | None = None) -> Self:
        """Export what a `CircuitBreaker`, a rate limiter or a `Scheduler` has counted, and return the observer. Given a
        `Workflow`, have its series begin at 0 now, and not with its first run.

        `name` is the value of the label; default its own name, else that of its class. Things of one name are added up.

        Raises:
            ConfigurationError: it is none of these.
        """
        if name is not None and not isinstance(name, str):
            raise ConfigurationError(f"name must be a str, not a {type(name).__name__}")
        if callable(getattr(thing, "orchestrate", None)) and not isinstance(thing, type):
            self._expect(thing.name)
        else:
            self._watched.add(thing, name)
        return self

    def close(self) -> None:
        """Leave the registry, and let go of what is watched. Idempotent. Runs that go on are told of in vain."""
        if self._open:
            self._open = False
            self._registry.unregister(self)
            self._watched = Watched()

    # -- what the registry asks for ---------------------------------------------------------------------------------

    def describe(self) -> Iterator[Metric]:
        """The metrics without their series."""
        for family in self._families():
            yield self._metric(family, empty=True)

    def collect(self) -> Iterator[Metric]:
        """The metrics. May be called in any thread."""
        for family in self._families():
            yield self._metric(family)

    def _families(self) -> list[Family]:
        return [*self._counts.families(), *self._watched.families()]

    def _metric(self, family: Family, *, empty: bool = False) -> Metric:
        kinds: dict[str, Any] = {
            "counter": self._core.CounterMetricFamily,
            "gauge": self._core.GaugeMetricFamily,
            "histogram": self._core.HistogramMetricFamily,
        }
        metric: Any = kinds[family.kind](family.name, family.text, labels=family.labels)
        for names, value in () if empty else family.series.items():
            if isinstance(value, Histogram):
                metric.add_metric(names, _cumulative(value), value.total)
            else:
                metric.add_metric(names, value)
        found: Metric = metric
        return found

    # -- what runs tell ---------------------------------------------------------------------------------------------

    def on_run_start(self, event: RunStarted) -> None:
        if event.workflow not in self._expected:
            self._expect(event.workflow)
        cell = self._counts.active.find((event.workflow,))
        with self._lock:
            cell.value += 1

    def on_run_end(self, event: RunEnded) -> None:
        active = self._counts.active.find((event.workflow,))
        ended = self._counts.runs.find((event.workflow, event.outcome))
        with self._lock:
            active.value -= 1
            ended.took(event.seconds)

    def on_resume(self, event: Resumed) -> None:
        self._one_more(self._counts.resumes, event.workflow)

    def on_state_enter(self, event: StateEntered) -> None:
        cell = self._counts.states.find((event.workflow, event.state.__class__, event.state))
        with self._lock:
            cell.value += 1

    def on_task_start(self, event: TaskStarted) -> None:
        known = (event.workflow, event.state, event.task)
        if known not in self._expected:
            self._remember(known)
            self._counts.expect_task(event.workflow, event.state, event.task, event.kind)

    def on_task_success(self, event: TaskSucceeded) -> None:
        self._ended(event, "completed")

    def on_task_failure(self, event: TaskFailed) -> None:
        self._ended(event, outcome_of(event.error))

    def _ended(self, event: TaskSucceeded | TaskFailed, outcome: str) -> None:
        told = (event.workflow, event.state.__class__, event.state, event.task, event.kind, outcome)
        cell = self._counts.tasks.find(told)
        with self._lock:
            cell.took(event.seconds)

    def on_checkpoint(self, event: Checkpointed) -> None:
        cell = self._counts.rows.find((event.workflow, event.kind))
        with self._lock:
            cell.value += 1

    def on_window(self, event: WindowFlushed) -> None:
        told = (event.workflow, event.state.__class__, event.state)
        windows, outputs = self._counts.windows.find(told), self._counts.outputs.find(told)
        with self._lock:
            windows.value += 1
            outputs.value += event.count

    def on_retry(self, event: Retried) -> None:
        self._one_more(self._counts.retries, event.workflow, event.task)

    def on_circuit_open(self, event: TaskEvent) -> None:
        self._one_more(self._counts.refusals, event.workflow, event.task)

    def on_item_dropped(self, event: ItemDropped) -> None:
        lettered = "true" if event.dead_lettered else "false"
        self._one_more(self._counts.drops, event.workflow, event.state.__class__, event.state, lettered)

    def on_compensation(self, event: Compensated) -> None:
        self._one_more(self._counts.compensations, event.workflow, "ok" if event.error is None else "err")

    def on_checkpoint_clear_failed(self, event: ClearFailed) -> None:
        self._one_more(self._counts.clears, event.workflow)

    def on_teardown_failed(self, event: TeardownFailed) -> None:
        self._one_more(self._counts.teardowns, event.workflow)

    def _expect(self, workflow: str) -> None:
        self._remember(workflow)
        self._counts.expect_runs(workflow)

    def _remember(self, known: Any) -> None:
        if len(self._expected) < SERIES:
            self._expected.add(known)

    def _one_more(self, tally: Tally[Number], *told: Any) -> None:
        cell = tally.find(told)
        with self._lock:
            cell.value += 1


def _cumulative(histogram: Histogram) -> list[tuple[str, float]]:
    total, found = 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.buckets, strict=True):
        total += count
        found.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
    return found
