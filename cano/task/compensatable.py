"""CompensatableTask: a step that can be undone."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from cano.context import Context
from cano.task.config import TaskConfig
from cano.task.declared import returned_pair, type_argument
from cano.task.task import Hooks, Named

StateT = TypeVar("StateT")
OutputT = TypeVar("OutputT")


class CompensatableTask(Named, Hooks, Generic[StateT, OutputT]):
    """A step of a saga: once it has completed it is undone if the run fails later.

    Its output and its decision become durable in one row, so a resume goes on after it and never runs it twice. The
    output's type is taken from `CompensatableTask[State, Output]` or from `run(...) -> tuple[State, Output]`; without
    either it must be JSON-native.

    config:  how the attempts of `run` are run; by default an Exception is retried with `ExponentialBackoff()`. Of
             `compensate` only `attempt_timeout` applies
    """

    config: TaskConfig = TaskConfig()

    @abstractmethod
    async def run(self, ctx: Context[Any]) -> tuple[StateT, OutputT]:
        """Do the step, and return the next state and what `compensate` needs to undo it.

        Idempotency: a step whose row did not become durable runs again in a resume.
        Raises: an Exception is retried as `config` says; a step that failed is not compensated.
        Cancellation: neither a cancel nor the total timeout interrupts it; only `attempt_timeout` does.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`

    @abstractmethod
    async def compensate(self, ctx: Context[Any], output: OutputT) -> None:
        """Undo the step.

        Idempotency: called again by a resume if it failed, or if the process died before its row was durable.
        Raises: an Exception is collected; the other steps are compensated all the same.
        Cancellation: no token cuts it, only `compensation_timeout` and `attempt_timeout`.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`


def output_type(task: CompensatableTask[Any, Any]) -> Any:
    """The declared output type, or None if none was declared."""
    declared = type_argument(task, CompensatableTask, 1)
    return declared if declared is not None else returned_pair(task.run)
