"""Replay: rows to the point where a run goes on, against a small model that simply remembers where the run was."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cano import CheckpointRow, CheckpointStoreError, RowKind
from cano.recovery.replay import Completed, ResumePoint, replay
from tests.recovery.logs import cursor, entry

STATES = ["A", "B", "C"]


@dataclass
class Run:
    """A run that writes rows as the engine does, and remembers where it is as no log has to."""

    rows: list[CheckpointRow] = field(default_factory=list)
    sequence: int = 0
    version: int = 0
    visit: int = -1
    state: str = ""
    decided: str | None = None
    blob: bytes | None = None
    cursor_row: int | None = None
    data: bytes | None = None
    entered: list[str] = field(default_factory=list)
    completed: list[Completed] = field(default_factory=list)

    def write(self, kind: RowKind, **fields: Any) -> None:
        replaces = fields.pop("replaces", None)
        self.rows = [row for row in self.rows if row.sequence != replaces]
        common = {"visit": self.visit, "data": self.data, "workflow_version": self.version}
        self.rows.append(CheckpointRow(self.sequence, kind, self.state, f"task {self.state}", **common, **fields))
        self.sequence += 1

    def enter(self, state: str) -> None:
        self.state, self.visit, self.decided, self.blob, self.cursor_row = state, self.visit + 1, None, None, None
        self.entered.append(state)
        self.write(RowKind.STATE_ENTRY)

    def commit(self, blob: bytes, decision: str | None) -> None:
        replaces, self.cursor_row = self.cursor_row, self.sequence
        self.blob, self.decided = blob, decision
        self.write(RowKind.STEP_CURSOR, blob=blob, next_state=decision, replaces=replaces)

    def complete(self, blob: bytes, decision: str) -> None:
        self.decided = decision
        self.completed.append(Completed(self.sequence, self.state, f"task {self.state}", self.visit, blob))
        self.write(RowKind.COMPENSATION, blob=blob, next_state=decision)

    def resume(self) -> None:
        if self.decided is not None:
            self.enter(self.decided)
        else:
            self.write(RowKind.STATE_ENTRY)

    def point(self) -> ResumePoint:
        """Where a resume has to go on."""
        new = self.decided is not None
        return ResumePoint(
            state=self.decided if self.decided is not None else self.state,
            again=not new,
            visit=self.visit + new,
            cursor=None if new else self.blob,
            cursor_row=None if new else self.cursor_row,
            data=self.data,
            sequence=self.sequence - 1,
            version=self.version,
            path=tuple(self.entered if new else self.entered[:-1]),
            completed=tuple(self.completed),
        )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.sampled_from(STATES)),
        st.tuples(st.just("commit"), st.binary(max_size=3)),
        st.tuples(st.just("decide"), st.sampled_from(STATES)),
        st.tuples(st.just("complete"), st.sampled_from(STATES)),
        st.tuples(st.just("data"), st.binary(max_size=3)),
        st.tuples(st.just("version"), st.integers(0, 3)),
        st.tuples(st.just("resume"), st.none()),
    ),
    max_size=30,
)


@given(st.sampled_from(STATES), STEPS, st.randoms(use_true_random=False))
def test_a_resume_goes_on_exactly_where_the_run_was(initial: str, steps: list[tuple[str, Any]], chance: random.Random) -> None:
    run = Run()
    run.enter(initial)
    for step, value in steps:
        match step:
            case "enter":
                run.enter(run.decided or value)
            case "commit" if run.decided is None:
                run.commit(value, None)
            case "decide" if run.decided is None:
                run.commit(b"decided", value)
            case "complete" if run.decided is None:
                run.complete(b"output", value)
            case "data":
                run.data = value
                run.resume()
            case "version":
                run.version = value
                run.resume()
            case "resume":
                run.resume()
        assert replay("r", run.rows) == run.point()
    shuffled = list(run.rows)
    chance.shuffle(shuffled)
    assert replay("r", shuffled) == run.point()


def test_no_rows_is_no_point() -> None:
    assert replay("r", []) is None


def test_an_empty_cursor_is_a_cursor_and_a_missing_one_is_not() -> None:
    for blob, expected in [(b"", b""), (b"null", b"null")]:
        point = replay("r", [entry(0), cursor(1, blob)])
        assert point is not None
        assert (point.cursor, point.cursor_row) == (expected, 1)
    point = replay("r", [entry(0)])
    assert point is not None
    assert (point.cursor, point.cursor_row) == (None, None)


def test_a_cursor_counts_only_within_its_visit_even_of_the_same_state() -> None:
    point = replay("r", [entry(0, "A"), cursor(1, next_state="A"), entry(2, "A", visit=1)])
    assert point is not None
    assert (point.state, point.again, point.visit, point.cursor, point.path) == ("A", True, 1, None, ("A",))


def test_a_resumed_visit_keeps_its_cursor_and_its_place_in_the_path() -> None:
    point = replay(
        "r", [entry(0, "A"), cursor(1, next_state="B"), entry(2, "B", visit=1), cursor(4, visit=1), entry(5, "B", visit=1)]
    )
    assert point is not None
    assert (point.state, point.again, point.visit, point.cursor, point.cursor_row, point.path) == ("B", True, 1, b"4", 4, ("A",))


def test_of_several_cursors_of_a_visit_the_newest_counts() -> None:
    point = replay("r", [entry(0), cursor(1), cursor(2), entry(3), cursor(4), entry(5)])
    assert point is not None
    assert (point.cursor, point.cursor_row) == (b"4", 4)


def test_the_last_row_decides_and_not_an_earlier_decision() -> None:
    point = replay("r", [entry(0, "A"), cursor(1, next_state="B"), entry(2, "B", visit=1)])
    assert point is not None
    assert (point.state, point.again, point.visit) == ("B", True, 1)


@pytest.mark.parametrize("damage", ["twice", "a dict", "none", "a pair"])
def test_rows_that_are_no_log_are_damage_and_never_a_point(damage: str) -> None:
    rows: list[Any] = [entry(0), cursor(1)]
    rows.append({"twice": cursor(1, b"other"), "a dict": {"sequence": 2}, "none": None, "a pair": (2, "STATE_ENTRY")}[damage])
    with pytest.raises(CheckpointStoreError, match="the log of run 'r' is damaged"):
        replay("r", rows)


def test_the_rows_are_not_changed() -> None:
    rows = [cursor(1), entry(0)]
    before = [replace(row) for row in rows]
    replay("r", rows)
    assert rows == before


def test_a_cursor_row_without_a_cursor_is_damage_and_never_a_start_from_nothing() -> None:
    rows = [
        CheckpointRow(0, RowKind.STATE_ENTRY, "A", "task"),
        CheckpointRow(1, RowKind.STEP_CURSOR, "A", "task", blob=None),
    ]
    with pytest.raises(CheckpointStoreError, match="row 1 has no cursor"):
        replay("r", rows)
