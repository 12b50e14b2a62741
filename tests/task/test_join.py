"""When a join is decided: pure decisions, at the earliest moment, and never taken back."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cano import (
    All,
    AnyOf,
    ConfigurationError,
    PartialResults,
    PartialTimeout,
    Percentage,
    Quorum,
    Split,
)
from cano.task.join import decide, needed

JOINS = st.one_of(
    st.just(All()),
    st.just(AnyOf()),
    st.builds(Quorum, st.integers(0, 12)),
    st.builds(PartialResults, st.integers(0, 12)),
    st.builds(Percentage, st.floats(0.001, 1.0)),
    st.just(PartialTimeout()),
)


async def branch(ctx: Any) -> None: ...


@pytest.mark.parametrize(
    ("join", "succeeded", "total", "met"),
    [
        (All(), 3, 3, True),
        (All(), 2, 3, False),
        (All(), 0, 0, True),
        (AnyOf(), 1, 3, True),
        (AnyOf(), 0, 3, False),
        (AnyOf(), 0, 0, False),
        (Quorum(2), 2, 3, True),
        (Quorum(2), 3, 3, True),
        (Quorum(2), 1, 3, False),
        (Quorum(0), 0, 3, True),
        (Quorum(5), 3, 3, False),
        (Percentage(0.5), 2, 4, True),
        (Percentage(0.75), 3, 4, True),
        (Percentage(0.75), 2, 4, False),
        (Percentage(1.0), 2, 3, False),
        (Percentage(1), 3, 3, True),
        (Percentage(0.5), 2, 3, True),
        (Percentage(0.5), 1, 3, False),
        (Percentage(0.5), 0, 0, True),
        (PartialResults(2), 2, 4, True),
        (PartialResults(2), 1, 4, False),
        (PartialResults(0), 0, 4, True),
        (PartialTimeout(), 1, 4, True),
        (PartialTimeout(), 4, 4, True),
        (PartialTimeout(), 0, 4, False),
        (PartialTimeout(), 0, 0, False),
    ],
)
def test_once_all_branches_have_settled_a_join_is_met_or_not(join: Any, succeeded: int, total: int, met: bool) -> None:
    assert decide(join, succeeded=succeeded, failed=total - succeeded, total=total) is met


@pytest.mark.parametrize(
    ("join", "succeeded", "failed", "total", "verdict"),
    [
        (All(), 2, 0, 3, None),
        (All(), 0, 1, 3, False),
        (AnyOf(), 1, 0, 3, True),
        (AnyOf(), 0, 2, 3, None),
        (Quorum(2), 2, 0, 5, True),
        (Quorum(2), 1, 3, 5, None),
        (Quorum(2), 0, 4, 5, False),
        (Percentage(0.5), 2, 0, 4, True),
        (Percentage(0.5), 0, 3, 4, False),
        (PartialResults(2), 2, 1, 9, True),
        (PartialResults(2), 1, 1, 9, None),
        (PartialResults(2), 0, 8, 9, False),
        (PartialTimeout(), 3, 0, 4, None),
        (PartialTimeout(), 0, 3, 4, None),
    ],
)
def test_a_join_is_decided_while_branches_are_at_work_as_soon_as_they_cannot_change_it(
    join: Any, succeeded: int, failed: int, total: int, verdict: bool | None
) -> None:
    assert decide(join, succeeded=succeeded, failed=failed, total=total) is verdict


@pytest.mark.parametrize(
    ("p", "total", "wanted"), [(0.07, 100, 7), (0.55, 100, 55), (0.1, 30, 3), (1e-9, 5, 1), (1, 7, 7), (0.3, 10, 3)]
)
def test_a_percentage_is_the_number_that_was_written_rounded_up_to_whole_branches(p: float, total: int, wanted: int) -> None:
    assert needed(Percentage(p), total) == wanted


def test_a_percentage_of_whole_hundredths_never_asks_for_one_branch_too_many() -> None:
    for percent in range(1, 101):
        for total in range(0, 301, 3):
            assert needed(Percentage(percent / 100), total) == math.ceil(Fraction(percent, 100) * total)


@given(join=JOINS, settling=st.lists(st.booleans(), max_size=12))
def test_a_verdict_once_given_stays_however_the_other_branches_settle(join: Any, settling: list[bool]) -> None:
    given_before: bool | None = None
    for settled in range(len(settling) + 1):
        succeeded = sum(settling[:settled])
        verdict = decide(join, succeeded=succeeded, failed=settled - succeeded, total=len(settling))
        if given_before is not None:
            assert verdict is given_before
        given_before = verdict
    assert given_before is not None


@given(join=JOINS.filter(lambda join: not isinstance(join, PartialTimeout)), total=st.integers(0, 12), data=st.data())
def test_a_verdict_is_given_at_the_earliest_moment(join: Any, total: int, data: st.DataObject) -> None:
    """Open means that both ends are still possible; decided means that only one is."""
    succeeded = data.draw(st.integers(0, total))
    failed = data.draw(st.integers(0, total - succeeded))
    verdict = decide(join, succeeded=succeeded, failed=failed, total=total)
    best = decide(join, succeeded=total - failed, failed=failed, total=total)
    worst = decide(join, succeeded=succeeded, failed=total - succeeded, total=total)
    assert verdict is (best if best is worst else None)


@given(join=JOINS, total=st.integers(0, 12), data=st.data())
def test_a_timeout_decides_every_join_and_a_condition_that_is_met_is_a_success(
    join: Any, total: int, data: st.DataObject
) -> None:
    succeeded = data.draw(st.integers(0, total))
    failed = data.draw(st.integers(0, total - succeeded))
    verdict = decide(join, succeeded=succeeded, failed=failed, total=total, expired=True)
    assert verdict is (succeeded >= needed(join, total))


@pytest.mark.parametrize("wrong", [0, 0.0, -0.5, 1.01, 150, math.nan, math.inf, True, "0.5", None])
def test_a_percentage_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="Percentage"):
        Percentage(wrong)


@pytest.mark.parametrize("wrong", [-1, 1.0, True, "2", None])
def test_a_count_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="Quorum"):
        Quorum(wrong)
    with pytest.raises(ConfigurationError, match="PartialResults"):
        PartialResults(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join": PartialTimeout()}, "requires a timeout"),
        ({"join": Quorum(3)}, "needs 3 branches and there are 2"),
        ({"join": PartialResults(3)}, "needs 3 branches and there are 2"),
        ({"join": Quorum}, "must be a join"),
        ({"join": None}, "must be a join"),
        ({"join": All(), "max_concurrency": 0}, "max_concurrency"),
        ({"join": All(), "max_concurrency": True}, "max_concurrency"),
        ({"join": All(), "max_concurrency": 1.5}, "max_concurrency"),
        ({"join": All(), "timeout": -1}, "timeout"),
        ({"join": All(), "timeout": "1"}, "timeout"),
    ],
)
def test_a_split_that_cannot_work_is_refused_when_it_is_written(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Split([branch, branch], then="done", **options)
