"""Task: one state's work, as a class or as a function; and what all kinds of tasks have in common."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cano.context import Context
from cano.task.config import TaskConfig

StateT = TypeVar("StateT")

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


class Named:
    """Something with a `name`: that of its class, unless the class or the object says otherwise."""

    if TYPE_CHECKING:
        name: str = ""
    else:
        name = ClassName()


class Task(Named, Hooks, Generic[StateT]):
    """One state's work: `run` does it and returns the next state.

    A task object is shared by all runs of its workflow and is never copied: what belongs to one run goes into
    `ctx.data`. A resumed run runs the task of the state it was in again, so `run` must be idempotent.

    config:  how its attempts are run; by default an Exception is retried with `ExponentialBackoff()`
    """

    config: TaskConfig = TaskConfig()

    @abstractmethod
    async def run(self, ctx: Context[Any]) -> StateT:
        """Do the work and return the next state.

        Raises: an Exception is retried as `config` says; in the end the run fails and can be resumed.
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
