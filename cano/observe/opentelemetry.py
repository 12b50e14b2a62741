"""OpenTelemetryObserver: a run as a trace."""

# ruff: noqa: D102  (what each method is told of is in the docstrings of WorkflowObserver)
from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from cano.clock import wall
from cano.errors import CanoError, ConfigurationError, WorkflowCancelledError, WorkflowTimeoutError
from cano.observe.label import shown, state_name
from cano.observer import (
    Checkpointed,
    ClearFailed,
    Compensated,
    Event,
    ItemDropped,
    Outcome,
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
    TimedOut,
    WindowFlushed,
    WorkflowObserver,
)

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer

WINDOWS = 50
"""How many windows of a visit are events of its span. All are in its totals."""
EVENTS = 50
"""How many other events a span has; with the windows fewer than the 128 after which the SDK forgets the first ones."""
REMEMBERED = 1_000
"""How many runs are remembered for the link of a later resume."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _Open:
    """A span that is going on, the context in which it is the current one, and what has been told of it."""

    span: Span
    context: Context
    windows: int = 0
    events: int = 0
    totals: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, amount: int = 1) -> None:
        self.totals[name] = self.totals.get(name, 0) + amount


@dataclass(slots=True)
class _Execution:
    run: _Open
    before: Context
    entered: int = 0
    wrote: bool = False
    visit: _Open | None = None

    @property
    def spot(self) -> _Open:
        """The span that an event belongs to."""
        return self.visit or self.run


class OpenTelemetryObserver(WorkflowObserver):
    """Makes a span of every run, and within it one of every visit of a state. Needs `pip install cano[otel]`.

    tracer:  an OpenTelemetry `Tracer`; default `get_tracer("cano")` of the global provider, which may be set later

    `run <workflow>` is a child of whatever span is current where `orchestrate` was called, `visit <state>` a child of
    that. A visit's span is the current one in its hooks, in their threads (`asyncio.to_thread`), in branches, in items in
    flight and in a flush beside the read; so an inner workflow's run becomes its child. The caller's own context stays as
    it is.

    Events of a visit: windows (the first 50), retries, dropped items, refusals by a circuit breaker, branches. Events of a
    run: a timeout, compensations, a log that could not be removed, a failed teardown. Totals are attributes. Nothing is
    made for an item, and rows have no events: a window or the span of a visit stands for its row.

    A run that failed, timed out or crashed has the status ERROR, described by types alone, and `error.type` and
    `cano.error.category`; one that was cancelled has not: with a store it is only paused. Ids are attributes, never names.

    A resumed execution links to the last one of that id that wrote a row, if this observer saw it: the last 1,000 are
    remembered, in memory. After the process has gone nothing is there to link to, for a log holds no trace; the
    attribute `cano.workflow_id` finds all executions of a run.

    Raises:
        ConfigurationError: OpenTelemetry is not installed.
    """

    def __init__(self, tracer: Tracer | None = None) -> None:
        try:
            from opentelemetry import context, trace  # noqa: PLC0415  (an extra, imported on first use)
        except ImportError:
            raise ConfigurationError("OpenTelemetryObserver needs OpenTelemetry: pip install cano[otel]") from None
        if tracer is not None and not callable(getattr(tracer, "start_span", None)):
            raise ConfigurationError(f"tracer must be an OpenTelemetry Tracer, not a {type(tracer).__name__}")
        self._context = context
        self._trace = trace
        self._tracer = trace.get_tracer("cano") if tracer is None else tracer
        self._executions: dict[int, _Execution] = {}
        self._last: dict[str, SpanContext] = {}
        self._lock = threading.Lock()  # of `_last`, which runs in several threads may share

    # -- the run ----------------------------------------------------------------------------------------------------

    def on_run_start(self, event: RunStarted) -> None:
        before = self._context.get_current()
        names = {"cano.workflow": shown(event.workflow), "cano.workflow_id": event.workflow_id}
        span = self._tracer.start_span(f"run {shown(event.workflow)}", context=before, attributes=names)
        run = _Open(span, self._within(span, before))
        self._executions[event.run] = _Execution(run, before)
        self._context.attach(run.context)

    def on_resume(self, event: Resumed) -> None:
        execution = self._executions.get(event.run)
        if execution is None:
            return
        execution.run.span.set_attributes({"cano.resumed": True, "cano.resumed_after_row": event.sequence})
        with self._lock:
            earlier = self._last.get(event.workflow_id)
        if earlier is not None:
            execution.run.span.add_link(earlier)

    def on_checkpoint(self, event: Checkpointed) -> None:
        execution = self._executions.get(event.run)
        if execution is None or execution.wrote:
            return
        execution.wrote = True  # not earlier: an execution that is refused is nothing to link to
        with self._lock:
            self._last.pop(event.workflow_id, None)
            self._last[event.workflow_id] = execution.run.span.get_span_context()
            if len(self._last) > REMEMBERED:
                del self._last[next(iter(self._last))]

    def on_run_end(self, event: RunEnded) -> None:
        execution = self._executions.pop(event.run, None)
        if execution is None:
            return
        current = self._context.get_current()
        if execution.visit is not None:  # a crash passes through without a word about the task
            self._end(execution.visit, event.outcome, event.error_type, event.category)
        execution.run.span.set_attribute("cano.end_state", state_name(event.state))
        self._end(execution.run, event.outcome, event.error_type, event.category)
        if current is execution.run.context or (execution.visit is not None and current is execution.visit.context):
            self._context.attach(execution.before)  # not from where the garbage collector ends a run of a closed loop
        if event.outcome == "completed" and execution.wrote:
            with self._lock:
                if self._last.get(event.workflow_id) == execution.run.span.get_span_context():
                    del self._last[event.workflow_id]

    def _within(self, span: Span, context: Context) -> Context:
        """A context in which the span is current; the same one if nothing records, for then the caller's span stays so."""
        return self._trace.set_span_in_context(span, context) if span.get_span_context().is_valid else context

    # -- a visit ----------------------------------------------------------------------------------------------------

    def on_state_enter(self, event: StateEntered) -> None:
        execution = self._executions.get(event.run)
        if execution is not None:
            micros = (wall() - _EPOCH) // timedelta(microseconds=1)
            execution.entered = micros * 1_000 + 999  # not before the start of the run, which is told in nanoseconds

    def on_task_start(self, event: TaskStarted) -> None:
        execution = self._executions.get(event.run)
        if execution is None or event.kind == "branch":
            return
        state = state_name(event.state)
        names = {
            "cano.workflow": shown(event.workflow),
            "cano.workflow_id": event.workflow_id,
            "cano.state": state,
            "cano.task": shown(event.task),
            "cano.task.kind": event.kind,
        }
        context = execution.run.context
        span = self._tracer.start_span(f"visit {state}", context=context, attributes=names, start_time=execution.entered or None)
        execution.visit = _Open(span, self._within(span, context))
        self._context.attach(execution.visit.context)

    def on_task_success(self, event: TaskSucceeded) -> None:
        if event.kind == "branch":
            self._tell(event, "cano.branch", {"cano.outcome": "completed", "cano.seconds": event.seconds})
        else:
            self._leave(event, "completed")

    def on_task_failure(self, event: TaskFailed) -> None:
        outcome = _outcome_of(event.error)
        if event.kind == "branch":
            names = {"cano.outcome": outcome, "cano.seconds": event.seconds}
            self._tell(event, "cano.branch", names if outcome == "cancelled" else {**names, **_of_error(event.error)})
        else:
            self._leave(event, outcome, event.error)

    def _leave(self, event: TaskEvent, outcome: Outcome, error: CanoError | None = None) -> None:
        execution = self._executions.get(event.run)
        if execution is None or execution.visit is None:
            return
        visit, execution.visit = execution.visit, None
        if error is None:
            self._end(visit, outcome)
        else:
            self._end(visit, outcome, type(error).__name__, error.category, error.__cause__)
        self._context.attach(execution.run.context)  # told in the asyncio task of `on_task_start`, so in its context too

    # -- events -----------------------------------------------------------------------------------------------------

    def on_window(self, event: WindowFlushed) -> None:
        execution = self._executions.get(event.run)
        if execution is None:
            return
        spot = execution.spot
        spot.add("cano.windows")
        spot.add("cano.outputs", event.count)
        spot.windows += 1
        if spot.windows <= WINDOWS and spot.span.is_recording():
            names = {"cano.count": event.count, "cano.seconds": event.seconds, "cano.stopped": event.stopped}
            spot.span.add_event("cano.window", names)

    def on_retry(self, event: Retried) -> None:
        names = {"cano.attempt": event.attempt, "cano.delay": event.delay, "error.type": event.error_type}
        self._tell(event, "cano.retry", names, total="cano.retries")

    def on_item_dropped(self, event: ItemDropped) -> None:
        names = {"error.type": event.error_type, "cano.dead_lettered": event.dead_lettered}
        self._tell(event, "cano.item_dropped", names, total="cano.items_dropped")

    def on_circuit_open(self, event: TaskEvent) -> None:
        self._tell(event, "cano.circuit_open", {}, total="cano.circuit_refusals")

    def on_compensation(self, event: Compensated) -> None:
        names = {"cano.state": state_name(event.state), **({} if event.error is None else _of_error(event.error))}
        outcome = "completed" if event.error is None else "failed"
        self._tell(event, "cano.compensation", {"cano.outcome": outcome, **names}, total="cano.compensations")

    def on_workflow_timeout(self, event: TimedOut) -> None:
        self._tell(event, "cano.timeout", {"cano.elapsed": event.elapsed, "cano.limit": event.limit})

    def on_checkpoint_clear_failed(self, event: ClearFailed) -> None:
        self._tell(event, "cano.checkpoint_clear_failed", _of_error(event.error))

    def on_teardown_failed(self, event: TeardownFailed) -> None:
        self._tell(event, "cano.teardown_failed", {"cano.resource": shown(event.resource), "error.type": event.error_type})

    def _tell(self, event: Event, name: str, names: dict[str, Any], *, total: str | None = None) -> None:
        execution = self._executions.get(event.run)
        if execution is None:
            return
        spot = execution.spot
        if total is not None:
            spot.add(total)
        spot.events += 1
        if spot.events <= EVENTS and spot.span.is_recording():
            if isinstance(event, TaskEvent):
                names = {"cano.task": shown(event.task), **names}
            spot.span.add_event(name, names)

    def _end(
        self,
        opened: _Open,
        outcome: Outcome,
        error_type: str | None = None,
        category: str | None = None,
        cause: BaseException | None = None,
    ) -> None:
        span = opened.span
        names: dict[str, str | int] = {"cano.outcome": outcome, **opened.totals}
        if outcome not in ("completed", "cancelled"):
            names["error.type"] = error_type or outcome
            if category is not None:
                names["cano.error.category"] = category
            if cause is not None:
                names["cano.error.cause"] = type(cause).__name__
            described = names["error.type"] if cause is None else f"{names['error.type']} from {type(cause).__name__}"
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, str(described)))
        span.set_attributes(names)
        span.end()


def _outcome_of(error: CanoError) -> Outcome:
    if isinstance(error, WorkflowTimeoutError):
        return "timeout"
    return "cancelled" if isinstance(error, WorkflowCancelledError) else "failed"


def _of_error(error: CanoError) -> dict[str, str]:
    """The types of an error and of what caused it. Its message may be a user's own."""
    found = {"error.type": type(error).__name__, "cano.error.category": error.category}
    return found if error.__cause__ is None else {**found, "cano.error.cause": type(error.__cause__).__name__}
