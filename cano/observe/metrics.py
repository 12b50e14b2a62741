"""What is counted of runs, and the metrics that follow from it. Knows no metrics library."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from cano.errors import CanoError, WorkflowCancelledError, WorkflowTimeoutError
from cano.observe.label import shown, state_name
from cano.observe.tally import Family, Names, Number, Tally, Timing, counts, grouped, numbers, timings
from cano.observer import Outcome

T = TypeVar("T", Number, Timing)


def _workflow(workflow: str, *names: str) -> Names:
    return (shown(workflow), *(shown(name) for name in names))


def _task(workflow: str, kind: type[Any], state: Any, task: str, what: str, outcome: str) -> Names:
    return shown(workflow), state_name(state), shown(task), what, outcome


def _state(workflow: str, kind: type[Any], state: Any, *names: str) -> Names:
    return (shown(workflow), state_name(state), *names)


class RunCounts:
    """Everything that is counted of runs. Cells are changed and copied with `lock` held."""

    def __init__(self) -> None:
        self.lock = lock = threading.RLock()
        self.runs: Tally[Timing] = Tally(Timing, _workflow, lock)  # workflow, outcome
        self.active: Tally[Number] = Tally(Number, _workflow, lock)
        self.resumes: Tally[Number] = Tally(Number, _workflow, lock)
        self.tasks: Tally[Timing] = Tally(Timing, _task, lock)  # workflow, state, task, kind, outcome
        self.retries: Tally[Number] = Tally(Number, _workflow, lock)  # workflow, task
        self.refusals: Tally[Number] = Tally(Number, _workflow, lock)  # workflow, task
        self.states: Tally[Number] = Tally(Number, _state, lock)
        self.windows: Tally[Number] = Tally(Number, _state, lock)
        self.outputs: Tally[Number] = Tally(Number, _state, lock)
        self.drops: Tally[Number] = Tally(Number, _state, lock)  # workflow, state, dead_lettered
        self.rows: Tally[Number] = Tally(Number, _workflow, lock)  # workflow, kind
        self.compensations: Tally[Number] = Tally(Number, _workflow, lock)  # workflow, result
        self.clears: Tally[Number] = Tally(Number, _workflow, lock)
        self.teardowns: Tally[Number] = Tally(Number, _workflow, lock)

    def expect_runs(self, workflow: str) -> None:
        """Have the series of a workflow's runs begin at 0: what only appears with its first failure looks like no increase."""
        self.active.find((workflow,))
        for outcome in get_args(Outcome):
            self.runs.find((workflow, outcome))
        for result in ("ok", "err"):
            self.compensations.find((workflow, result))
        for tally in (self.resumes, self.clears, self.teardowns):
            tally.find((workflow,))

    def expect_task(self, workflow: str, state: Any, task: str, kind: str) -> None:
        """Have the series of a task's failures begin at 0."""
        for outcome in ("completed", "failed", "cancelled", "timeout"):
            self.tasks.find((workflow, state.__class__, state, task, kind, outcome))
        self.retries.find((workflow, task))
        self.refusals.find((workflow, task))
        if kind == "stream":
            self.windows.find((workflow, state.__class__, state))
            self.outputs.find((workflow, state.__class__, state))
            for lettered in ("true", "false"):
                self.drops.find((workflow, state.__class__, state, lettered))

    def families(self) -> list[Family]:
        """The metrics as they are now, all of one moment."""
        with self.lock:
            taken = {name: tally.snapshot() for name, tally in vars(self).items() if isinstance(tally, Tally)}
        return [*_of_runs(taken), *_of_tasks(taken["tasks"]), *_of_events(taken)]


def outcome_of(error: CanoError) -> str:
    """How a task ended that failed with this."""
    if isinstance(error, WorkflowTimeoutError):
        return "timeout"
    return "cancelled" if isinstance(error, WorkflowCancelledError) else "failed"


