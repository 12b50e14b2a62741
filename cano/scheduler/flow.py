"""One flow of a scheduler: its definition, and its state. Never awaits.

              begin                     settle
    IDLE ──────────────▶ RUNNING ─┬─ completed, cancelled, skipped ──▶ IDLE
      ▲                     ▲     ├─ failed ──▶ BACKOFF ──(time)──▶ IDLE
      │                     │     └─ failed `trip_after` times in a row ──▶ TRIPPED
      │                     └── triggered, from IDLE and BACKOFF only
      └── reset, from BACKOFF and TRIPPED

The state is in three things: `fire` while a run is going on, `tripped`, and `eligible`, before which it may not fire by
itself. A flow that has a fire takes no other, so it never overlaps itself.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cano.errors import CanoError, RunOwnedError, WorkflowCancelledError, WorkflowError
from cano.scheduler.backoff import Backoff
from cano.scheduler.handle import Ended, Fire
from cano.scheduler.status import FireOutcome, FlowCounters, FlowStatus, OutcomeKind, Phase
from cano.scheduler.timing import Timing
from cano.task.retry import raised_by
from cano.workflow.workflow import Workflow


@dataclass(frozen=True, slots=True)
class Definition:
    """What was registered: which workflow starts where, how its runs are named, and what data they get."""

    name: str
    workflow: Workflow[Any, Any]
    initial: Any
    backoff: Backoff
    workflow_id: str | None
    data: Any


class Flow:
    """The state of one flow. `now` is monotonic seconds, `wall` the moment of the calendar in UTC, throughout."""

    def __init__(self, definition: Definition, timing: Timing) -> None:
        self.definition = definition
        self.timing = timing
        self.counters = FlowCounters()
        self.fire: Fire | None = None
        self.tripped = False
        self.eligible: float | None = None
        self.last: FireOutcome | None = None
        self.left_behind: asyncio.Task[Ended] | None = None
        self._streak = 0
        self._runs = 0
        self._epoch = 0
        self._newest: datetime | None = None
        self._twins = 0

    @property
    def name(self) -> str:
        """The name it was registered under."""
        return self.definition.name

    @property
    def lingers(self) -> bool:
        """Whether a run that was left behind is still going on."""
        left = self.left_behind
        return left is not None and not left.done() and not left.get_loop().is_closed()

    def open(self, now: float, wall: datetime) -> None:
        """The scheduler starts. A trip and a streak stay; a back-off does not."""
        self.eligible = None
        self.timing.begin(now, wall)

    # -- the next fire ----------------------------------------------------------------------------------------------

    def wait(self, now: float, wall: datetime) -> float | None:
        """Seconds until the flow fires by itself, 0 or less if it has to now; None if something else has to happen
        first.
        """
        if self.fire is not None or self.tripped:
            return None
        return self._planned(now, wall)

    def _planned(self, now: float, wall: datetime) -> float | None:
        left = self.timing.wait(now, wall)
        return left if left is None or self.eligible is None else max(left, self.eligible - now)

    def take(self, now: float, wall: datetime) -> Fire:
        """Begin the fire that is due."""
        due, missed = self.timing.take(now, wall)
        self.counters.skipped += missed
        return self._begin(due, now, wall)

    def trigger(self, now: float, wall: datetime) -> Fire:
        """Begin a fire that nobody planned. A back-off does not hinder it.

        Raises:
            WorkflowError: the flow is running, or tripped.
        """
        if self.fire is not None:
            raise WorkflowError(f"flow {self.name} is running; it never overlaps itself")
        if self.tripped:
            raise WorkflowError(
                f"flow {self.name} is tripped: it failed {self._streak} times in a row; call reset({self.name!r})"
            )
        return self._begin(wall, now, wall)

    def _begin(self, due: datetime, now: float, wall: datetime) -> Fire:
        workflow_id = self.definition.workflow_id or self._id_of(due)
        self.fire = Fire(self.name, workflow_id, due, began=now, started_at=wall, epoch=self._epoch)
        self._runs += 1
        return self.fire

    def _id_of(self, due: datetime) -> str:
        """An id for each fire. If the wall clock does not go on, a number tells two fires of one instant apart."""
        due = due.astimezone(UTC)
        stamp = f"{self.name}-{due:%Y%m%dT%H%M%S}{f'.{due.microsecond:06}' if due.microsecond else ''}Z"
        if self._newest is None or due > self._newest:
            self._newest = due
            return stamp
        self._twins += 1
        return f"{stamp}-{self._twins}"

    # -- the end of a fire ------------------------------------------------------------------------------------------

    def settle(self, ended: Ended, now: float, wall: datetime, *, abandoned: bool = False) -> FireOutcome:
        """The run has ended: what that was, and what follows from it."""
        fire = self.fire
        assert fire is not None
        kind = "abandoned" if abandoned else kind_of(ended.error)
        category, error_type = described(ended.error)
        self.last = FireOutcome(
            kind=kind,
            workflow_id=fire.workflow_id,
            due=fire.due,
            started_at=fire.started_at,
            ended_at=wall,
            seconds=max(now - fire.began, 0.0),
            exit_state=ended.value,
            category=category,
            error_type=error_type,
            resumed=fire.resumed,
        )
        self.fire = None
        self.timing.ended(now)
        self._count(kind, self.last.seconds)
        if kind == "completed":
            self._streak, self.eligible = 0, None
        elif kind in ("failed", "crashed") and fire.epoch == self._epoch:
            self._failed(now)
        return self.last

    def _count(self, kind: OutcomeKind, seconds: float) -> None:
        match kind:
            case "completed":
                self.counters.completed += 1
            case "failed" | "crashed":
                self.counters.failed += 1
            case "cancelled" | "abandoned":
                self.counters.cancelled += 1
            case "skipped":
                self.counters.skipped += 1
                return
        self.counters.took(seconds)

    def _failed(self, now: float) -> None:
        self._streak += 1
        backoff = self.definition.backoff
        if backoff.trips(self._streak):
            self.tripped, self.eligible = True, None
            self.counters.trips += 1
        else:
            self.eligible = now + backoff.delay(self._streak)
            self.counters.backoffs += 1

    def reset(self, now: float, wall: datetime, *, started: bool) -> None:
        """Forget every failure, that of a run that is going on included. What a trip has missed is not made up for."""
        if self.tripped and started:
            self.counters.skipped += self.timing.pass_over(now, wall)
        self._epoch += 1
        self._streak, self.tripped, self.eligible = 0, False, None

    # -- seen from outside ------------------------------------------------------------------------------------------

    def status(self, now: float, wall: datetime, *, started: bool) -> FlowStatus:
        """The flow at this moment."""
        return FlowStatus(
            name=self.name,
            phase=self._phase(now, started),
            runs=self._runs,
            streak=self._streak,
            skipped=self.counters.skipped,
            last=self.last,
            next_fire=self._next_fire(now, wall) if started and not self.tripped else None,
            workflow_id=None if self.fire is None else self.fire.workflow_id,
        )

    def _phase(self, now: float, started: bool) -> Phase:
        if self.fire is not None:
            return Phase.RUNNING
        if not started:
            return Phase.STOPPED
        if self.tripped:
            return Phase.TRIPPED
        return Phase.IDLE if self.eligible is None or self.eligible <= now else Phase.BACKOFF

    def _next_fire(self, now: float, wall: datetime) -> datetime | None:
        left = self._planned(now, wall)
        try:
            return None if left is None else wall + timedelta(seconds=max(left, 0.0))
        except OverflowError:  # after the end of the calendar, or of the run that is going on
            return None


def kind_of(error: BaseException | None) -> OutcomeKind:
    """How a run ended that raised this."""
    match error:
        case None:
            return "completed"
        case WorkflowCancelledError() | asyncio.CancelledError():
            return "cancelled"
        case RunOwnedError():
            return "skipped"
        case Exception():
            return "failed"
        case _:
            return "crashed"


def described(error: BaseException | None) -> tuple[str | None, str | None]:
    """The category of an error, and the type of what is behind it."""
    if error is None:
        return None, None
    if not isinstance(error, CanoError):
        return None, type(error).__name__
    return error.category, type(raised_by(error)).__name__
