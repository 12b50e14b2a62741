"""Seeing a run from outside: events as frozen records, observers, and the guarded way from one to the other."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from cano.errors import CanoError, ConfigurationError

_log = logging.getLogger("cano")

Outcome = Literal["completed", "failed", "cancelled", "timeout", "crashed"]

TaskKind = Literal[
    "single", "router", "poll", "timer", "batch", "stepped", "stream", "compensatable", "split", "branch", "workflow"
]
"""What kind of task: "single" is a `Task` or a function, "branch" one of a split's, "workflow" a `SubWorkflow`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What every event carries.

    run:          a number of this execution, unique in the process: one id may be executed several times, and at once
                  too, as when a second execution is refused because the first is alive
    workflow_id:  the id of the run
    workflow:     the name of the workflow
    state:        the state the run was in; None before the first
    """

    run: int
    workflow_id: str
    workflow: str
    state: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A run begins; `resumed` tells a resume from a fresh run."""

    resumed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(Event):
    """A log was read and the run goes on after its row `sequence`."""

    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEntered(Event):
    """A state was entered, the first, the last and a resumed one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEvent(Event):
    """Something about a task: the name of the state's task, or of a split's branch."""

    task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStarted(TaskEvent):
    """A task of that kind is about to run."""

    kind: TaskKind


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSucceeded(TaskEvent):
    """A task chose the next state, or a branch its value, after `seconds`."""

    kind: TaskKind
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFailed(TaskEvent):
    """A task failed, or was stopped by a cancel or a timeout, after `seconds`."""

    kind: TaskKind
    seconds: float
    error: CanoError


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(TaskEvent):
    """Attempt `attempt` (1-based) failed and another follows after `delay` seconds."""

    attempt: int
    delay: float
    error_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(Event):
    """A row is durable."""

    sequence: int
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFlushed(TaskEvent):
    """A window was flushed and committed: how many outputs, how long it was open, whether it stopped the stream."""

    count: int
    seconds: float
    stopped: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDropped(TaskEvent):
    """An item failed and the policy dropped it."""

    error_type: str
    dead_lettered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedOut(Event):
    """The run outlived its total timeout; both figures are seconds."""

    elapsed: float
    limit: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Compensated(TaskEvent):
    """A completed step was compensated, or its compensation failed with `error`."""

    error: CanoError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearFailed(Event):
    """The run completed, but its log could not be removed."""

    error: CanoError


@dataclass(frozen=True, slots=True, kw_only=True)
class TeardownFailed(Event):
    """A resource failed to tear down."""

    resource: str
    error_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """The run is over after `seconds`. Unless it completed, `error_type` names the class of what it raised, and `category`
    is that of a CanoError. `crashed` means that a BaseException such as KeyboardInterrupt passed through.
    """

    outcome: Outcome
    seconds: float
    error_type: str | None = None
    category: str | None = None


class WorkflowObserver:
    """A base class whose methods do nothing: override those you want.

    Each is called with one event, in order, on the event loop's thread, so it must be quick and must not block. What it
    raises is logged and changes nothing.
    """

    def on_run_start(self, event: RunStarted) -> None:
        """Before anything else."""

    def on_resume(self, event: Resumed) -> None:
        """The log was accepted and the run goes on."""

    def on_state_enter(self, event: StateEntered) -> None:
        """A state was entered."""

    def on_task_start(self, event: TaskStarted) -> None:
        """A task is about to run."""

    def on_task_success(self, event: TaskSucceeded) -> None:
        """A task chose the next state."""

    def on_task_failure(self, event: TaskFailed) -> None:
        """A task failed or was stopped."""

    def on_retry(self, event: Retried) -> None:
        """An attempt failed and will be repeated."""

    def on_circuit_open(self, event: TaskEvent) -> None:
        """A circuit breaker refused an attempt."""

    def on_checkpoint(self, event: Checkpointed) -> None:
        """A row is durable."""

    def on_window(self, event: WindowFlushed) -> None:
        """A window was flushed and committed."""

    def on_item_dropped(self, event: ItemDropped) -> None:
        """An item was dropped by the error policy."""

    def on_workflow_timeout(self, event: TimedOut) -> None:
        """The total timeout stopped the run."""

    def on_cancelled(self, event: Event) -> None:
        """A cancel stopped the run."""

    def on_compensation(self, event: Compensated) -> None:
        """A step was compensated."""

    def on_checkpoint_clear_failed(self, event: ClearFailed) -> None:
        """The log of a completed run could not be removed."""

    def on_teardown_failed(self, event: TeardownFailed) -> None:
        """A resource failed to tear down."""

    def on_run_end(self, event: RunEnded) -> None:
        """After everything else."""


def checked(observers: Iterable[Any]) -> tuple[WorkflowObserver, ...]:
    """Return the observers of a workflow.

    Raises:
        ConfigurationError: one is no WorkflowObserver, or has an `async def` method, which nobody would await.
    """
    if not isinstance(observers, Iterable):
        raise ConfigurationError(f"observers must be several WorkflowObservers, not a {type(observers).__name__}")
    found = tuple(observers)
    for observer in found:
        if not isinstance(observer, WorkflowObserver):
            raise ConfigurationError(f"an observer must be a WorkflowObserver, not a {type(observer).__name__}")
        for name in dir(WorkflowObserver):
            if name.startswith("on_") and inspect.iscoroutinefunction(getattr(observer, name)):
                raise ConfigurationError(f"{type(observer).__name__}.{name} must be a plain function, not async")
    return found


_numbers = itertools.count(1)


class Audience:
    """The observers of one run. Empty ones are falsy, so that nothing is built for nobody."""

    __slots__ = ("_run", "_workflow", "_workflow_id", "observers", "state")

    def __init__(self, observers: tuple[WorkflowObserver, ...], workflow_id: str, workflow: str) -> None:
        self.observers = observers
        self._run = next(_numbers) if observers else 0
        self._workflow_id = workflow_id
        self._workflow = workflow
        self.state: Any = None

    def __bool__(self) -> bool:
        return bool(self.observers)

    def tell(self, method: str, kind: type[Event], /, **fields: Any) -> None:
        """Build one event and hand it to every observer in order; log what they raise."""
        if not self.observers:
            return
        event = kind(run=self._run, workflow_id=self._workflow_id, workflow=self._workflow, state=self.state, **fields)
        for observer in self.observers:
            try:
                getattr(observer, method)(event)
            except (asyncio.CancelledError, Exception) as error:
                _log.warning("observer %s.%s raised %s", type(observer).__name__, method, type(error).__name__)
