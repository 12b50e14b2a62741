"""Plan: a workflow's definition as its runs use it. States and their labels, tasks and their codecs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

from cano.errors import ConfigurationError, WorkflowError, label_text
from cano.recovery.codec import UNDECLARED, Codec
from cano.task.stream import StreamTask, cursor_type, settings_of
from cano.task.task import FunctionTask, Task, missing_hooks


def label_of(state: Any) -> str:
    """The label that a log stores for a state: an enum member's name, or the string itself.

    Raises:
        ConfigurationError: it is neither an enum member nor a string with something in it.
    """
    if isinstance(state, Enum):
        if state.name:
            return state.name
    elif isinstance(state, str) and state:
        return state
    raise ConfigurationError(f"a state must be an Enum member or a non-empty str, not a {type(state).__name__}")


@dataclass(frozen=True, slots=True)
class Registration:
    """One registered state: its task, and the codec of its cursors if it is a stream."""

    state: Any
    label: str
    task: Any
    codec: Codec | None

    @property
    def name(self) -> str:
        """The task's name."""
        return str(self.task.name)


def registration(state: Any, task: Any) -> Registration:
    """Check a state and its task, and pair them.

    Raises:
        ConfigurationError: this is no state, or no task, or the task's class lacks a hook or has a wrong attribute.
    """
    label = label_of(state)
    if isinstance(task, type):
        raise ConfigurationError(f"state {label}: register an instance, {task.__name__}(...), not the class")
    codec = None
    if isinstance(task, StreamTask | Task):
        if missing := missing_hooks(task):
            raise ConfigurationError(f"{type(task).__name__} must define {', '.join(missing)}")
        if not isinstance(task.name, str) or not task.name:
            raise ConfigurationError(f"{type(task).__name__}.name must be a str that is not empty")
    if isinstance(task, StreamTask):
        settings_of(task)
        codec = _cursor_codec(task)
    elif isinstance(task, Task):
        if not inspect.iscoroutinefunction(task.run):
            raise ConfigurationError(f"{type(task).__name__}.run must be declared with async def")
    elif _async_callable(task):
        task = FunctionTask(task)
    else:
        raise ConfigurationError(
            f"state {label}: a {type(task).__name__} is no task; give a Task, a StreamTask or an async def f(ctx) -> state"
        )
    return Registration(state, label, task, codec)


def _async_callable(task: Any) -> bool:
    return inspect.iscoroutinefunction(task) or inspect.iscoroutinefunction(getattr(task, "__call__", None))  # noqa: B004 - it has to be async


def _cursor_codec(task: StreamTask[Any, Any, Any, Any]) -> Codec:
    declared = cursor_type(task)
    return Codec(
        UNDECLARED if declared is None else declared,
        what=f"the cursor of {task.name}",
        remedy="declare the cursor's type: StreamTask[State, Item, Output, Cursor]",
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked definition, by label. `exits` win over `states`; `aliases` lead from old labels to states of today."""

    states: MappingProxyType[str, Registration]
    exits: MappingProxyType[str, Any]
    aliases: MappingProxyType[str, Any]
    data: Codec

    def known(self, value: Any) -> str | None:
        """The label of a state that is registered or an exit state; None for anything else."""
        try:
            label = label_of(value)
        except ConfigurationError:
            return None
        if label in self.exits:
            state = self.exits[label]
        elif label in self.states:
            state = self.states[label].state
        else:
            return None
        return label if type(state) is type(value) and state == value else None

    def next_label(self, value: Any, task: str) -> str:
        """The label of the state that a task chose.

        Raises:
            WorkflowError: nobody registered it.
        """
        label = self.known(value)
        if label is None:
            raise WorkflowError(f"{task} chose {described(value)}, which is no state of this workflow; {self.listing()}")
        return label

    def find(self, label: str) -> Any:
        """The state behind a stored label, or None."""
        if label in self.exits:
            return self.exits[label]
        if label in self.states:
            return self.states[label].state
        return self.aliases.get(label)

    def listing(self) -> str:
        """The known states, for messages."""
        exits = ", ".join(self.exits) or "none"
        return f"registered: {', '.join(self.states) or 'none'}; exit states: {exits}"


def described(value: Any) -> str:
    """A value that ought to be a state, for messages: named if it might be one, else only its type."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str):
        return repr(label_text(value))
    return "None" if value is None else f"a value of type {type(value).__name__}"
