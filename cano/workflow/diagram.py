"""Pictures of a workflow, as text.

An edge is known from a `Literal` in a return annotation; a state without any is drawn alone.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any

from cano.task.compensatable import CompensatableTask
from cano.task.poll import Ready
from cano.task.split import Split
from cano.task.stepped import Done
from cano.task.stream import Stop
from cano.task.task import FunctionTask
from cano.workflow.nested import SubWorkflow
from cano.workflow.plan import Registration, label_of

_WORDS = {"class", "classdef", "default", "direction", "end", "fork", "join", "choice", "note", "state", "style", "as"}


def edges(states: Mapping[str, Registration]) -> list[tuple[str, str]]:
    """Pairs of labels, in order of registration."""
    found: list[tuple[str, str]] = []
    for label, registered in states.items():
        found += [(label, label_of(state)) for state in _next_states(registered.task)]
    return list(dict.fromkeys(found))


def _next_states(task: Any) -> list[Any]:
    if isinstance(task, Split):
        return [task.then]
    if isinstance(task, SubWorkflow):
        ends = task.workflow.exit_states if task.exits is None else task.exits.values()
        return sorted(ends, key=label_of)
    return [state for hook in _deciding(task) for state in _literals(_returned(hook))]


def _deciding(task: Any) -> list[Any]:
    """The hooks whose results name the next state."""
    if isinstance(task, FunctionTask):
        return [task.function]
    names = ("flush_window", "on_close", "route", "poll", "after_wait", "finish", "step", "run")
    return [getattr(task, name) for name in names if hasattr(task, name)]


def _returned(hook: Any) -> Any:
    try:
        return typing.get_type_hints(inspect.unwrap(hook)).get("return")
    except Exception:  # names that exist for the type checker only
        return None


def _literals(annotation: Any) -> list[Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return [state for state in arguments if state is not None]
    if origin is tuple:  # a compensatable step's (state, output)
        return _literals(arguments[0])
    if origin in (Stop, Ready, Done, typing.Union, types.UnionType):
        return [state for argument in arguments for state in _literals(argument)]
    return []


def _caption(registered: Registration) -> str:
    """What stands under a state's label: its task, the branches of a split, a sign at what can be undone."""
    task = registered.task
    if isinstance(task, Split):
        names = " | ".join(branch.name for branch in task.branches)
        return f"{type(task.join).__name__}: {names}"
    return f"{registered.name} (undoable)" if isinstance(task, CompensatableTask) else registered.name


def to_mermaid(states: Mapping[str, Registration], exits: Mapping[str, Any]) -> str:
    """A Mermaid state diagram. Each state is declared once, under an id of its own, with its label and task."""
    labels = [*states, *(label for label in exits if label not in states)]
    ids = {label: label if _plain(label) else f"s{number}" for number, label in enumerate(labels)}
    lines = ["stateDiagram-v2"]
    for label, short in ids.items():
        text = label if label in exits or label not in states else f"{label}<br/>{_caption(states[label])}"
        lines.append(f'    state "{_escaped(text)}" as {short}')
    lines += [f"    {ids[start]} --> {ids[end]}" for start, end in edges(states) if end in ids and start not in exits]
    lines += [f"    {ids[label]} --> [*]" for label in exits]
    return "\n".join(lines) + "\n"


def _plain(label: str) -> bool:
    """Whether a label may stand for itself: an identifier that means nothing to Mermaid, nor looks like an id of
    ours.
    """
    return label.isascii() and label.isidentifier() and label.lower() not in _WORDS and not re.fullmatch(r"s\d+", label)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "#quot;").replace("\n", " ")


def to_dot(states: Mapping[str, Registration], exits: Mapping[str, Any], name: str) -> str:
    """A Graphviz digraph; exit states have a double border."""
    lines = [f"digraph {_quoted(name)} {{", "    rankdir=LR;"]
    for label in [*states, *(label for label in exits if label not in states)]:
        shape = "doublecircle" if label in exits else "box"
        text = label if label in exits or label not in states else f"{label}\n{_caption(states[label])}"
        lines.append(f"    {_quoted(label)} [shape={shape}, label={_quoted(text)}];")
    lines += [f"    {_quoted(start)} -> {_quoted(end)};" for start, end in edges(states) if start not in exits]
    return "\n".join(lines) + "\n}\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
