"""Task: one state's work. And how what user code raises is turned into an error of ours."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cano.context import Context
from cano.errors import (
    AttemptTimeoutError,
    CanoError,
    CheckpointStoreError,
    TaskExecutionError,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)

StateT = TypeVar("StateT")

_OF_A_RUN = (WorkflowCancelledError, WorkflowTimeoutError, CheckpointStoreError, AttemptTimeoutError)

if TYPE_CHECKING:
    from abc import ABC

    class Hooks(ABC):  # noqa: B024 - its heirs have the abstract methods
        """Lets type checkers see which hooks a class still lacks."""
else:

    class Hooks:
        """At run time missing hooks are reported by `register`, all at once, and not by instantiation."""


class ClassName:
    """The default of `name`: the name of the class, unless a class or an instance sets another."""

    def __get__(self, instance: Any, owner: type) -> str:
        return owner.__name__


class Task(Hooks, Generic[StateT]):
    """One state's work: `run` does it and returns the next state.

    A task object is shared by all runs of its workflow and is never copied: what belongs to one run goes into
    `ctx.data`. A resumed run runs the task of the state it was in again, so `run` must be idempotent.
    """

    if TYPE_CHECKING:
        name: str = ""
    else:
        name = ClassName()

    @abstractmethod
    async def run(self, ctx: Context[Any]) -> StateT:
        """Do the work and return the next state.

        Raises: anything; the run fails with a `TaskExecutionError` and can be resumed.
        Cancellation: a cancel or the total timeout interrupts it at its next await.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`


class FunctionTask:
    """An `async def f(ctx) -> state` as a task."""

    def __init__(self, function: Callable[[Context[Any]], Awaitable[Any]]) -> None:
        self.function = function
        inner: Any = inspect.unwrap(function)
        self.name: str = getattr(inner, "__name__", None) or type(inner).__name__

    async def run(self, ctx: Context[Any]) -> Any:
        """Call the function."""
        return await self.function(ctx)


def missing_hooks(task: object) -> list[str]:
    """The names of the hooks that a task's class ought to define and does not."""
    names = sorted({name for base in type(task).__mro__ for name in vars(base)})
    return [name for name in names if getattr(getattr(type(task), name, None), "__isabstractmethod__", False)]


def hook_failure(task: str, hook: str, error: BaseException) -> CanoError:
    """The error for an exception of a hook.

    An error of ours that the hook raised, say by looking up a resource, stands for itself. One that tells of another
    run, or of a cancel or timeout that is not this run's, is a failure like any other: only the engine says that of
    its own run.
    """
    if isinstance(error, CanoError) and error.state is None and not isinstance(error, _OF_A_RUN):
        return error
    failure = TaskExecutionError(f"{hook} of {task} raised {type(error).__qualname__}")
    failure.__cause__ = error
    return failure
