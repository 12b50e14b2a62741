"""LoggingObserver: a run as lines of the standard library's logging."""

# ruff: noqa: D102  (what each method is told of is in the docstrings of WorkflowObserver)
from __future__ import annotations

import logging
from logging import DEBUG, ERROR, INFO, WARNING
from typing import Any

from cano.errors import CanoError, ConfigurationError, WorkflowCancelledError, WorkflowTimeoutError
from cano.observe.label import shown, state_name
from cano.observer import (
    Checkpointed,
    ClearFailed,
    Compensated,
    Event,
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
    TimedOut,
    WindowFlushed,
    WorkflowObserver,
)

_STOPS = (WorkflowCancelledError, WorkflowTimeoutError)


class LoggingObserver(WorkflowObserver):
    """Writes every event of a run to a logger.

    logger:  a `logging.Logger`; default `logging.getLogger("cano.run")`

    What each level means:

    ERROR:    somebody has to look: a run failed, timed out or crashed; a compensation failed
    WARNING:  it went on, but not as hoped: a retry, a dropped item, an open circuit, a failed task or branch, a cancel, a
              timeout, a step undone, a log that could not be removed, a failed teardown
    INFO:     the life of a run: started, resumed, ended; three lines at most
    DEBUG:    its steps: states, tasks, rows, windows

    A failed run has one ERROR, at its end; the failure of its task, just before, is a WARNING. So is what stopped a run,
    and the task that was stopped is then DEBUG.

    A line carries what it tells as attributes of the record too (`extra`), for a formatter that writes JSON:
    `cano_event`, `cano_run`, `cano_workflow`, `cano_workflow_id` and `cano_state` always, others where they apply. Lines
    name ids, states, tasks and types; never a message of an error, a traceback or anything of a user's. A line whose level
    is off is not built.

    Raises:
        ConfigurationError: this is no Logger.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        if not isinstance(logger, logging.Logger | None):  # an adapter would put its own fields in the place of ours
            raise ConfigurationError(f"LoggingObserver needs a logging.Logger, not a {type(logger).__name__}")
        self._logger = logging.getLogger("cano.run") if logger is None else logger

    def on_run_start(self, event: RunStarted) -> None:
        if self._logger.isEnabledFor(INFO):
            text = "to resume" if event.resumed else "started"
            self._write(INFO, event, "run_start", text, resumed=event.resumed)

    def on_resume(self, event: Resumed) -> None:
        if self._logger.isEnabledFor(INFO):
            self._write(INFO, event, "resume", "goes on after row %d", event.sequence, sequence=event.sequence)

    def on_state_enter(self, event: StateEntered) -> None:
        if self._logger.isEnabledFor(DEBUG):
            self._write(DEBUG, event, "state_enter", "entered")

    def on_task_start(self, event: TaskStarted) -> None:
        if self._logger.isEnabledFor(DEBUG):
            self._write(DEBUG, event, "task_start", "%s starts", shown(event.task), task=event.task, kind=event.kind)

    def on_task_success(self, event: TaskSucceeded) -> None:
        if self._logger.isEnabledFor(DEBUG):
            fields = {"task": event.task, "kind": event.kind, "seconds": event.seconds}
            self._write(DEBUG, event, "task_success", "%s took %.3f s", shown(event.task), event.seconds, **fields)

    def on_task_failure(self, event: TaskFailed) -> None:
        stopped = isinstance(event.error, _STOPS)
        level = DEBUG if stopped else WARNING
        if self._logger.isEnabledFor(level):
            fields = {"task": event.task, "kind": event.kind, "seconds": event.seconds, **_of_error(event.error)}
            text = "%s was stopped after %.3f s: %s" if stopped else "%s failed after %.3f s: %s"
            self._write(level, event, "task_failure", text, shown(event.task), event.seconds, _types(event.error), **fields)

    def on_retry(self, event: Retried) -> None:
        if self._logger.isEnabledFor(WARNING):
            text = "%s failed in attempt %d with %s, and is tried again in %.3f s"
            values = (shown(event.task), event.attempt, event.error_type, event.delay)
            fields = {"attempt": event.attempt, "delay": event.delay, "error_type": event.error_type}
            self._write(WARNING, event, "retry", text, *values, task=event.task, **fields)

    def on_circuit_open(self, event: TaskEvent) -> None:
        if self._logger.isEnabledFor(WARNING):
            text = "%s was refused an attempt by its circuit breaker"
            self._write(WARNING, event, "circuit_open", text, shown(event.task), task=event.task)

    def on_checkpoint(self, event: Checkpointed) -> None:
        if self._logger.isEnabledFor(DEBUG):
            fields = {"sequence": event.sequence, "row": event.kind}
            self._write(DEBUG, event, "checkpoint", "row %d (%s) is durable", event.sequence, event.kind, **fields)

    def on_window(self, event: WindowFlushed) -> None:
        if self._logger.isEnabledFor(DEBUG):
            text = "%s committed a window of %d after %.3f s" + (", its last" if event.stopped else "")
            fields = {"count": event.count, "seconds": event.seconds, "stopped": event.stopped}
            values = (shown(event.task), event.count, event.seconds)
            self._write(DEBUG, event, "window", text, *values, task=event.task, **fields)

    def on_item_dropped(self, event: ItemDropped) -> None:
        if self._logger.isEnabledFor(WARNING):
            text = "%s dropped an item that failed with %s" + (", to its dead letters" if event.dead_lettered else "")
            fields = {"error_type": event.error_type, "dead_lettered": event.dead_lettered}
            self._write(WARNING, event, "item_dropped", text, shown(event.task), event.error_type, task=event.task, **fields)

    def on_workflow_timeout(self, event: TimedOut) -> None:
        if self._logger.isEnabledFor(WARNING):
            text = "stopped by its total timeout of %g s after %.3f s"
            fields = {"elapsed": event.elapsed, "limit": event.limit}
            self._write(WARNING, event, "workflow_timeout", text, event.limit, event.elapsed, **fields)

    def on_cancelled(self, event: Event) -> None:
        if self._logger.isEnabledFor(WARNING):
            self._write(WARNING, event, "cancelled", "stopped by a cancel")

    def on_compensation(self, event: Compensated) -> None:
        level = WARNING if event.error is None else ERROR
        if not self._logger.isEnabledFor(level):
            return
        if event.error is None:
            self._write(level, event, "compensation", "%s was undone", shown(event.task), task=event.task)
        else:
            values = (shown(event.task), _types(event.error))
            fields = {"task": event.task, **_of_error(event.error)}
            self._write(level, event, "compensation", "%s could not be undone: %s", *values, **fields)

    def on_checkpoint_clear_failed(self, event: ClearFailed) -> None:
        if self._logger.isEnabledFor(WARNING):
            text = "its log could not be removed: %s"
            self._write(WARNING, event, "checkpoint_clear_failed", text, _types(event.error), **_of_error(event.error))

    def on_teardown_failed(self, event: TeardownFailed) -> None:
        if self._logger.isEnabledFor(WARNING):
            fields = {"resource": event.resource, "error_type": event.error_type}
            values = (shown(event.resource), event.error_type)
            self._write(WARNING, event, "teardown_failed", "resource %s failed to tear down: %s", *values, **fields)

    def on_run_end(self, event: RunEnded) -> None:
        level = INFO if event.outcome in ("completed", "cancelled") else ERROR
        if self._logger.isEnabledFor(level):
            fields = {"seconds": event.seconds, "error_type": event.error_type, "category": event.category}
            text, values = "%s after %.3f s", (event.outcome, event.seconds)
            if level == INFO or event.error_type is None:
                self._write(level, event, "run_end", text, *values, outcome=event.outcome, **fields)
            else:
                self._write(level, event, "run_end", text + ": %s", *values, event.error_type, outcome=event.outcome, **fields)

    def _write(self, level: int, event: Event, name: str, text: str, *values: Any, **fields: Any) -> None:
        extra = {f"cano_{key}": value for key, value in fields.items()}
        extra["cano_event"], extra["cano_run"] = name, event.run
        extra["cano_workflow"], extra["cano_workflow_id"] = event.workflow, event.workflow_id
        state = extra["cano_state"] = None if event.state is None else state_name(event.state)
        lead, where = ("%s %s%s: ", "") if state is None else ("%s %s in %s: ", state)
        self._logger.log(level, lead + text, shown(event.workflow), event.workflow_id, where, *values, extra=extra)


def _of_error(error: CanoError) -> dict[str, Any]:
    cause = error.__cause__
    name = None if cause is None else type(cause).__name__
    return {"error_type": type(error).__name__, "category": error.category, "cause_type": name}


def _types(error: CanoError) -> str:
    """The type of an error and of what caused it. Its message may be a user's own."""
    cause = error.__cause__
    return type(error).__name__ if cause is None else f"{type(error).__name__} from {type(cause).__name__}"
