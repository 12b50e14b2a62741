"""When a flow fires next, decided without an event loop."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cano.scheduler.cron import Calendar
from cano.scheduler.timing import LOOK, MOST, Cron, FixedDelay, FixedRate, Manual
from tests.scheduler.runs import BEGINNING as WALL


def minutes(number: float) -> datetime:
    return WALL + timedelta(minutes=number)


def every_minute() -> Cron:
    return Cron(Calendar("* * * * *", "UTC", after=WALL))


@settings(max_examples=300)
@given(
    st.floats(0.001, 1e5),
    st.floats(0, 1e7),
    st.floats(0, 100),
    st.lists(st.floats(0, 20), min_size=1, max_size=30),
)
def test_a_fixed_rate_keeps_its_grid_and_counts_every_point_once(
    interval: float, start: float, first: float, pauses: list[float]
) -> None:
    """BR-102: whenever it is asked, a point is never taken early or twice, and many that were missed are one fire."""
    timing = FixedRate(interval, first)
    timing.begin(start, WALL)
    now, fires, skipped = start, 0, 0
    for pause in pauses:
        now += pause * interval
        left = timing.wait(now, WALL)
        assert left is not None
        if left <= 0:
            _, missed = timing.take(now, WALL)
            assert missed >= 0
            fires, skipped = fires + 1, skipped + missed
            again = timing.wait(now, WALL)
            assert again is not None
            assert again > 0, "at most one catch-up"
        elapsed = now - (start + first)
        points = fires + skipped
        assert points * interval > elapsed, "nothing that is due is left"
        assert points == 0 or (points - 1) * interval <= elapsed, "nothing was taken early"


def test_a_fire_of_a_fixed_rate_is_for_the_last_point_of_the_grid_however_late_it_comes() -> None:
    timing = FixedRate(60.0, first=30.0)
    timing.begin(1000.0, WALL)
    assert timing.take(1030.0, minutes(0.5)) == (minutes(0.5), 0)
    assert timing.take(1092.0, minutes(0.5) + timedelta(seconds=62)) == (minutes(1.5), 0)
    assert timing.take(1030.0 + 60 * 5.5, minutes(6)) == (minutes(5.5), 3), "a catch-up"
    assert timing.take(1030.0 + 60 * 6.5, minutes(67)) == (minutes(66.5), 0), "the wall clock was put forward by an hour"


def test_a_fixed_rate_does_not_drift() -> None:
    timing = FixedRate(0.1)
    timing.begin(0.0, WALL)
    now, fires = 0.0, 0
    while fires < 10_000:
        left = timing.wait(now, WALL)
        assert left is not None
        now += max(left, 0.0)
        left = timing.wait(now, WALL)
        if left is not None and left <= 0:
            assert timing.take(now, WALL)[1] == 0
            fires += 1
            now += 0.03  # a run, or a late timer
    assert abs(now - 0.03 - 999.9) < 1e-6


def test_a_fixed_delay_counts_from_the_end_of_a_run_and_misses_nothing() -> None:
    timing = FixedDelay(10.0, first=5.0)
    timing.begin(100.0, WALL)
    assert timing.wait(100.0, WALL) == 5.0
    assert timing.take(400.0, WALL) == (WALL, 0)
    timing.ended(450.0)
    assert timing.wait(451.0, WALL) == 9.0
    assert timing.wait(1000.0, WALL) == -540.0
    assert timing.pass_over(1000.0, WALL) == 0


def test_a_manual_flow_never_fires_by_itself() -> None:
    timing = Manual()
    timing.begin(0.0, WALL)
    timing.ended(1.0)
    assert timing.wait(1e9, WALL) is None
    assert timing.pass_over(1e9, WALL) == 0


def test_cron_takes_what_was_missed_as_one_fire_for_the_last_instant() -> None:
    """BR-102."""
    timing = every_minute()
    timing.begin(0.0, WALL)
    assert timing.wait(0.0, WALL) == 60.0
    assert timing.take(0.0, minutes(10.5)) == (minutes(10), 9)
    assert timing.wait(0.0, minutes(10.5)) == 30.0


def test_cron_counts_a_bounded_number_of_missed_fires_after_years() -> None:
    timing = every_minute()
    timing.begin(0.0, WALL)
    late = WALL + timedelta(days=3000, seconds=5)
    assert timing.take(0.0, late) == (WALL + timedelta(days=3000), MOST)
    assert timing.wait(0.0, late) == 55.0


def test_an_instant_does_not_come_again_when_the_wall_clock_is_put_back() -> None:
    """BR-98."""
    timing = every_minute()
    timing.begin(0.0, WALL)
    assert timing.take(0.0, minutes(1))[0] == minutes(1)
    assert timing.wait(0.0, minutes(0.9)) == pytest.approx(66.0)
    assert timing.take(0.0, minutes(2))[0] == minutes(2)
    assert timing.wait(0.0, minutes(-0.5)) == 30.0, "the instants that were not fired for come"
    assert timing.take(0.0, minutes(0))[0] == minutes(0)
    assert timing.wait(0.0, minutes(0)) == 180.0


def test_a_wall_clock_that_was_a_year_ahead_for_a_moment_silences_nothing() -> None:
    """BR-98: moving the wall clock back stalls no flow."""
    timing = every_minute()
    timing.begin(0.0, WALL)
    year = timedelta(days=365)
    assert timing.take(0.0, WALL + year) == (WALL + year, MOST)
    assert timing.wait(0.0, minutes(0.5)) == 30.0


def test_a_catch_up_never_uses_an_instant_a_second_time() -> None:
    """BR-98: the last of the missed instants was fired for before the clock was put back."""
    timing = every_minute()
    timing.begin(0.0, WALL)
    assert timing.take(0.0, minutes(5.5))[0] == minutes(5)
    timing.wait(0.0, minutes(0.5))
    assert timing.take(0.0, minutes(5.5))[0] == minutes(1)
    assert timing.wait(0.0, minutes(5.5)) == 30.0


def test_what_was_due_stays_due_when_the_wall_clock_is_put_back_before_it_could_fire() -> None:
    """BR-102: during a back-off, say, or because somebody asked for the status at that moment."""
    timing = every_minute()
    timing.begin(0.0, WALL)
    assert timing.wait(0.0, minutes(1.5)) == -30.0
    assert timing.wait(0.0, minutes(1.25)) == -15.0, "minute 1 is not lost"
    assert timing.wait(0.0, minutes(0.5)) == 30.0, "but it is not fired early"
    assert timing.take(0.0, minutes(1.25)) == (minutes(1), 0)
    assert timing.wait(0.0, minutes(1.25)) == 45.0


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-400, 400), min_size=1, max_size=60), st.sampled_from(["* * * * *", "*/20 * * * * *", "*/7 * * * *"]))
def test_whatever_the_wall_clock_does_no_fire_is_early_and_none_comes_twice(jumps: list[float], expression: str) -> None:
    """BR-98, BR-102."""
    calendar = Calendar(expression, "UTC", after=WALL)
    timing = Cron(calendar)
    timing.begin(0.0, WALL)
    wall, fired = WALL, []
    for jump in jumps:
        wall += timedelta(seconds=jump)
        left = timing.wait(0.0, wall)
        assert left is not None
        if left > 0:
            continue
        instant, missed = timing.take(0.0, wall)
        assert missed >= 0
        assert instant <= wall
        assert calendar.following(instant - timedelta(seconds=1)) == instant, "it is an instant of the calendar"
        fired.append(instant)
        again = timing.wait(0.0, wall)
        assert again is not None
        assert again > 0, "at most one catch-up"
    assert len(fired) == len(set(fired))


def test_cron_begins_anew_after_a_stop_and_makes_up_for_nothing() -> None:
    timing = every_minute()
    timing.begin(0.0, WALL)
    timing.begin(0.0, minutes(60.5))
    assert timing.wait(0.0, minutes(60.5)) == 30.0
    assert timing.look == LOOK


def test_what_is_given_up_is_counted() -> None:
    rate, cron = FixedRate(60.0), every_minute()
    rate.begin(0.0, WALL)
    cron.begin(0.0, WALL)
    assert rate.pass_over(150.0, WALL) == 3
    assert rate.wait(150.0, WALL) == 30.0
    assert cron.pass_over(0.0, minutes(2.5)) == 2
    assert cron.pass_over(0.0, minutes(2.5)) == 0
    assert cron.wait(0.0, datetime(2024, 1, 1, 0, 2, 30, tzinfo=UTC)) == 30.0


@pytest.mark.parametrize(("interval", "now", "missed"), [(0.7, 4012 * 0.7, 4012), (0.001, 0.018, 17)])
def test_a_quotient_that_was_rounded_neither_skips_a_point_nor_takes_one_early(interval: float, now: float, missed: int) -> None:
    timing = FixedRate(interval)
    timing.begin(0.0, WALL)
    due, counted = timing.take(now, WALL)
    assert counted == missed
    assert timedelta(0) <= WALL - due < timedelta(seconds=interval) * 1.001, "it is for a point of the grid, the last one"
    left = timing.wait(now, WALL)
    assert left is not None
    assert 0 < left <= interval * 1.001
