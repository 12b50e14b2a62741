"""RouterTask: a state that only decides, and leaves no row."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from cano.context import Context
from cano.task.config import TaskConfig
from cano.task.task import Hooks, Named

StateT = TypeVar("StateT")


class RouterTask(Named, Hooks, Generic[StateT]):
    """A state that only decides where to go. It writes no row, so a resume never starts here, and repeats it."""

    config: TaskConfig = TaskConfig()

    @abstractmethod
    async def route(self, ctx: Context[Any]) -> StateT:
        """Return the next state.

        Idempotency: repeated by a resume of the state before it.
        Raises: an Exception is retried as `config` says.
        Cancellation: interrupted at its next await.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`
