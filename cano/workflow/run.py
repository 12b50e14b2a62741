"""Run: all that one execution carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cano.brake import Brake, Halt
from cano.cancel import CancellationToken
from cano.clock import now
from cano.context import Context, RunData
from cano.errors import CanoError, WorkflowCancelledError, WorkflowTimeoutError
from cano.observer import (
    Audience,
    Checkpointed,
    Retried,
    StateEntered,
    TaskEvent,
    TaskFailed,
    TaskKind,
    TaskStarted,
    TaskSucceeded,
)
from cano.recovery.checkpoint import CheckpointRow
from cano.recovery.journal import Journal
from cano.recovery.replay import Completed
from cano.recovery.store import CheckpointStore
from cano.resources import Resources
from cano.task.split import Branches
from cano.workflow.branches import dump_branches
from cano.workflow.budget import Budget
from cano.workflow.plan import Plan, Registration


@dataclass(slots=True)
class Run:
    """One execution of a workflow: what it was given, and where it is."""

    plan: Plan
    workflow: str
    workflow_id: str
    store: CheckpointStore | None
    version: int
    resources: Resources
    token: CancellationToken
    brake: Brake
    budget: Budget
    compensation_timeout: float | None
    audience: Audience
    data: RunData[Any]
    journal: Journal
    path: list[Any] = field(default_factory=list)
    visit: int = -1
    again: bool = False
    keeps_log: bool = False
    state: Any = None
    halt: CanoError | None = None
    task: str = ""
    saved: bytes | None = field(default=None, repr=False)
    branches: Branches | None = None
    stored_branches: bytes | None = field(default=None, repr=False)
    completed: list[Completed] = field(default_factory=list)
    inner_logs: list[tuple[CheckpointStore, str]] = field(default_factory=list)

    async def enter(self, state: Any, *, again: bool) -> Registration | None:
        """Enter a state and record it. Gives what is registered there, or None for an exit state."""
        self.state = self.audience.state = state
        self.path.append(state)
        self.again = again
        if not again:
            self.visit += 1
        label = self.plan.known(state)
        assert label is not None
        registered = None if label in self.plan.exits else self.plan.states[label]
        if self.audience:
            self.audience.tell("on_state_enter", StateEntered)
        data = self.saved
        if registered is not None and registered.leaves_no_row:
            self.journal.pass_by()
            return registered
        name, blob = ("", None) if registered is None else (registered.name, self.stored_branches)
        await self.journal.enter(label, name, visit=self.visit, data=data, again=again, blob=blob)
        return registered

    def hand_over(self, branches: Branches, state: Any) -> None:
        """Keep the results of a split for the state that follows, encoded too if that one's row is to hold them.

        Raises:
            TaskExecutionError: a value cannot be stored.
        """
        following = self.plan.states.get(self.plan.known(state) or "")
        shown = following is not None and following.label not in self.plan.exits and not following.leaves_no_row
        self.stored_branches = dump_branches(branches) if shown and self.store is not None else None
        self.branches = branches

    def save(self) -> bytes | None:
        """Encode the run's data for a row, and keep that: it is what a failed attempt is taken back to.

        Raises:
            TaskExecutionError: it cannot be stored exactly.
        """
        value = self.data.value
        self.saved = None if value is None else bytes(self.plan.data.encode(value))
        return self.saved

    def restore(self) -> None:
        """Take `ctx.data` back to what the last row holds."""
        self.data.value = self.copied_data()

    def copied_data(self) -> Any:
        """A copy of `ctx.data` as the last row holds it."""
        return None if self.saved is None else self.plan.data.decode(self.saved)

    def retrying(self, attempt: int, delay: float, error: Exception, *, task: str | None = None) -> None:
        """Tell the observers that an attempt failed and another follows."""
        self.audience.tell(
            "on_retry", Retried, task=task or self.task, attempt=attempt, delay=delay, error_type=type(error).__name__
        )

    def refused(self, *, task: str | None = None) -> None:
        """Tell the observers that a circuit breaker refused an attempt."""
        self.audience.tell("on_circuit_open", TaskEvent, task=task or self.task)

    def context(self, registered: Registration, *, state: Any = None) -> Context[Any]:
        """What the hooks of a visit get. The results of a split are for the state right after it."""
        ctx: Context[Any] = Context(
            resources=self.resources,
            workflow_id=self.workflow_id,
            state=self.state if state is None else state,
            task=registered.name,
            token=self.token,
            data=self.data,
        )
        ctx.branches, self.task = self.branches, registered.name
        if not registered.leaves_no_row:  # a router sees them and hands them on
            self.branches = self.stored_branches = None
        return ctx

    def written(self, row: CheckpointRow) -> None:
        """A row is durable."""
        if self.audience:
            self.audience.tell("on_checkpoint", Checkpointed, sequence=row.sequence, kind=str(row.kind))

    @property
    def hint(self) -> str:
        """What the message of a run that was only paused ends with."""
        return f"; resume_from({self.workflow_id!r}) goes on"

    def stopped(self) -> CanoError:
        """The error that says why the brake was pressed; the same one whenever it is asked for."""
        if self.halt is None:
            resumable = self.store is not None and self.journal.sequence > 0
            go_on = self.hint if resumable else ""
            cut = " in mid-drain" if self.brake.aborted else ""
            if self.brake.reason is Halt.TIMED_OUT:
                elapsed, limit = self.budget.elapsed, self.budget.limit or 0.0
                self.halt = WorkflowTimeoutError(
                    f"run {self.workflow_id!r} was stopped{cut} by its total timeout of {limit:g} s after {elapsed:.3f} s{go_on}",
                    elapsed=elapsed,
                    limit=limit,
                )
            else:
                self.halt = WorkflowCancelledError(f"run {self.workflow_id!r} was cancelled{cut}{go_on}")
        return self.halt


class Story:
    """What the observers are told of one task: that it starts, how it ended, and after how long."""

    __slots__ = ("_audience", "_began", "_kind", "_task")

    def __init__(self, run: Run, task: str, kind: TaskKind) -> None:
        self._audience = run.audience
        self._task = task
        self._kind = kind
        self._began = now() if run.audience else 0.0

    def begin(self) -> None:
        """It starts."""
        self._audience.tell("on_task_start", TaskStarted, task=self._task, kind=self._kind)

    def succeeded(self) -> None:
        """It chose what follows."""
        if self._audience:
            self._audience.tell("on_task_success", TaskSucceeded, task=self._task, kind=self._kind, seconds=now() - self._began)

    def failed(self, error: CanoError) -> None:
        """It failed or was stopped."""
        if self._audience:
            seconds = now() - self._began
            self._audience.tell("on_task_failure", TaskFailed, task=self._task, kind=self._kind, seconds=seconds, error=error)
