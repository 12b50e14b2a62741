"""Run: all that one execution carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cano.brake import Brake, Halt
from cano.cancel import CancellationToken
from cano.context import Context, RunData
from cano.errors import CanoError, WorkflowCancelledError, WorkflowTimeoutError
from cano.observer import Audience, Checkpointed, StateEntered
from cano.recovery.checkpoint import CheckpointRow
from cano.recovery.journal import Journal
from cano.recovery.store import CheckpointStore
from cano.resources import Resources
from cano.workflow.budget import Budget
from cano.workflow.plan import Plan, Registration


@dataclass(slots=True)
class Run:
    """One execution of a workflow: what it was given, and where it is."""

    plan: Plan
    workflow_id: str
    store: CheckpointStore | None
    version: int
    resources: Resources
    token: CancellationToken
    brake: Brake
    budget: Budget
    audience: Audience
    data: RunData[Any]
    journal: Journal
    path: list[Any] = field(default_factory=list)
    visit: int = -1
    state: Any = None
    halt: CanoError | None = None

    async def enter(self, state: Any, *, again: bool) -> Registration | None:
        """Enter a state and record it. Gives what is registered there, or None for an exit state."""
        self.state = self.audience.state = state
        self.path.append(state)
        if not again:
            self.visit += 1
        label = self.plan.known(state)
        assert label is not None
        registered = None if label in self.plan.exits else self.plan.states[label]
        if self.audience:
            self.audience.tell("on_state_enter", StateEntered)
        name = "" if registered is None else registered.name
        await self.journal.enter(label, name, visit=self.visit, data=self.encoded_data(), again=again)
        return registered

    def encoded_data(self) -> bytes | None:
        """The run's data as a row holds it.

        Raises:
            TaskExecutionError: it cannot be stored exactly.
        """
        value = self.data.value
        return None if value is None else bytes(self.plan.data.encode(value))

    def context(self, registered: Registration) -> Context[Any]:
        """What the hooks of a visit get."""
        return Context(
            resources=self.resources,
            workflow_id=self.workflow_id,
            state=self.state,
            task=registered.name,
            token=self.token,
            data=self.data,
        )

    def written(self, row: CheckpointRow) -> None:
        """A row is durable."""
        if self.audience:
            self.audience.tell("on_checkpoint", Checkpointed, sequence=row.sequence, kind=str(row.kind))

    def stopped(self) -> CanoError:
        """The error that says why the brake was pressed; the same one whenever it is asked for."""
        if self.halt is None:
            go_on = f"; resume_from({self.workflow_id!r}) goes on" if self.store is not None else ""
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
