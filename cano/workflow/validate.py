"""A definition to every problem in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cano.errors import ConfigurationError
from cano.recovery.store import CheckpointStore, Transactional
from cano.task.split import Split
from cano.task.stream import StreamTask
from cano.workflow.nested import SubWorkflow
from cano.workflow.plan import Registration, described, label_of


def problems(
    states: Mapping[str, Registration],
    exits: Mapping[str, Any],
    aliases: Mapping[str, Any],
    store: CheckpointStore | None,
) -> list[str]:
    """Everything that would keep a workflow from running."""
    found = []
    if not states:
        found.append("no registered state handlers: register(state, task)")
    if not exits:
        found.append("no exit states defined: add_exit_state(state)")
    for label, registered in states.items():
        task = registered.task
        if isinstance(task, StreamTask) and task.transactional and not isinstance(store, Transactional):
            what = "there is no checkpoint store" if store is None else f"a {type(store).__name__} has no transactions"
            found.append(f"state {label}: {registered.name} is transactional, but {what}; use SqliteCheckpointStore")
        if isinstance(task, Split) and not _known(task.then, states, exits):
            found.append(f"state {label}: Split(then=...) is neither registered nor an exit state")
        if isinstance(task, SubWorkflow):
            found += _nested_problems(label, task, states, exits)
    for old, state in aliases.items():
        found += _alias_problems(old, state, states, exits)
    return found


def _nested_problems(label: str, sub: SubWorkflow, states: Mapping[str, Registration], exits: Mapping[str, Any]) -> list[str]:
    found = []
    for end in sub.workflow.exit_states:
        if sub.exits is not None and end not in sub.exits:
            found.append(f"state {label}: SubWorkflow(exits=...) misses the exit state {described(end)} of {sub.name}")
        elif not _known(sub.chosen(end), states, exits):
            what = f"its exit state {described(end)} leads to {described(sub.chosen(end))}, which"
            found.append(f"state {label}: SubWorkflow of {sub.name}: {what} is neither registered nor an exit state")
    return found


def _alias_problems(old: str, state: Any, states: Mapping[str, Registration], exits: Mapping[str, Any]) -> list[str]:
    if old in states or old in exits:
        return [f"aliases: {old!r} is the label of a state in use"]
    if not _known(state, states, exits):
        return [f"aliases: {old!r} leads to {described(state)}, which is neither registered nor an exit state"]
    return []


def check_aliases(aliases: Any) -> dict[str, Any]:
    """Return a workflow's aliases.

    Raises:
        ConfigurationError: they are no mapping of labels to states.
    """
    if not isinstance(aliases, Mapping | None):
        raise ConfigurationError(f"aliases must map old labels to states, not be a {type(aliases).__name__}")
    for old, state in (aliases or {}).items():
        if not isinstance(old, str) or not old:
            raise ConfigurationError("aliases: an old label must be a str that is not empty")
        label_of(state)
    return dict(aliases or {})


def _known(state: Any, states: Mapping[str, Registration], exits: Mapping[str, Any]) -> bool:
    try:
        label = label_of(state)
    except ConfigurationError:
        return False
    known = exits[label] if label in exits else states[label].state if label in states else None
    return type(known) is type(state) and bool(known == state)


def check_id(workflow_id: Any) -> str:
    """Return a run's id.

    Raises:
        ConfigurationError: it is not 1 to 255 printable characters.
    """
    if not isinstance(workflow_id, str):
        raise ConfigurationError(f"workflow_id must be a str, not a {type(workflow_id).__name__}")
    if not 1 <= len(workflow_id) <= 255 or not workflow_id.isprintable():
        raise ConfigurationError("workflow_id must be 1 to 255 printable characters, without control characters")
    return workflow_id


def check_store(store: Any) -> CheckpointStore | None:
    """Return a workflow's store.

    Raises:
        ConfigurationError: it lacks a method of a store.
    """
    if store is None:
        return None
    missing = [name for name in ("append", "load_run", "clear") if not callable(getattr(store, name, None))]
    if isinstance(store, type) or missing:
        what = f"the class {store.__name__}" if isinstance(store, type) else f"a {type(store).__name__}"
        raise ConfigurationError(
            f"checkpoint_store must have append, load_run and clear, as SqliteCheckpointStore(path) does; this is {what}"
        )
    return store  # type: ignore[no-any-return]  # just checked
