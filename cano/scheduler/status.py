"""What can be known of a flow: frozen records, and counters for metrics."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal

OutcomeKind = Literal["completed", "failed", "cancelled", "skipped", "crashed", "abandoned"]

BUCKETS = (0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""The upper bounds of the counts of run durations, in seconds; whatever is longer has a count of its own."""


class Phase(StrEnum):
    """What a flow is doing."""

    IDLE = "idle"
    """It waits for its next fire, or to be triggered."""
    RUNNING = "running"
    BACKOFF = "backoff"
    """Its last run failed, and it does not fire before the back-off is over."""
    TRIPPED = "tripped"
    """It failed too often in a row, and does nothing before it is reset."""
    STOPPED = "stopped"
    """The scheduler is not running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FireOutcome:
    """How a fire ended.

    completed   the run reached `exit_state`
    failed      the run failed, or outlived its total timeout; `category` and `error_type` say how
    cancelled   it was stopped by `cancel` or by the end of the scheduler; with a store it can be resumed
    skipped     somebody else is working on that workflow id, so nothing was run
    crashed     a BaseException such as SystemExit passed through
    abandoned   it could not be stopped in time, and was left behind

    `due` is the instant the fire was for, `started_at` and `ended_at` are when it really was, all by the wall clock in
    UTC; `seconds` is the duration, by a clock that does not jump. `error_type` is the type of what the hook raised, where
    one did. `resumed` says that an unfinished run of that id was gone on with.
    """

    kind: OutcomeKind
    workflow_id: str
    due: datetime
    started_at: datetime
    ended_at: datetime
    seconds: float
    exit_state: Any = None
    category: str | None = None
    error_type: str | None = None
    resumed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowStatus:
    """A flow at one moment.

    `runs` counts the fires that have begun, `streak` the failures in a row, `skipped` the fires that gave no run: missed,
    or refused because somebody else was working on the id. `last` is the last fire that ended. `workflow_id` is that of
    the run that is going on. `next_fire` is None if none will come by itself, or if it depends on the end of the run.
    """

    name: str
    phase: Phase
    runs: int
    streak: int
    skipped: int
    last: FireOutcome | None
    next_fire: datetime | None
    workflow_id: str | None


@dataclass(slots=True)
class FlowCounters:
    """What has happened to a flow since it was registered; only grows.

    A crash counts as failed, an abandoned run as cancelled. `buckets` counts runs by duration: one for each bound of
    `BUCKETS`, in which it is contained, and one for those above, not cumulative.
    """

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    backoffs: int = 0
    trips: int = 0
    seconds: float = 0.0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))

    def took(self, seconds: float) -> None:
        """A run took so many seconds."""
        self.seconds += seconds
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
