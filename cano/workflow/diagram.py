"""Pictures of a workflow, as text.

An edge is known from a `Literal` in a return annotation; a state without any is drawn alone.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Mapping
from typing import Any

from cano.task.stream import Stop, StreamTask
from cano.task.task import FunctionTask
from cano.workflow.plan import Registration, label_of


def edges(states: Mapping[str, Registration]) -> list[tuple[str, str]]:
    """Pairs of labels, in order of registration."""
    found: list[tuple[str, str]] = []
    for label, registered in states.items():
        for hook in _deciding(registered.task):
            found += [(label, label_of(state)) for state in _literals(_returned(hook))]
    return list(dict.fromkeys(found))


def _deciding(task: Any) -> list[Any]:
    if isinstance(task, StreamTask):
        return [task.flush_window, task.on_close]
    return [task.function if isinstance(task, FunctionTask) else task.run]


def _returned(hook: Any) -> Any:
    try:
        return typing.get_type_hints(inspect.unwrap(hook)).get("return")
    except Exception:  # names that exist for the type checker only
        return None


def _literals(annotation: Any) -> list[Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return [state for state in arguments if state is not None]
    if origin is None or (isinstance(origin, type) and not issubclass(origin, Stop) and origin is not type(int | str)):
        return []
    return [state for argument in arguments for state in _literals(argument)]


def to_mermaid(states: Mapping[str, Registration], exits: Mapping[str, Any]) -> str:
    """A Mermaid state diagram. Each state is declared once, under an id of its own, with its label and task."""
    ids = {label: f"s{number}" for number, label in enumerate([*states, *(label for label in exits if label not in states)])}
    lines = ["stateDiagram-v2"]
    for label, short in ids.items():
        text = label if label in exits or label not in states else f"{label}<br/>{states[label].name}"
        lines.append(f'    state "{_escaped(text)}" as {short}')
    lines += [f"    {ids[start]} --> {ids[end]}" for start, end in edges(states) if end in ids and start not in exits]
    lines += [f"    {ids[label]} --> [*]" for label in exits]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "#quot;").replace("\n", " ")


def to_dot(states: Mapping[str, Registration], exits: Mapping[str, Any], name: str) -> str:
    """A Graphviz digraph; exit states have a double border."""
    lines = [f"digraph {_quoted(name)} {{", "    rankdir=LR;"]
    for label in [*states, *(label for label in exits if label not in states)]:
        shape = "doublecircle" if label in exits else "box"
        lines.append(f"    {_quoted(label)} [shape={shape}];")
    lines += [f"    {_quoted(start)} -> {_quoted(end)};" for start, end in edges(states) if start not in exits]
    return "\n".join(lines) + "\n}\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
