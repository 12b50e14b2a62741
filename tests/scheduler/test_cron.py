"""The instants of a calendar: they exist, they increase, and what happens when the clocks change is fixed."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cano import ConfigurationError
from cano.scheduler.cron import Calendar

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)


def calendar(expression: str, tz: Any = "UTC") -> Calendar:
    return Calendar(expression, tz, after=LONG_AGO)


def instants(expression: str, tz: str, after: str, number: int) -> list[str]:
    start = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(tz))
    return [f"{instant:%m-%d %H:%M}" for instant in islice(calendar(expression, tz).after(start), number)]


@pytest.mark.parametrize(
    ("expression", "tz", "after", "expected"),
    [
        # a time of day that the spring change leaves out becomes the first minute after the gap, 03:00
        ("30 2 * * *", "Europe/Berlin", "2024-03-30 00:00", ["03-30 01:30", "03-31 01:00", "04-01 00:30"]),
        # and of one that the autumn change repeats the first is meant
        ("30 2 * * *", "Europe/Berlin", "2024-10-26 00:00", ["10-26 00:30", "10-27 00:30", "10-28 01:30"]),
        # two times that become the same minute are one
        ("0,30 2 * * *", "Europe/Berlin", "2024-03-31 00:00", ["03-31 01:00", "04-01 00:00", "04-01 00:30"]),
        ("0 2,3 * * *", "Europe/Berlin", "2024-03-31 00:00", ["03-31 01:00", "04-01 00:00", "04-01 01:00"]),
        ("0 2 * * *", "US/Eastern", "2013-03-09 00:00", ["03-09 07:00", "03-10 07:00", "03-11 06:00"]),
        ("0 1 * * *", "Europe/Dublin", "2019-03-30 00:00", ["03-30 01:00", "03-31 01:00", "04-01 00:00"]),
        ("0 1 * * *", "Europe/Dublin", "2019-10-26 00:00", ["10-26 00:00", "10-27 00:00", "10-28 01:00"]),
        ("0 0 * * *", "America/Sao_Paulo", "2018-11-02 12:00", ["11-03 03:00", "11-04 03:00", "11-05 02:00"]),
        # half an hour only: 02:00 becomes 02:30 local
        ("15 2 * * *", "Australia/Lord_Howe", "2024-10-05 12:00", ["10-05 15:30", "10-06 15:15", "10-07 15:15"]),
        # every other expression follows the time that really passes
        ("30 * * * *", "Europe/Berlin", "2024-03-31 01:00", ["03-31 00:30", "03-31 01:30", "03-31 02:30"]),
        ("30 * * * *", "Europe/Berlin", "2024-10-27 02:00", ["10-27 00:30", "10-27 01:30", "10-27 02:30"]),
        ("*/30 2 * * *", "Europe/Berlin", "2024-03-31 00:00", ["04-01 00:00", "04-01 00:30"]),
        ("*/30 2 * * *", "Europe/Berlin", "2024-10-27 02:10", ["10-27 00:30", "10-27 01:00", "10-27 01:30"]),
        ("0 30 2 * * *", "Europe/Berlin", "2024-03-30 00:00", ["03-30 01:30", "04-01 00:30"]),
        ("0 30 2 * * *", "Europe/Berlin", "2024-10-27 00:00", ["10-27 00:30", "10-27 01:30", "10-28 01:30"]),
    ],
)
def test_what_happens_when_the_clocks_change(expression: str, tz: str, after: str, expected: list[str]) -> None:
    """BR-100; the instants are in UTC."""
    assert instants(expression, tz, after, len(expected)) == expected


def test_a_time_of_day_that_came_in_the_first_fold_does_not_come_again_in_the_second() -> None:
    """BR-100: asked in the repeated hour, before the time of day it names."""
    again = datetime(2024, 10, 27, 2, 15, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert calendar("30 2 * * *", "Europe/Berlin").following(again) == datetime(2024, 10, 28, 1, 30, tzinfo=UTC)


def test_a_change_of_the_clocks_at_midnight_neither_hangs_nor_loses_anything() -> None:
    """BR-100: in St. John's 00:01 used to become 23:01 of the day before."""
    expected = ["10-29 02:30", "10-29 03:30", "10-29 03:50", "10-29 04:10", "11-29 03:30"]
    assert instants("*/20 0 29 * *", "America/St_Johns", "1995-10-28 12:00", 5) == expected


def test_an_expression_that_names_times_of_gaps_only_never_matches() -> None:
    """BR-100: 02:00 of the last Sunday of March is left out in Berlin, every year."""
    with pytest.raises(ConfigurationError, match="never matches"):
        calendar("30 */10 2 * 3 0L", "Europe/Berlin")
    assert instants("30 2 * 3 0L", "Europe/Berlin", "2024-01-01 00:00", 2) == ["03-31 01:00", "03-30 01:00"]


