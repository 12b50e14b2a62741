"""Plan: a workflow's definition as its runs use it. States and their labels, tasks and their codecs."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Any

from cano.errors import ConfigurationError, WorkflowError, label_text
from cano.observer import TaskKind
from cano.recovery.codec import UNDECLARED, Codec
from cano.task.batch import BatchTask, check_batch
from cano.task.compensatable import CompensatableTask, output_type
from cano.task.config import TaskConfig
from cano.task.policy import FailFast, RetryOnError
from cano.task.poll import PollTask
from cano.task.router import RouterTask
from cano.task.split import Split
from cano.task.stepped import SteppedTask, step_cursor_type
from cano.task.stream import StreamTask, cursor_type, settings_of
from cano.task.task import FunctionTask, Task, missing_hooks
from cano.task.timer import TimerTask
from cano.workflow.nested import SubWorkflow


def label_of(state: Any) -> str:
    """The label that a log stores for a state: an enum member's name, or the string itself.

    Raises:
        ConfigurationError: it is neither an enum member nor a string with something in it.
    """
    if isinstance(state, Enum):
        if name := state._name_:  # which `name` is a slow property of
            return name
    elif isinstance(state, str) and state:
        return state
    raise ConfigurationError(f"a state must be an Enum member or a non-empty str, not a {type(state).__name__}")


@dataclass(frozen=True, slots=True)
class Registration:
    """One registered state: its task, and the codec of its cursors or outputs if it has any."""

    state: Any
    label: str
    task: Any
    name: str
    codec: Codec | None
    leaves_no_row: bool
    kind: TaskKind

    @property
    def has_cursor(self) -> bool:
        """Whether the task goes on at a cursor."""
        return isinstance(self.task, StreamTask | SteppedTask | TimerTask)


_KINDS = (Task, RouterTask, PollTask, TimerTask, BatchTask, SteppedTask, StreamTask, CompensatableTask)
_KIND_NAMES: tuple[tuple[type, TaskKind], ...] = (
    (RouterTask, "router"),
    (PollTask, "poll"),
    (TimerTask, "timer"),
    (BatchTask, "batch"),
    (SteppedTask, "stepped"),
    (StreamTask, "stream"),
    (CompensatableTask, "compensatable"),
    (Split, "split"),
    (SubWorkflow, "workflow"),
)
_BRANCHES = (Task, RouterTask, PollTask, BatchTask, FunctionTask, SubWorkflow)


def registration(state: Any, task: Any) -> Registration:
    """Check a state and its task, and pair them.

    Raises:
        ConfigurationError: this is no state, or no task, or the task's class lacks a hook or has a wrong attribute.
    """
    label = label_of(state)
    task = checked_task(task, f"state {label}")
    return Registration(state, label, task, str(task.name), _codec(task), isinstance(task, RouterTask), _kind(task))


def _kind(task: Any) -> TaskKind:
    return next((name for kind, name in _KIND_NAMES if isinstance(task, kind)), "single")


def checked_task(task: Any, where: str) -> Any:
    """Return a task, a function as one.

    Raises:
        ConfigurationError: it is none, or its class lacks a hook or has a wrong attribute.
    """
    if isinstance(task, type):
        raise ConfigurationError(f"{where}: give an instance, {task.__name__}(...), not the class")
    if isinstance(task, Split):
        return _checked_split(task, where)
    if isinstance(task, SubWorkflow):
        return task
    if isinstance(task, _KINDS):
        _check_class(task)
        return task
    if not _async_callable(task):
        raise ConfigurationError(
            f"{where}: a {type(task).__name__} is no task; give a task object or an async def f(ctx) -> state"
        )
    try:
        inspect.signature(task).bind(None)
    except TypeError:
        raise ConfigurationError(f"{where}: the function must take one argument, async def f(ctx) -> state") from None
    except ValueError:  # no signature to be had
        pass
    return FunctionTask(task)


def _check_class(task: Any) -> None:
    name = type(task).__name__
    if missing := missing_hooks(task):
        raise ConfigurationError(f"{name} must define {', '.join(missing)}")
    if not isinstance(task.name, str) or not task.name:
        raise ConfigurationError(f"{name}.name must be a str that is not empty")
    if isinstance(task, StreamTask):
        settings_of(task)
        return
    for hook in _hooks_of(task):
        if not inspect.iscoroutinefunction(getattr(task, hook)):
            raise ConfigurationError(f"{name}.{hook} must be declared with async def")
    if not isinstance(task.config, TaskConfig):
        raise ConfigurationError(f"{name}.config must be TaskConfig(...), not a {type(task.config).__name__}")
    if isinstance(task, BatchTask):
        check_batch(task)
    if isinstance(task, PollTask) and not isinstance(task.on_poll_error, FailFast | RetryOnError):
        raise ConfigurationError(f"{name}.on_poll_error must be FailFast() or RetryOnError(n)")


def _hooks_of(task: Any) -> list[str]:
    """The hooks of a task's kind: what its base declares as abstract."""
    kind = next(kind for kind in _KINDS if isinstance(task, kind))
    return [name for name, value in vars(kind).items() if getattr(value, "__isabstractmethod__", False)]


def _checked_split(split: Split[Any], where: str) -> Split[Any]:
    checked = [checked_task(branch, f"{where}, branch {place}") for place, branch in enumerate(split.branches)]
    for place, branch in enumerate(checked):
        if not isinstance(branch, _BRANCHES):
            raise ConfigurationError(
                f"{where}, branch {place}: a {type(branch).__name__} cannot be a branch, for it writes rows of its own; "
                "give a function, a Task, a RouterTask, a PollTask, a BatchTask or a SubWorkflow"
            )
    label_of(split.then)
    split.branches = checked
    return split


def _async_callable(task: Any) -> bool:
    return inspect.iscoroutinefunction(task) or inspect.iscoroutinefunction(
        getattr(task, "__call__", None)  # noqa: B004 - it has to be async
    )


def _codec(task: Any) -> Codec | None:
    """The codec of a task's cursors or outputs."""
    name = str(task.name)
    kinds: dict[type, tuple[Any, str, str]] = {
        StreamTask: (cursor_type, "cursor", "StreamTask[State, Item, Output, Cursor]"),
        SteppedTask: (step_cursor_type, "cursor", "SteppedTask[State, Cursor]"),
        CompensatableTask: (output_type, "output", "CompensatableTask[State, Output]"),
        TimerTask: (lambda task: datetime, "deadline", ""),
    }
    for kind, (declared_by, what, form) in kinds.items():
        if isinstance(task, kind):
            declared = declared_by(task)
            return Codec(
                UNDECLARED if declared is None else declared,
                what=f"the {what} of {name}",
                remedy=f"declare the {what}'s type: {form}",
            )
    return None


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

    def label(self, stored: str) -> str:
        """The label of today for a stored one."""
        return label_of(self.aliases[stored]) if stored in self.aliases else stored

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
