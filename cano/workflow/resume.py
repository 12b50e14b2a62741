"""Where a run starts: fresh, or where its log says. Everything is checked and decoded here, before the first write."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from cano.errors import CanoError, CheckpointStoreError, WorkflowError, WorkflowVersionMismatchError
from cano.recovery.journal import store_failure
from cano.recovery.replay import ResumePoint, replay
from cano.workflow.branches import load_branches
from cano.workflow.rollback import load_error
from cano.workflow.run import Run


@dataclass(frozen=True, slots=True)
class Start:
    """The state to enter; whether it is entered again; the decoded cursor; the last row's sequence if there was a log.

    `original` is the error of a run that was rolling back: it goes on with that and enters nothing.
    """

    state: Any
    again: bool = False
    cursor: Any = None
    sequence: int | None = None
    original: CanoError | None = None


async def find_start(run: Run, initial: Any, resume: bool, if_exists: str) -> Start:
    """Decide where a run starts. Writes nothing, except that `if_exists="discard"` clears an old log.

    Raises:
        CheckpointStoreError: there is no log to resume, or it cannot be read.
        WorkflowVersionMismatchError, WorkflowError, CursorError: the log is not of this workflow as it is now.
    """
    store = run.store
    if store is None or (not resume and if_exists == "error"):
        return Start(initial)
    if if_exists == "discard" and not resume:
        await run.journal.clear()
        return Start(initial)
    try:
        rows = await store.load_run(run.workflow_id)
    except (asyncio.CancelledError, Exception) as error:
        raise store_failure("load a run", error) from error
    point = replay(run.workflow_id, rows)
    if point is not None:
        return _at(run, point)
    if resume:
        raise CheckpointStoreError(f"no checkpoint rows for run {run.workflow_id!r}: it was never started, or has completed")
    return Start(initial)


def _at(run: Run, point: ResumePoint) -> Start:
    if point.version != run.version:
        raise WorkflowVersionMismatchError(
            f"the log of run {run.workflow_id!r} was written by workflow version stored={point.version}, "
            f"expected={run.version}; resume it with that version, or start anew",
            stored=point.version,
            expected=run.version,
        )
    state = run.plan.find(point.state)
    if state is None:
        raise WorkflowError(
            f"run {run.workflow_id!r} stopped in state {point.state!r}, which is not a registered or exit state of this "
            f"workflow; register it, or name its successor with aliases=; {run.plan.listing()}"
        )
    cursor = None if point.rollback is not None else _cursor(run, state, point)
    data = None if point.data is None else run.plan.data.decode(point.data)
    run.data.value = data
    run.path.extend(known for label in point.path if (known := run.plan.find(label)) is not None)
    run.visit = point.visit if point.again else point.visit - 1
    run.journal.sequence = point.sequence + 1
    run.journal.cursor_row = point.cursor_row
    run.saved = point.data
    run.completed = list(point.completed)
    run.state = state
    if point.rollback is not None:
        run.audience.state = state
        return Start(state, sequence=point.sequence, original=load_error(run, point.rollback))
    if point.branches is not None:
        run.branches = load_branches(point.branches)
    return Start(state, point.again, cursor, point.sequence)


def _cursor(run: Run, state: Any, point: ResumePoint) -> Any:
    if point.cursor is None:
        return None
    label = run.plan.known(state)
    registered = None if label is None or label in run.plan.exits else run.plan.states[label]
    if registered is None or registered.codec is None or not registered.has_cursor:
        raise WorkflowError(
            f"the log of run {run.workflow_id!r} holds a cursor for state {point.state!r}, but what is registered there has none"
        )
    return registered.codec.decode(point.cursor)