def _of_runs(taken: Mapping[str, Any]) -> Iterator[Family]:
    runs: dict[Names, Timing] = taken["runs"]
    by = ("workflow", "outcome")
    yield Family("counter", "cano_workflow_runs", "Executions that ended, by outcome.", by, counts(runs))
    yield Family("histogram", "cano_workflow_duration_seconds", "How long executions took.", by, timings(runs))
    yield Family("gauge", "cano_workflow_active", "Executions going on.", ("workflow",), numbers(taken["active"]))
    yield Family("counter", "cano_resumes", "Executions that went on from a log.", ("workflow",), numbers(taken["resumes"]))
    timeouts = {names[:1]: cell for names, cell in runs.items() if names[1] == "timeout"}
    text = "Executions stopped by their total timeout."
    yield Family("counter", "cano_observed_workflow_timeouts", text, ("workflow",), counts(timeouts))
    cancels = {names[:1]: cell for names, cell in runs.items() if names[1] == "cancelled"}
    yield Family("counter", "cano_observed_cancellations", "Executions stopped by a cancel.", ("workflow",), counts(cancels))


def _of_tasks(tasks: Mapping[Names, Timing]) -> Iterator[Family]:
    def of(kind: str) -> dict[Names, Timing]:
        return {names: cell for names, cell in tasks.items() if names[3] == kind}

    text = "How long visits of a state took, and branches, by kind of task."
    yield Family("histogram", "cano_task_duration_seconds", text, ("workflow", "state", "kind"), timings(grouped(tasks, 0, 1, 3)))
    text = "Tasks and branches that ended."
    yield Family("counter", "cano_observed_task_runs", text, ("workflow", "task", "outcome"), counts(grouped(tasks, 0, 2, 4)))
    results = _renamed(of("branch"), {"completed": "success", "failed": "failure"})
    text = "Branches of splits that ended."
    yield Family("counter", "cano_split_branch_results", text, ("workflow", "result"), counts(results))
    late = {"timeout": "failed"}
    by = ("workflow", "outcome")
    batches = _renamed(of("batch"), {**late, "cancelled": "failed"})
    yield Family("counter", "cano_batch_runs", "Batches that ended.", by, counts(batches))
    yield Family("counter", "cano_stream_runs", "Streams that ended.", by, counts(_renamed(of("stream"), late)))


def _renamed(tasks: Mapping[Names, Timing], outcomes: Mapping[str, str]) -> dict[Names, Timing]:
    """Tasks by workflow and outcome, where some outcomes have another name."""
    named = [((names[0], outcomes.get(names[4], names[4])), cell) for names, cell in tasks.items()]
    found: dict[Names, Timing] = {}
    for key, cell in named:
        found.setdefault(key, Timing()).merge(cell)
    return found


def _of_events(taken: Mapping[str, Any]) -> Iterator[Family]:
    alone, in_state, of_task = ("workflow",), ("workflow", "state"), ("workflow", "task")
    rows = (
        ("states", "cano_state_enters", "States entered.", in_state),
        ("retries", "cano_task_retries", "Attempts that failed and were repeated.", of_task),
        ("refusals", "cano_circuit_open_events", "Attempts that a circuit breaker refused.", of_task),
        ("rows", "cano_checkpoints_observed", "Rows that became durable.", ("workflow", "kind")),
        ("windows", "cano_stream_windows_committed", "Windows flushed and committed.", in_state),
        ("outputs", "cano_stream_outputs_committed", "Outputs in committed windows.", in_state),
        ("drops", "cano_stream_items_dropped", "Items that the error policy dropped.", (*in_state, "dead_lettered")),
        ("compensations", "cano_compensations_run", "Compensations of completed steps.", ("workflow", "result")),
        ("clears", "cano_checkpoint_clear_failures", "Logs of completed runs that could not be removed.", alone),
        ("teardowns", "cano_teardown_failures", "Resources that failed to tear down.", alone),
    )
    for key, name, text, labels in rows:
        yield Family("counter", name, text, labels, numbers(taken[key]))
