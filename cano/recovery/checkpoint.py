"""CheckpointRow: one durable fact about a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class RowKind(StrEnum):
    """What a row says."""

    STATE_ENTRY = "STATE_ENTRY"
    """The run entered a state; written before its task runs, and again when a resume enters it again."""
    STEP_CURSOR = "STEP_CURSOR"
    """A stream or stepped task got as far as the cursor in `blob`; with `next_state`, it also decided where to go."""
    COMPENSATION = "COMPENSATION"
    """A compensatable step completed: its output is in `blob` and its decision in `next_state`."""
    ROLLBACK_STARTED = "ROLLBACK_STARTED"
    """From here on the run only rolls back; the original error is in `blob`."""
    COMPENSATED = "COMPENSATED"
    """One step was compensated."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One row of a run's log.

    sequence:          dense from 0 within a run's log, in the order of writing
    kind:              what the row says
    state:             the label of the state
    task:              the name of its task; empty for an exit state
    blob:              an encoded cursor or output; an empty one is not the same as None
    next_state:        the label of the state decided on, if the row records a decision
    visit:             which stay in a state of this run the row belongs to, counted from 0; a resume keeps it
    data:              the encoded `ctx.data` at that moment
    workflow_version:  of the workflow that wrote the row
    replaces:          the sequence of an older STEP_CURSOR row that this one makes obsolete: the store drops it in
                       the same transaction. It is an instruction, not part of what is stored
    """

    sequence: int
    kind: RowKind
    state: str
    task: str
    blob: bytes | None = field(default=None, repr=False)
    next_state: str | None = None
    visit: int = 0
    data: bytes | None = field(default=None, repr=False)
    workflow_version: int = 0
    replaces: int | None = field(default=None, compare=False)
