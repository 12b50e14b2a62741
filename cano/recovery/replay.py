"""Rows to a ResumePoint: a pure fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from cano.errors import CheckpointStoreError
from cano.recovery.checkpoint import CheckpointRow, RowKind


@dataclass(frozen=True, slots=True)
class Completed:
    """A compensatable step that completed and was not compensated since: the `sequence` that its row has, or would have
    if it could have been written, and its output, encoded, or as it is (`value`) if it could not be.
    """

    sequence: int
    state: str
    task: str
    visit: int
    output: bytes | None
    value: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a run goes on.

    state:       the label of the state to enter
    again:       whether it is a state that the run was in already, to be entered again as the same visit; False if
                 the last row decided on a new one
    visit:       which visit that will be
    cursor:      the encoded cursor of that visit, if any; `cursor_row` is the sequence of its row
    data:        the encoded `ctx.data`
    sequence:    of the last row
    version:     of the workflow that wrote the last row
    path:        the labels of the states entered before `state`, oldest first
    branches:    the encoded results of the split that led to `state`, if any
    completed:   the compensatable steps to undo if the run fails, oldest first
    rollback:    the encoded error of a run that was rolling back, else None
    """

    state: str
    again: bool
    visit: int
    cursor: bytes | None
    cursor_row: int | None
    data: bytes | None
    sequence: int
    version: int
    path: tuple[str, ...]
    branches: bytes | None = None
    completed: tuple[Completed, ...] = ()
    rollback: bytes | None = None


def replay(workflow_id: str, rows: Sequence[CheckpointRow]) -> ResumePoint | None:
    """Fold the rows of a run into the point where it goes on; None if there are no rows.

    The last row decides. A cursor counts only within its own visit.

    Raises:
        CheckpointStoreError: the rows are not a log: one is no CheckpointRow, or two have the same sequence.
    """
    if not isinstance(rows, list | tuple):
        raise CheckpointStoreError(f"the log of run {workflow_id!r} is damaged: it is a {type(rows).__name__}, no list of rows")
    if not rows:
        return None
    for row in rows:
        if not isinstance(row, CheckpointRow):
            raise CheckpointStoreError(f"the log of run {workflow_id!r} is damaged: it holds a {type(row).__name__}")
        if not _sound(row):
            raise CheckpointStoreError(f"the log of run {workflow_id!r} is damaged: a field of a row is of the wrong type")
    ordered = sorted(rows, key=lambda row: row.sequence)
    if any(left.sequence == right.sequence for left, right in pairwise(ordered)):
        raise CheckpointStoreError(f"the log of run {workflow_id!r} is damaged: two rows have one sequence")
    last = ordered[-1]
    visits: dict[int, str] = {}
    for row in ordered:
        if row.kind is RowKind.STATE_ENTRY:
            visits.setdefault(row.visit, row.state)
    if last.next_state is not None:
        return ResumePoint(
            state=last.next_state,
            again=False,
            visit=last.visit + 1,
            cursor=None,
            cursor_row=None,
            data=last.data,
            sequence=last.sequence,
            version=last.workflow_version,
            path=tuple(visits.values()),
            completed=_completed(workflow_id, ordered),
        )
    cursors = [row for row in ordered if row.kind is RowKind.STEP_CURSOR and row.visit == last.visit]
    newest = cursors[-1] if cursors else None
    if newest is not None and newest.blob is None:
        raise CheckpointStoreError(f"the log of run {workflow_id!r} is damaged: row {newest.sequence} has no cursor")
    return ResumePoint(
        state=last.state,
        again=True,
        visit=last.visit,
        cursor=newest.blob if newest else None,
        cursor_row=newest.sequence if newest else None,
        data=last.data,
        sequence=last.sequence,
        version=last.workflow_version,
        path=tuple(state for visit, state in visits.items() if visit != last.visit),
        branches=next((row.blob for row in ordered if row.kind is RowKind.STATE_ENTRY and row.visit == last.visit), None),
        completed=_completed(workflow_id, ordered),
        rollback=_rollback(workflow_id, ordered),
    )


def _sound(row: CheckpointRow) -> bool:
    """Whether the fields of a row that a store gave back are of their types."""
    numbers = (row.sequence, row.visit, row.workflow_version)
    texts = (row.state, row.task, row.next_state or "")
    return (
        isinstance(row.kind, RowKind)
        and all(isinstance(number, int) and number >= 0 for number in numbers)
        and all(isinstance(text, str) for text in texts)
        and isinstance(row.blob, bytes | None)
        and isinstance(row.data, bytes | None)
    )


def _rollback(workflow_id: str, rows: Sequence[CheckpointRow]) -> bytes | None:
    for row in rows:
        if row.kind is RowKind.ROLLBACK_STARTED:
            if row.blob is None:
                raise CheckpointStoreError(f"the log of run {workflow_id!r} is damaged: row {row.sequence} has no error")
            return row.blob
    return None


def _completed(workflow_id: str, rows: Sequence[CheckpointRow]) -> tuple[Completed, ...]:
    undone = {row.blob for row in rows if row.kind is RowKind.COMPENSATED}
    steps = []
    for row in rows:
        if row.kind is RowKind.COMPENSATION and str(row.sequence).encode() not in undone:
            if row.blob is None:
                raise CheckpointStoreError(f"the log of run {workflow_id!r} is damaged: row {row.sequence} has no output")
            steps.append(Completed(row.sequence, row.state, row.task, row.visit, row.blob))
    return tuple(steps)
