"""Time comes in by one door, and that door can be replaced."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cano import clock
from cano.errors import ConfigurationError

MOMENT = datetime(2030, 1, 1, tzinfo=UTC)


def test_outside_a_loop_the_time_is_that_of_the_machine() -> None:
    assert time.monotonic() <= clock.now() <= time.monotonic()


@pytest.mark.asyncio
async def test_inside_a_loop_the_time_is_that_of_the_loop() -> None:
    loop = asyncio.get_running_loop()
    assert loop.time() <= clock.now() <= loop.time()


def test_the_wall_clock_is_in_utc() -> None:
    assert clock.wall().utcoffset() == timedelta(0)
    assert abs(clock.wall() - datetime.now(UTC)) < timedelta(seconds=5)


def test_other_clocks_tell_the_time_while_the_block_lasts_and_blocks_nest() -> None:
    with clock.replaced(now=lambda: 7.0):
        with clock.replaced(wall=lambda: MOMENT):
            assert (clock.now(), clock.wall()) == (7.0, MOMENT)
        assert clock.now() == 7.0
        assert clock.wall() != MOMENT
    assert clock.now() != 7.0


def test_no_other_file_asks_the_machine_for_the_time() -> None:
    root = Path(clock.__file__).parent
    for path in root.rglob("*.py"):
        if path != Path(clock.__file__):
            text = path.read_text()
            assert not any(way in text for way in ("datetime.now(", "time.time(", "time.monotonic(", "utcnow(")), path


def test_a_negative_duration_is_refused_and_none_is_advised_only_where_it_is_taken() -> None:
    with pytest.raises(ConfigurationError, match="^it must not be negative$"):
        clock.seconds(-1, "it")
    with pytest.raises(ConfigurationError, match=r"^it must not be negative; leave it out \(None\) for no limit$"):
        clock.optional_seconds(-1, "it")
