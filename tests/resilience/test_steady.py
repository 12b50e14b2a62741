"""Time for an object that outlives event loops never goes back."""

from __future__ import annotations

import pytest

from cano.resilience.steady import SteadyTime
from tests.virtual import hands


def test_it_goes_on_with_the_clock() -> None:
    with hands() as clock:
        time = SteadyTime()
        began = time.now()
        clock.now += 2.5
        assert time.now() - began == 2.5


def test_it_stands_still_while_a_clock_is_a_little_behind() -> None:
    with hands() as clock:
        time = SteadyTime()
        began = time.now()
        clock.now -= 0.9
        assert time.now() == began
        clock.now += 0.9
        assert time.now() == began
        clock.now += 0.1
        assert time.now() == pytest.approx(began + 0.1)


def test_it_goes_on_from_where_it_was_when_a_clock_begins_anew() -> None:
    """BR-98."""
    with hands() as clock:
        time = SteadyTime()
        for _ in range(3):
            began = time.now()
            clock.now = 0.0
            assert time.now() == began
            clock.now = 7.0
            assert time.now() == pytest.approx(began + 7)
