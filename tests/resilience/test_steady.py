"""Time for an object that outlives event loops never goes back."""

from __future__ import annotations

import pytest

from cano.clock import replaced
from cano.resilience.steady import SteadyTime
from cano.testing import ManualClock


def test_it_goes_on_with_the_clock() -> None:
    with ManualClock() as clock:
        time = SteadyTime()
        began = time.now()
        clock.advance(2.5)
        assert time.now() - began == 2.5


def test_it_stands_still_while_a_clock_is_a_little_behind() -> None:
    with ManualClock() as clock:
        time = SteadyTime()
        began = time.now()
        with replaced(now=lambda: clock.now - 0.9):
            assert time.now() == began
        assert time.now() == began
        clock.advance(0.1)
        assert time.now() == pytest.approx(began + 0.1)


def test_it_goes_on_from_where_it_was_when_a_clock_begins_anew() -> None:
    """BR-98."""
    with ManualClock() as before:
        before.advance(1000)
        time = SteadyTime()
        for _ in range(3):
            began = time.now()
            with ManualClock() as clock:
                assert time.now() == began
                clock.advance(7)
                assert time.now() == pytest.approx(began + 7)
