"""RunSummary: what a SQLite log tells people about one run, without its payloads."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

from cano.recovery.checkpoint import RowKind

T = TypeVar("T")


def summaries(schema: int) -> str:
    """The query for the summaries of all runs, for a log of that schema.

    Sequences are dense and only cursor rows are ever replaced, so those that are gone were cursors. A state that is
    entered twice in one visit was entered by a resume.
    """
    old = schema < 2
    workflow, written_at = ("''", "NULL") if old else ("log.workflow", "log.written_at")
    moment = "NULL" if old else "written_at"
    failure = "NULL, NULL, NULL" if old else "failure.error_type, failure.category, failure.failed_at"
    join = "" if old else "LEFT JOIN cano_failures AS failure ON failure.workflow_id = total.workflow_id"
    return f"""
    SELECT total.workflow_id, {workflow}, log.state, log.task, log.visit, total.rows, total.windows, total.resumes,
        CASE WHEN log.kind = 'STEP_CURSOR' AND log.blob IS NULL THEN NULL ELSE log.kind END, log.next_state,
        total.rolling_back, log.workflow_version, {written_at}, total.progressed_at, {failure}
    FROM (
        SELECT workflow_id, MAX(sequence) AS last, COUNT(*) AS rows, SUM(kind = 'ROLLBACK_STARTED') AS rolling_back,
            MAX(sequence) + 1 - SUM(kind <> 'STEP_CURSOR') AS windows, SUM(again) AS resumes,
            MAX(CASE WHEN NOT again THEN {moment} END) AS progressed_at
        FROM (
            SELECT *, kind = 'STATE_ENTRY' AND ROW_NUMBER() OVER (PARTITION BY workflow_id, visit, kind ORDER BY sequence) > 1
                AS again FROM cano_checkpoints
        ) GROUP BY workflow_id
    ) AS total
    JOIN cano_checkpoints AS log ON log.workflow_id = total.workflow_id AND log.sequence = total.last
    {join} ORDER BY total.workflow_id
    """


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run that has a log.

    workflow_id:       its id
    workflow:          the name of the workflow that wrote the last row; empty if an old version of cano did
    state, task:       the labels of the last row: where the run is, or what it left if `next_state` says where to
    visit:             which stay in a state of this run that is, counted from 0
    rows:              how many rows the log has
    windows:           how many cursors were ever committed: windows of streams, steps of stepped tasks, deadlines of timers
    resumes:           how often a resume entered a state again
    kind, next_state:  of the last row
    rolling_back:      whether a rollback has begun
    workflow_version:  of the last row
    written_at:        when the last row was written, in UTC; None if an old version of cano wrote it
    progressed_at:     when the last row was written that was not a resume entering a state again
    error_type:        the class of what the run last failed with, if it has since its log began
    error_category:    the category of the error
    failed_at:         when that was, in UTC
    damaged:           the last row cannot be read: `kind` is None then, and nothing but the id is told
    """

    workflow_id: str
    workflow: str = ""
    state: str = ""
    task: str = ""
    visit: int = 0
    rows: int = 0
    windows: int = 0
    resumes: int = 0
    kind: RowKind | None = None
    next_state: str | None = None
    rolling_back: bool = False
    workflow_version: int = 0
    written_at: datetime | None = None
    progressed_at: datetime | None = None
    error_type: str | None = None
    error_category: str | None = None
    failed_at: datetime | None = None
    damaged: bool = field(default=False, kw_only=True)


def summary(values: tuple[Any, ...]) -> RunSummary:
    """A summary from a row of the query."""
    workflow_id, workflow, state, task, visit, rows, windows, resumes, kind, next_state, rolling_back, *rest = values
    version, written_at, progressed_at, error_type, category, failed_at = rest
    try:
        return RunSummary(
            _typed(workflow_id, str),
            workflow=_typed(workflow, str),
            state=_typed(state, str),
            task=_typed(task, str),
            visit=_counted(visit),
            rows=rows,
            windows=_typed(windows, int),
            resumes=resumes,
            kind=RowKind(kind),
            next_state=_optional(next_state, str),
            rolling_back=bool(rolling_back),
            workflow_version=_typed(version, int),
            written_at=_moment(written_at),
            progressed_at=_moment(progressed_at),
            error_type=_told(error_type),
            error_category=_told(category),
            failed_at=_moment(failed_at),
        )
    except (TypeError, ValueError):
        return RunSummary(workflow_id if isinstance(workflow_id, str) else repr(workflow_id), damaged=True)


def _typed(value: Any, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _optional(value: Any, kind: type[T]) -> T | None:
    return None if value is None else _typed(value, kind)


def _counted(value: Any) -> int:
    if _typed(value, int) < 0:
        raise ValueError
    return int(value)


def _told(value: Any) -> str | None:
    """What is only for people to look at: no run is damaged if it cannot be read."""
    return value if isinstance(value, str) else None


def _moment(timestamp: Any) -> datetime | None:
    """Likewise."""
    try:
        return datetime.fromtimestamp(timestamp, UTC)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
