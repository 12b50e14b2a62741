"""SteppedTask: a task in steps, each written down before the next."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cano.context import Context
from cano.task.config import TaskConfig
from cano.task.declared import type_argument
from cano.task.task import Hooks, Named

StateT = TypeVar("StateT")
CursorT = TypeVar("CursorT")
StateT_co = TypeVar("StateT_co", covariant=True)
CursorT_co = TypeVar("CursorT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class More(Generic[CursorT_co]):
    """Returned by `step`: this far, and there is more to do."""

    cursor: CursorT_co = field(repr=False)


@dataclass(frozen=True, slots=True)
class Done(Generic[StateT_co]):
    """Returned by `step`: go on with `state`."""

    state: StateT_co


class SteppedTask(Named, Hooks, Generic[StateT, CursorT]):
    """A task in steps. Each step's cursor is durable, together with `ctx.data`, before the next step begins; a resume
    goes on there.

    config:  the default retries apply to each step alone
    """

    config: TaskConfig = TaskConfig()

    @abstractmethod
    async def step(self, ctx: Context[Any], cursor: CursorT | None) -> More[CursorT] | Done[StateT]:
        """Do one step after `cursor` (None at the start), and return `More(cursor)` or `Done(state)`.

        Idempotency: a step whose cursor did not become durable is done again.
        Raises: an Exception is retried as `config` says, from the same cursor, its changes to `ctx.data` discarded.
        Cancellation: interrupted at its next await; its cursor is not written then.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`


def step_cursor_type(task: SteppedTask[Any, Any]) -> Any:
    """The declared cursor type, or None if none was declared."""
    return type_argument(task, SteppedTask, 1)
