"""SubWorkflow: a workflow as the task of a state, or as a branch, of another."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from cano.context import Context
from cano.errors import ConfigurationError


class SubWorkflow:
    """Run a workflow inside a state of another, and go on by the exit state it ends in.

    workflow:  the inner workflow
    initial:   the state it starts in
    exits:     for each of its exit states the outer state to go on with; None if its exit states are states of the
               outer one
    data:      a function of the outer context that gives the inner run's `ctx.data`; None for no data

    The inner run has an id made from the outer run's id, state and visit. If both workflows have a checkpoint store, a
    resume of the outer run resumes the inner one, and one that had completed is not run again; otherwise it runs again.
    A cancel or the total timeout of the outer run drains the inner one. Observers of the outer workflow see the inner
    run's events; an error keeps the inner state, and its path leads there from the outer start. An inner run that has
    completed is one step of the outer one: a rollback of that does not compensate inside of it.

    Raises:
        ConfigurationError: an exit state is missing in `exits`, or an argument is of the wrong type.
    """

    def __init__(
        self,
        workflow: Any,
        initial: Any,
        *,
        exits: Mapping[Any, Any] | None = None,
        data: Callable[[Context[Any]], Any] | None = None,
    ) -> None:
        if not callable(getattr(workflow, "orchestrate", None)):
            raise ConfigurationError(f"SubWorkflow needs a Workflow, not a {type(workflow).__name__}")
        workflow.validate(initial)
        self.workflow = workflow
        self.initial = initial
        self.exits = None if exits is None else dict(exits)
        self.data = data
        self.name = str(workflow.name)
        missing = [] if exits is None else [state for state in workflow.exit_states if state not in exits]
        if missing:
            raise ConfigurationError(f"SubWorkflow(exits=...) misses {len(missing)} exit states of {self.name}")

    def chosen(self, end: Any) -> Any:
        """The outer state for an exit state of the inner workflow."""
        return end if self.exits is None else self.exits[end]


def inner_id(outer: str, label: str, visit: int, task: str) -> str:
    """The id of an inner run: readable if that is a valid id, else with a digest in the place of what makes it invalid."""
    readable = f"{outer}/{label}.{visit}/{task}"
    if len(readable) <= 255 and readable.isprintable():
        return readable
    return f"{outer[:180]}/{hashlib.sha256(readable.encode(errors='surrogatepass')).hexdigest()}"
