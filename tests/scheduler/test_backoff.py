"""How long a flow that failed is left alone."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cano import ConfigurationError
from cano.scheduler.backoff import Backoff


def test_the_waits_double_up_to_the_longest() -> None:
    backoff = Backoff(initial=0.1, jitter=0.0, max_delay=0.5)
    assert [round(backoff.delay(streak), 3) for streak in (1, 2, 3, 4, 100)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    assert backoff.delay(0) == backoff.delay(1)


def test_the_defaults_are_documented() -> None:
    assert Backoff() == Backoff(initial=1.0, multiplier=2.0, max_delay=300.0, jitter=0.1, trip_after=None)
    assert Backoff(initial=timedelta(seconds=2), jitter=0).delay(1) == 2.0


@given(
    st.integers(0, 10**9),
    st.floats(0, 1e300),
    st.floats(0, exclude_min=True, allow_infinity=False),
    st.floats(0),
    st.floats(0, 1),
)
def test_a_wait_is_finite_not_negative_and_never_above_the_longest(
    streak: int, initial: float, multiplier: float, longest: float, jitter: float
) -> None:
    """BR-88."""
    delay = Backoff(initial, multiplier, longest, jitter).delay(streak)
    assert math.isfinite(delay)
    assert 0 <= delay <= longest


def test_an_infinite_longest_wait_means_a_year() -> None:
    assert Backoff(max_delay=math.inf, jitter=0).delay(10**6) == 365 * 86400


def test_jitter_stays_within_its_share() -> None:
    backoff = Backoff(initial=1.0, jitter=0.5)
    waits = [backoff.delay(1) for _ in range(200)]
    assert 0.5 <= min(waits) < 0.9 < 1.1 < max(waits) <= 1.5


def test_a_limit_trips_and_no_limit_never_does() -> None:
    limited, free = Backoff(trip_after=3), Backoff()
    assert [limited.trips(streak) for streak in (0, 2, 3, 99)] == [False, False, True, True]
    assert not free.trips(10**9)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"trip_after": value} for value in (0, True, 1.0)),
        *({"initial": value} for value in (-1, math.inf, math.nan, None)),
        *({"max_delay": value} for value in ("1", -1, math.nan)),
        *({"multiplier": value} for value in ("2", 0, -1.0, math.nan, math.inf, True)),
        *({"jitter": value} for value in (-0.1, 1.1, math.nan, math.inf, None)),
    ],
)
def test_what_makes_no_sense_is_refused_in_our_own_words(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"^Backoff\(") as caught:
        Backoff(**wrong)
    assert next(iter(wrong)) in str(caught.value)
