"""Token buckets and fixed windows: what is admitted when, without waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from cano.clock import replaced
from cano.errors import ConfigurationError, RateLimitedError
from cano.resilience.limiter import MeteredLimiter, RateLimiter, WindowedRateLimiter
from cano.resilience.meter import Usage
from cano.resources import Resources
from cano.testing import ManualClock, simulate

BOTH: list[Callable[[int], MeteredLimiter]] = [RateLimiter.per_second, WindowedRateLimiter.per_hours]
both = pytest.mark.parametrize("make", BOTH, ids=["bucket", "window"])


@pytest.fixture(autouse=True)
def time() -> Iterator[ManualClock]:
    with ManualClock() as moved:
        yield moved


@both
def test_it_begins_full_and_admits_exactly_its_capacity(make: Callable[[int], MeteredLimiter]) -> None:
    limiter = make(10)
    assert sum(limiter.try_acquire() for _ in range(40)) == 10
    assert limiter.available == 0


@both
def test_a_request_takes_what_it_costs(make: Callable[[int], MeteredLimiter]) -> None:
    limiter = make(10)
    assert limiter.try_acquire(3)
    assert limiter.available == 7
    assert not limiter.try_acquire(8)
    assert limiter.available == 7, "a refused one takes nothing"
    assert limiter.try_acquire(7)
    assert not limiter.try_acquire()


@both
def test_all_of_it_may_be_taken_at_once(make: Callable[[int], MeteredLimiter]) -> None:
    limiter = make(10)
    assert limiter.try_acquire(10)
    assert limiter.available == 0


@both
def test_what_costs_nothing_is_always_admitted_and_takes_nothing(make: Callable[[int], MeteredLimiter]) -> None:
    limiter = make(1)
    assert limiter.try_acquire(0)
    assert limiter.snapshot().resets_at is None, "no window was opened"
    assert limiter.try_acquire()
    limiter.require(0)
    assert limiter.try_acquire(0)
    assert limiter.time_until(0) == 0.0
    assert (limiter.available, limiter.snapshot().used) == (0, 1)


@both
@pytest.mark.parametrize("cost", [-1, True, False, 1.0, float("nan"), "1", None, 11, 10**400])
def test_an_impossible_cost_is_refused_at_once_by_every_verb(make: Callable[[int], MeteredLimiter], cost: Any) -> None:
    """BR-97."""
    limiter = make(10)

    async def acquire() -> None:
        await limiter.acquire(cost)

    for verb in (
        limiter.try_acquire,
        limiter.require,
        limiter.try_reserve,
        limiter.time_until,
        lambda cost: simulate(acquire()),
    ):
        with pytest.raises(ConfigurationError, match="cost"):
            verb(cost)
    assert limiter.available == 10


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "1", 10**16, 10**400])
def test_an_amount_that_is_no_sensible_int_is_refused(value: Any) -> None:
    for make in (
        lambda: RateLimiter(value),
        lambda: RateLimiter(1, max_tokens=value),
        lambda: RateLimiter.per_second(value),
        lambda: WindowedRateLimiter(value, 1.0),
        lambda: WindowedRateLimiter.per_hours(value),
        lambda: WindowedRateLimiter.per_hours(1, value),
        lambda: WindowedRateLimiter.per_days(1, value),
    ):
        with pytest.raises(ConfigurationError):
            make()
    if value != 0:
        with pytest.raises(ConfigurationError):
            RateLimiter(1, burst=value)


@pytest.mark.parametrize("value", [0, 0.0, -1.0, True, "1", None, float("nan"), float("inf"), 10**400, timedelta(0)])
def test_a_period_that_is_no_duration_above_zero_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="period"):
        RateLimiter(1, value)
    with pytest.raises(ConfigurationError, match="window"):
        WindowedRateLimiter(1, value)


def test_a_rate_that_no_float_holds_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="rate"):
        RateLimiter(10**15, 1e-300)


def test_a_bucket_fills_up_continuously_and_never_above_its_capacity(time: ManualClock) -> None:
    limiter = RateLimiter(50, 1.0)
    assert limiter.try_acquire(50)
    time.advance(0.019)
    assert (limiter.available, limiter.try_acquire()) == (0, False)
    time.advance(0.001)
    assert (limiter.available, limiter.try_acquire()) == (1, True)
    time.advance(0.5)
    assert limiter.available == 25
    time.advance(1e12)
    assert limiter.available == 50


def test_a_bucket_holds_max_tokens_and_the_burst(time: ManualClock) -> None:
    limiter = RateLimiter(1, timedelta(seconds=10), max_tokens=2, burst=5)
    assert limiter.capacity == 7
    assert sum(limiter.try_acquire() for _ in range(10)) == 7
    time.advance(10)
    assert limiter.available == 1


def test_a_bucket_says_how_long_what_is_missing_takes(time: ManualClock) -> None:
    limiter = RateLimiter(10, 1.0)
    assert limiter.time_until(10) == 0.0
    assert limiter.try_acquire(9)
    assert limiter.time_until(1) == 0.0
    assert limiter.time_until(3) == pytest.approx(0.2)
    time.advance(limiter.time_until(3))
    assert limiter.try_acquire(3)


@pytest.mark.parametrize(("tokens", "period"), [(3, 0.7), (1, 1 / 3), (7, 1e-5), (10**9, 0.1), (1, 1e7)])
def test_after_exactly_the_time_it_said_a_bucket_pays_whatever_the_rounding(
    time: ManualClock, tokens: int, period: float
) -> None:
    time.advance(123_456.789)
    limiter = RateLimiter(tokens, period, max_tokens=1)
    limiter.require()
    for _ in range(200):
        wait = limiter.time_until()
        assert wait > 0
        time.advance(max(wait, 0.001))
        assert limiter.try_acquire()


def test_a_bucket_does_not_gain_by_rounding(time: ManualClock) -> None:
    limiter = RateLimiter(3, 0.7)
    began, admitted = time.now, 0
    for _ in range(20_000):
        admitted += limiter.try_acquire()
        time.advance(0.0137)
    assert admitted <= 3 + (time.now - began) * 3 / 0.7
    assert admitted >= (time.now - began) * 3 / 0.7 - 1


def test_a_bucket_that_fills_up_astronomically_slowly_waits_long_and_breaks_nothing(time: ManualClock) -> None:
    for period in (1.8e19, 1e308):
        limiter = RateLimiter(1, period)
        limiter.require()
        time.advance(1e6)
        assert not limiter.try_acquire()
        assert limiter.time_until() == pytest.approx(period)
        assert limiter.snapshot().available_in == pytest.approx(period)


def test_a_window_opens_with_its_first_unit_and_gives_everything_back_at_its_end(time: ManualClock) -> None:
    limiter = WindowedRateLimiter(3, 60.0)
    time.advance(1000)
    assert limiter.try_acquire(2)
    time.advance(59)
    assert limiter.try_acquire()
    assert (limiter.try_acquire(), limiter.time_until(), limiter.time_until(3)) == (False, 1.0, 1.0)
    time.advance(1)
    assert (limiter.available, limiter.time_until(3)) == (3, 0.0)
    time.advance(30)
    assert limiter.try_acquire()
    assert limiter.snapshot() == Usage(1, 3, 0.0, time.now + 60), "the next one opened just now"


def test_a_window_is_filled_exactly() -> None:
    limiter = WindowedRateLimiter(1000, 60.0)
    assert [limiter.try_acquire(cost) for cost in (600, 600, 400)] == [True, False, True]
    assert limiter.snapshot().used == 1000


def test_windows_of_hours_and_days(time: ManualClock) -> None:
    for limiter, seconds in (
        (WindowedRateLimiter.per_hours(100, 5), 5 * 3600),
        (WindowedRateLimiter.per_hours(100), 3600),
        (WindowedRateLimiter.per_days(100, 7), 7 * 86400),
        (WindowedRateLimiter.per_days(100), 86400),
    ):
        limiter.require(100)
        assert (limiter.capacity, limiter.time_until()) == (100, seconds)


def test_a_snapshot_says_what_is_used_and_only_a_windows_when_it_resets(time: ManualClock) -> None:
    bucket, window = RateLimiter(10), WindowedRateLimiter(10, 60.0)
    for limiter in (bucket, window):
        limiter.require(4)
    assert bucket.snapshot() == Usage(used=4, limit=10, available_in=0.0, resets_at=None)
    assert window.snapshot() == Usage(used=4, limit=10, available_in=0.0, resets_at=time.now + 60)
    time.advance(10)
    window.require(6)
    assert window.snapshot().available_in == 50.0
    assert bucket.snapshot().used == 0
    with pytest.raises(FrozenInstanceError):
        bucket.snapshot().used = 1


@both
def test_require_says_when_to_try_again(make: Callable[[int], MeteredLimiter], time: ManualClock) -> None:
    limiter = make(10)
    limiter.require(10)
    with pytest.raises(RateLimitedError, match=r"^the rate limit is used up; try again in \d+\.\d{3} s$") as caught:
        limiter.require(5)
    assert (caught.value.tier, caught.value.category) == (None, "rate_limited")
    assert caught.value.retry_after == limiter.time_until(5) > 0.4
    time.advance(caught.value.retry_after)
    limiter.require(5)


@both
def test_a_reservation_is_given_back_unless_committed(make: Callable[[int], MeteredLimiter]) -> None:
    limiter = make(10)
    with limiter.try_reserve(4) or pytest.fail("there was room"):
        assert limiter.available == 6
    assert limiter.available == 10
    with limiter.try_reserve(4) or pytest.fail("there was room") as reservation:
        reservation.commit()
    reservation.refund()
    assert limiter.available == 6
    assert limiter.try_reserve(7) is None
    with pytest.raises(KeyError), limiter.try_reserve(6) or pytest.fail("there was room"):
        raise KeyError
    assert limiter.available == 6


@both
def test_a_reservation_is_given_back_once(make: Callable[[int], MeteredLimiter]) -> None:
    limiter = make(10)
    limiter.require(5)
    reservation = limiter.try_reserve(4)
    assert reservation is not None
    reservation.refund()
    reservation.refund()
    reservation.commit()
    del reservation
    assert limiter.available == 5


@both
def test_a_reservation_that_is_garbage_collected_is_given_back(make: Callable[[int], MeteredLimiter]) -> None:
    limiter = make(10)
    limiter.try_reserve(4)
    assert limiter.available == 10
    kept = limiter.try_reserve(4)
    assert limiter.available == 6
    assert kept is not None
    kept.commit()
    del kept
    assert limiter.available == 6


def test_a_late_refund_does_not_fill_a_bucket_above_its_capacity(time: ManualClock) -> None:
    limiter = RateLimiter(10, 1.0)
    reservation = limiter.try_reserve(8)
    assert reservation is not None
    time.advance(0.5)
    assert limiter.available == 7
    reservation.refund()
    assert limiter.available == 10
    assert limiter.try_acquire(10)
    assert not limiter.try_acquire()


def test_a_refund_goes_into_no_other_window(time: ManualClock) -> None:
    limiter = WindowedRateLimiter(2, 60.0)
    reservation, late = limiter.try_reserve(), limiter.try_reserve()
    assert reservation is not None
    assert late is not None
    time.advance(60)
    reservation.refund()
    assert limiter.available == 2
    limiter.require(2)
    late.refund()
    assert not limiter.try_acquire()


@both
def test_it_counts_what_it_admits_and_refuses(make: Callable[[int], MeteredLimiter]) -> None:
    limiter = make(10)
    limiter.require(7)
    limiter.try_acquire(3)
    limiter.try_acquire()
    counts = limiter.counts
    assert (counts.acquired, counts.tokens, counts.rejected, counts.waited) == (2, 10, 1, 0)
    assert (counts.wait_seconds, sum(counts.waits)) == (0.0, 0)


@both
def test_a_clock_that_begins_anew_holds_nothing_back(make: Callable[[int], MeteredLimiter], time: ManualClock) -> None:
    """A module's limiter, used in one virtual event loop after another."""
    time.advance(1000)
    limiter = make(10)
    limiter.require(10)
    with ManualClock() as anew:
        assert not limiter.try_acquire()
        anew.advance(limiter.time_until(10))
        assert limiter.try_acquire(10)


def test_clocks_that_disagree_a_little_admit_no_more(time: ManualClock) -> None:
    limiter = RateLimiter(100, 1.0)
    limiter.require(100)
    admitted = 0
    for _ in range(1000):  # two threads whose event loops are 5 ms apart
        for skew in (0.005, 0.0):
            with replaced(now=lambda ahead=skew: time.now + ahead):
                admitted += limiter.try_acquire()
    assert admitted == 0


def test_a_limiter_among_resources_is_left_as_it_is() -> None:
    limiter = RateLimiter(1)

    async def main() -> None:
        async with Resources(limiter=limiter) as resources:
            assert resources["limiter"] is limiter
            assert limiter.available == 1

    simulate(main, debug=True)


@both
def test_its_repr_says_how_much_is_there(make: Callable[[int], MeteredLimiter]) -> None:
    limiter = make(10)
    limiter.require(3)
    assert repr(limiter) == f"<{type(limiter).__name__} 7 of 10 available>"
