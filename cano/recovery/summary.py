"""RunSummary: what a SQLite log tells people about one run, without its payloads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cano.errors import CheckpointStoreError
from cano.recovery.checkpoint import RowKind

SUMMARIES = """
SELECT log.workflow_id, log.workflow, log.state, log.task, log.visit, total.rows, total.windows, log.kind, log.next_state,
    total.rolling_back, log.workflow_version, log.written_at, failure.error_type, failure.category, failure.failed_at
FROM (
    SELECT workflow_id, MAX(sequence) AS last, COUNT(*) AS rows, SUM(kind = 'ROLLBACK_STARTED') AS rolling_back,
        MAX(sequence) + 1 - SUM(kind <> 'STEP_CURSOR') AS windows
    FROM cano_checkpoints GROUP BY workflow_id
) AS total
JOIN cano_checkpoints AS log ON log.workflow_id = total.workflow_id AND log.sequence = total.last
LEFT JOIN cano_failures AS failure ON failure.workflow_id = total.workflow_id
ORDER BY log.workflow_id
"""
"""Sequences are dense and only cursor rows are ever replaced, so those that are gone were cursors."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run that has a log.

    workflow_id:       its id
    workflow:          the name of the workflow that wrote the last row; empty if an old version of cano did
    state, task:       the labels of the last row: where the run is, or what it left if `next_state` says where to
    visit:             which stay in a state of this run that is, counted from 0
    rows:              how many rows the log has
    windows:           how many cursors were ever committed: windows of streams, steps of stepped tasks, deadlines of timers
    kind, next_state:  of the last row
    rolling_back:      whether a rollback has begun
    workflow_version:  of the last row
    written_at:        when the last row was written, in UTC; None if an old version of cano wrote it
    error_type:        the class of what the run last failed with, if it has since its log began
    error_category:    the category of the error
    failed_at:         when that was, in UTC
    """

    workflow_id: str
    workflow: str
    state: str
    task: str
    visit: int
    rows: int
    windows: int
    kind: RowKind
    next_state: str | None
    rolling_back: bool
    workflow_version: int
    written_at: datetime | None
    error_type: str | None
    error_category: str | None
    failed_at: datetime | None


def summary(values: tuple[Any, ...]) -> RunSummary:
    """A summary from a row of `SUMMARIES`.

    Raises:
        CheckpointStoreError: it is damaged.
    """
    workflow_id, workflow, state, task, visit, rows, windows, kind, next_state, rolling_back = values[:10]
    version, written_at, error_type, category, failed_at = values[10:]
    try:
        return RunSummary(
            workflow_id,
            workflow,
            state,
            task,
            int(visit),
            rows,
            windows,
            RowKind(kind),
            next_state,
            bool(rolling_back),
            int(version),
            _moment(written_at),
            error_type,
            category,
            _moment(failed_at),
        )
    except (TypeError, ValueError, OverflowError, OSError):
        raise CheckpointStoreError(f"the last row of run {values[0]!r} is damaged; it was left as it is") from None


def _moment(timestamp: float | None) -> datetime | None:
    return None if timestamp is None else datetime.fromtimestamp(timestamp, UTC)
