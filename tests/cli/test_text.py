"""What people read: aligned, cut, and unable to take over a terminal."""

from __future__ import annotations

import pytest

from cano.cli.text import age, cut, printable, table, width


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ünïcödé 東京", "plain text, ünïcödé 東京"),
        ("red \x1b[31m", "red \\x1b[31m"),
        ("two\nlines\r\t", "two\\x0alines\\x0d\\x09"),
        ("turned \u202e round", "turned \\u202e round"),
        ("half \ud800", "half \\ud800"),
        ("tag \U000e0041", "tag \\U000e0041"),
        ("c1 \x9b", "c1 \\x9b"),
    ],
)
def test_what_does_not_print_is_shown_as_an_escape(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(text).isprintable()


def test_columns_are_aligned_by_what_a_terminal_shows() -> None:
    shown = table(("ID", "STATE"), [("東京", "READ"), ("e\u0301", "A"), ("long-id", "")])
    assert [width(line[: line.rindex("  ")]) if "  " in line else 0 for line in shown.splitlines()] == [7, 7, 7, 7]
    assert shown.splitlines()[0] == "ID       STATE"
    assert shown.splitlines()[1] == "東京     READ"
    assert shown.splitlines()[3] == "long-id  -"


def test_a_table_without_rows_is_its_head() -> None:
    assert table(("ID", "STATE"), []) == "ID  STATE"


def test_a_long_value_is_cut_and_a_fitting_one_is_not() -> None:
    assert cut("x" * 64) == "x" * 64
    assert cut("x" * 65) == "x" * 63 + "…"
    assert width(cut("東" * 40)) <= 64
    assert len(table(("ID",), [("\x1b" * 255,)]).splitlines()[1]) == 64


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, ""),
        (-3.0, "0s"),
        (0.4, "0s"),
        (59.9, "59s"),
        (60, "1m0s"),
        (3599, "59m59s"),
        (3600, "1h0m"),
        (7384, "2h3m"),
        (86400 * 400 + 3599, "400d0h"),
    ],
)
def test_an_age_is_shown_in_its_two_largest_units(seconds: float | None, shown: str) -> None:
    assert age(seconds) == shown