ZONES = (
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",
    "US/Eastern",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Asia/Beirut",
    "Africa/Casablanca",
    "Pacific/Apia",
    "Antarctica/Troll",
)
MINUTES = st.sampled_from(["*", "0", "30", "15,45", "*/20", "0-59", "59"])
HOURS = st.sampled_from(["*", "0", "1", "2", "2,3", "1-3", "*/2", "0-23", "23"])
DAYS = st.sampled_from(["*", "1", "29", "15-20", "L", "31"])
MONTHS = st.sampled_from(["*", "3", "10,11", "*/2", "MAR-APR", "2"])
WEEKDAYS = st.sampled_from(["*", "SUN", "1-5", "0#1", "SUNL".replace("SUN", "0")])
SECONDS = st.sampled_from(["", "", "0 ", "30 ", "*/15 "])
EXPRESSIONS = st.builds("{}{} {} {} {} {}".format, SECONDS, MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS)
MOMENTS = st.datetimes(datetime(1995, 1, 1), datetime(2035, 1, 1), timezones=st.just(UTC))


@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS, st.sampled_from(ZONES), MOMENTS)
def test_instants_exist_and_increase_strictly_in_any_zone(expression: str, zone: str, start: datetime) -> None:
    """BR-100: as they are given, and one by one from each to the next."""
    try:
        found = calendar(expression, zone)
    except ConfigurationError as error:
        assert "never matches" in str(error) or "day-of-month" in str(error)
        return
    run = [start, *islice(found.after(start), 12)]
    assert all(earlier < later for earlier, later in pairwise(run))
    assert all(instant.tzinfo is UTC and instant.astimezone(ZoneInfo(zone)).astimezone(UTC) == instant for instant in run)
    for earlier, later in pairwise(run):
        step = found.following(earlier)
        assert step is not None
        assert earlier < step <= later


CHANGES = [
    ("Europe/Berlin", "2024-03-31"),
    ("Europe/Berlin", "2024-10-27"),
    ("Europe/Dublin", "2019-10-27"),
    ("America/St_Johns", "1995-10-29"),
    ("America/St_Johns", "1995-04-02"),
    ("America/Sao_Paulo", "2018-02-18"),
    ("America/Sao_Paulo", "2018-11-04"),
    ("Australia/Lord_Howe", "2024-04-07"),
    ("Antarctica/Troll", "2024-10-27"),
    ("Pacific/Apia", "2011-12-30"),
]


@pytest.mark.parametrize(("zone", "day"), CHANGES)
@pytest.mark.parametrize(
    "expression", ["*/10 * * * *", "15 * * * *", "*/30 0-2 * * *", "5 */2 * * *", "0 20 2 * * *", "* 23 * * *"]
)
def test_what_follows_the_time_that_passes_comes_whenever_the_clocks_show_it(expression: str, zone: str, day: str) -> None:
    """BR-100: against a look at every minute of three days, from every hour of them."""
    found = calendar(expression, zone)
    plain = calendar(expression, "UTC")
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - timedelta(days=1)
    expected = []
    for minute in range(3 * 24 * 60):
        instant = start + timedelta(minutes=minute)
        shown = instant.astimezone(ZoneInfo(zone)).replace(tzinfo=UTC, fold=0)
        if plain.following(shown - timedelta(seconds=1)) == shown:
            expected.append(instant)
    for hour in range(0, 60, 1):
        begin = start + timedelta(hours=hour, minutes=7)
        rest = [instant for instant in expected if instant > begin]
        assert list(islice(found.after(begin), min(len(rest), 20))) == rest[:20]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["* * * * *", "*/7 * * * *", "30 2 * * *", "0,30 1-3 * * *", "*/20 * * * * *", "0 0 1 * *"]),
    st.sampled_from(ZONES),
    MOMENTS,
    st.floats(0, 40_000),
)
def test_the_latest_instant_is_found_without_looking_at_all(expression: str, zone: str, start: datetime, length: float) -> None:
    found = calendar(expression, zone)
    first = found.following(start)
    assert first is not None
    until = first + timedelta(seconds=length)
    expected = first
    for instant in found.after(first):
        if instant > until:
            break
        expected = instant
    assert found.latest(first, until) == expected


def test_the_latest_instant_may_be_the_last_moment_that_counts() -> None:
    found, first = calendar("* * * * * *"), datetime(2024, 1, 1, tzinfo=UTC)
    for length in (0, 1, 2, 3, 61):
        until = first + timedelta(seconds=length)
        assert found.latest(first, until) == until


@pytest.mark.parametrize(
    "wrong",
    ["", "* * * *", "61 * * * *", "* * * * * * *", "x * * * *", "@daily", "0 0 31 2 *", "*/0 * * * *", "0 0 30 2 *", None, 5],
)
def test_a_wrong_expression_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="cron expression"):
        calendar(wrong)


@pytest.mark.parametrize("wrong", ["Europe/Nowhere", "", "../etc/passwd", "Europe", "/etc/localtime", None, 1, timezone.min])
def test_a_wrong_time_zone_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="zone"):
        calendar("* * * * *", wrong)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ConfigurationError, match=r"pip install cano\[cron\]"):
        calendar("* * * * *")
