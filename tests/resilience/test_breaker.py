"""The states of a circuit breaker."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from cano.errors import CircuitOpenError, ConfigurationError
from cano.resilience.breaker import BreakerState, CircuitBreaker, Permit
from cano.testing import ManualClock

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@pytest.fixture
def time() -> Iterator[ManualClock]:
    with ManualClock() as moved:
        yield moved


def fail(breaker: CircuitBreaker, times: int = 1) -> None:
    for _ in range(times):
        breaker.acquire().failure()


def refused(breaker: CircuitBreaker) -> bool:
    try:
        breaker.acquire().release()
    except CircuitOpenError as error:
        assert error.category == "circuit_open"
        return True
    return False


def half_open(time: ManualClock, **policy: Any) -> CircuitBreaker:
    """A breaker whose cool-down is just over; the next call is a trial."""
    breaker = CircuitBreaker(1, 30.0, **policy)
    fail(breaker)
    time.advance(30)
    return breaker


def test_it_begins_closed_with_the_policy_it_was_given() -> None:
    breaker = CircuitBreaker()
    assert breaker.state is CLOSED
    assert (breaker.failure_threshold, breaker.reset_timeout, breaker.half_open_max_calls, breaker.name) == (5, 30, 1, None)
    other = CircuitBreaker(2, timedelta(minutes=1), 3, name="payments")
    assert (other.failure_threshold, other.reset_timeout, other.half_open_max_calls, other.name) == (2, 60, 3, "payments")


@pytest.mark.parametrize("threshold", [1, 3, 5])
def test_so_many_failures_in_a_row_open_it_and_one_less_does_not(threshold: int) -> None:
    breaker = CircuitBreaker(threshold)
    fail(breaker, threshold - 1)
    assert breaker.state is CLOSED
    fail(breaker)
    assert breaker.state is OPEN
    assert refused(breaker)


def test_a_success_forgets_the_failures_before_it() -> None:
    breaker = CircuitBreaker(3)
    fail(breaker, 2)
    breaker.acquire().success()
    fail(breaker, 2)
    assert breaker.state is CLOSED
    fail(breaker)
    assert breaker.state is OPEN


def test_a_released_permit_neither_counts_nor_forgets_failures() -> None:
    """BR-94."""
    breaker = CircuitBreaker(3)
    fail(breaker, 2)
    for _ in range(20):
        breaker.acquire().release()
    assert breaker.state is CLOSED
    fail(breaker)
    assert breaker.state is OPEN


def test_only_the_first_outcome_of_a_permit_counts() -> None:
    breaker = CircuitBreaker(2)
    permit = breaker.acquire()
    permit.failure()
    permit.failure()
    permit.success()
    permit.release()
    assert breaker.state is CLOSED
    assert (breaker.counts.failures, breaker.counts.successes) == (1, 0)
    fail(breaker)
    assert breaker.state is OPEN, "the success after the failure did not count"


def test_it_becomes_half_open_with_the_first_call_after_the_cool_down_and_not_before(time: ManualClock) -> None:
    breaker = CircuitBreaker(1, 30.0)
    fail(breaker)
    time.advance(29.9)
    assert refused(breaker)
    assert breaker.retry_after == pytest.approx(0.1)
    time.advance(0.1)
    assert (breaker.state, breaker.retry_after) == (OPEN, 0.0)
    assert breaker.state is OPEN, "reading changes nothing"
    permit = breaker.acquire()
    assert (breaker.state, breaker.retry_after) == (HALF_OPEN, 0.0)
    permit.success()
    assert breaker.state is CLOSED


def test_without_a_cool_down_the_next_call_is_a_trial(time: ManualClock) -> None:
    breaker = CircuitBreaker(1, 0)
    fail(breaker)
    assert breaker.state is OPEN
    breaker.acquire().success()
    assert breaker.state is CLOSED


def test_half_open_it_admits_so_many_trials_at_once_and_each_success_makes_room(time: ManualClock) -> None:
    breaker = half_open(time, half_open_max_calls=3)
    trials = [breaker.acquire() for _ in range(3)]
    assert refused(breaker)
    trials[0].success()
    extra = breaker.acquire()
    assert refused(breaker)
    trials[1].success()
    assert breaker.state is HALF_OPEN
    trials[2].success()
    assert breaker.state is CLOSED
    extra.failure()
    assert breaker.state is CLOSED, "of an earlier epoch"


def test_trials_may_come_one_after_another(time: ManualClock) -> None:
    breaker = half_open(time, half_open_max_calls=2)
    breaker.acquire().success()
    assert breaker.state is HALF_OPEN
    breaker.acquire().success()
    assert breaker.state is CLOSED


def test_a_failed_trial_opens_it_for_a_whole_cool_down_and_forgets_the_successes(time: ManualClock) -> None:
    breaker = half_open(time, half_open_max_calls=2)
    breaker.acquire().success()
    time.advance(7)
    fail(breaker)
    assert (breaker.state, breaker.retry_after) == (OPEN, 30.0)
    time.advance(30)
    breaker.acquire().success()
    assert breaker.state is HALF_OPEN, "the success of the earlier half-open time does not count"
    breaker.acquire().success()
    assert breaker.state is CLOSED


def test_of_two_trials_the_success_after_the_failure_is_ignored(time: ManualClock) -> None:
    breaker = half_open(time, half_open_max_calls=2)
    first, second = breaker.acquire(), breaker.acquire()
    first.failure()
    second.success()
    assert breaker.state is OPEN


def test_a_permit_of_an_earlier_epoch_is_ignored_whatever_it_tells(time: ManualClock) -> None:
    breaker = CircuitBreaker(1, 30.0)
    stale = [breaker.acquire() for _ in range(4)]
    fail(breaker)
    stale[0].failure()
    assert breaker.state is OPEN
    time.advance(30)
    trial = breaker.acquire()
    stale[1].success()
    stale[2].failure()
    stale[3].release()
    assert breaker.state is HALF_OPEN
    assert refused(breaker), "none of them freed the slot"
    trial.success()
    assert breaker.state is CLOSED


def test_a_released_trial_makes_room_for_another(time: ManualClock) -> None:
    """BR-94."""
    breaker = half_open(time)
    for _ in range(20):
        breaker.acquire().release()
    assert breaker.state is HALF_OPEN
    breaker.acquire().success()
    assert breaker.state is CLOSED


def test_a_trial_that_is_garbage_collected_makes_room_for_another(time: ManualClock) -> None:
    breaker = half_open(time)
    cycle: list[Any] = [breaker.acquire()]
    cycle.append(cycle)
    assert refused(breaker)
    del cycle
    gc.collect()
    breaker.acquire().success()
    assert breaker.state is CLOSED
    assert (breaker.counts.successes, breaker.counts.failures) == (1, 1)


def test_permits_that_are_garbage_collected_count_for_nothing() -> None:
    breaker = CircuitBreaker(3)
    for _ in range(10):
        breaker.acquire()
    assert not refused(breaker)
    fail(breaker, 2)
    breaker.acquire()
    assert breaker.state is CLOSED


def test_a_stale_permit_that_is_garbage_collected_frees_no_slot(time: ManualClock) -> None:
    breaker = CircuitBreaker(1, 30.0)
    stale: Permit | None = breaker.acquire()
    fail(breaker)
    time.advance(30)
    trial = breaker.acquire()
    del stale
    gc.collect()
    assert refused(breaker)
    trial.success()


def test_a_whole_round_trip_is_counted(time: ManualClock) -> None:
    breaker = CircuitBreaker(2, 30.0)
    breaker.acquire().success()
    fail(breaker, 2)
    assert refused(breaker)
    time.advance(30)
    fail(breaker)
    time.advance(30)
    breaker.acquire().success()
    counts = breaker.counts
    assert (counts.acquired, counts.rejected, counts.successes, counts.failures) == (5, 1, 2, 3)
    assert (counts.closed_to_open, counts.open_to_half_open, counts.half_open_to_open, counts.half_open_to_closed) == (1, 2, 1, 1)
    fail(breaker)
    assert breaker.state is CLOSED, "failures from before do not count"


def test_a_stale_outcome_and_no_neutral_one_is_in_the_counts() -> None:
    breaker = CircuitBreaker(1)
    first, second, third = (breaker.acquire() for _ in range(3))
    first.failure()
    second.success()
    third.release()
    assert (breaker.counts.acquired, breaker.counts.successes, breaker.counts.failures) == (3, 1, 1)


def test_a_refusal_says_why_and_names_the_breaker_if_it_has_a_name(time: ManualClock) -> None:
    for name, start in ((None, "circuit breaker"), ("payments", "circuit breaker payments")):
        breaker = CircuitBreaker(1, 30.0, name=name)
        fail(breaker)
        with pytest.raises(CircuitOpenError) as caught:
            breaker.acquire()
        assert str(caught.value) == f"{start} open: rejecting call"
        time.advance(30)
        trial = breaker.acquire()
        with pytest.raises(CircuitOpenError) as caught:
            breaker.acquire()
        assert str(caught.value) == f"{start} half-open: trial slot exhausted"
        trial.success()


def test_its_repr_says_how_long_it_stays_open(time: ManualClock) -> None:
    breaker = CircuitBreaker(1, 30.0, name="payments")
    assert repr(breaker) == "<CircuitBreaker payments closed>"
    fail(breaker)
    time.advance(10)
    assert repr(breaker) == "<CircuitBreaker payments open, for 20.000 s>"


def test_a_clock_that_begins_anew_does_not_keep_it_open(time: ManualClock) -> None:
    """A module's breaker, used in one virtual event loop after another."""
    breaker = CircuitBreaker(1, 30.0)
    fail(breaker)
    with ManualClock() as anew:
        assert refused(breaker)
        anew.advance(30)
        breaker.acquire().success()
    assert breaker.state is CLOSED


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, 2**31, 10**30])
def test_a_threshold_that_is_no_sensible_int_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="failure_threshold"):
        CircuitBreaker(value)
    with pytest.raises(ConfigurationError, match="half_open_max_calls"):
        CircuitBreaker(half_open_max_calls=value)


@pytest.mark.parametrize("value", [-1, -0.1, True, "1", None, float("nan"), float("inf"), 10**400, timedelta(-1)])
def test_a_cool_down_that_is_no_duration_or_never_ends_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="reset_timeout"):
        CircuitBreaker(reset_timeout=value)


@pytest.mark.parametrize("value", ["", 1, b"name"])
def test_a_name_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        CircuitBreaker(name=value)


def test_a_refusal_says_how_long_to_wait_and_zero_if_only_the_trials_are_in_the_way(time: ManualClock) -> None:
    breaker = CircuitBreaker(1, 30.0)
    fail(breaker)
    time.advance(20)
    with pytest.raises(CircuitOpenError) as caught:
        breaker.acquire()
    assert caught.value.retry_after == pytest.approx(10.0)
    time.advance(10)
    trial = breaker.acquire()
    with pytest.raises(CircuitOpenError) as caught:
        breaker.acquire()
    assert caught.value.retry_after == 0.0
    trial.release()
    assert CircuitOpenError("by a breaker of the user's own").retry_after == 0.0
