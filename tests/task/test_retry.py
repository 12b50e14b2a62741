"""How long to wait between attempts: finite, never negative, never above the cap, whatever was asked for."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cano import ConfigurationError, ExponentialBackoff, FixedRetry, NoRetry, TaskConfig

FOREVER = 10**12
ODD = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(10**400), 10**400),
    st.sampled_from([0, 0.0, -0.0, 1, 5e-324, 1.7e308, math.inf, -math.inf, math.nan, 10**400, -(10**400)]),
)
DELAYS = st.one_of(
    st.floats(min_value=0, allow_nan=False, allow_infinity=True),
    st.integers(0, 10**400),
    st.timedeltas(min_value=timedelta(0)),
    st.sampled_from([0, 0.0, -0.0, 5e-324, 0.001, math.inf]),
)
ATTEMPTS = st.one_of(st.integers(1, 5000), st.sampled_from([1, 64, 1024, 1025, 10**6, 2**33, 10**9]))


def in_seconds(delay: Any) -> float:
    return delay.total_seconds() if isinstance(delay, timedelta) else delay


@given(failed=ATTEMPTS, base=DELAYS, multiplier=ODD, cap=DELAYS, jitter=ODD)
def test_a_delay_is_finite_never_negative_and_never_above_the_cap(
    failed: int, base: Any, multiplier: Any, cap: Any, jitter: Any
) -> None:
    """BR-88."""
    policy = ExponentialBackoff(FOREVER, base_delay=base, multiplier=multiplier, max_delay=cap, jitter=jitter)
    delay = policy.delay(failed)
    assert type(delay) is float
    assert math.isfinite(delay)
    assert 0 <= delay <= in_seconds(cap)


@given(failed=ATTEMPTS, multiplier=ODD, jitter=ODD)
def test_a_base_of_zero_stays_zero(failed: int, multiplier: Any, jitter: Any) -> None:
    """BR-88."""
    assert ExponentialBackoff(FOREVER, base_delay=0, multiplier=multiplier, jitter=jitter).delay(failed) == 0


@given(failed=st.integers(10**300, 10**400), multiplier=st.sampled_from([2, 2.0, 1e308, 10**400]))
def test_a_number_of_attempts_beyond_all_reason_gives_the_cap(failed: int, multiplier: Any) -> None:
    """BR-88."""
    assert ExponentialBackoff(10**400, multiplier=multiplier, jitter=0).delay(failed) == 30.0


@given(failed=ATTEMPTS, delay=DELAYS)
def test_a_fixed_delay_is_finite_too(failed: int, delay: Any) -> None:
    wait = FixedRetry(FOREVER, delay).delay(failed)
    assert wait is not None
    assert math.isfinite(wait)
    assert 0 <= wait <= in_seconds(delay)


def test_no_retry_has_no_second_attempt() -> None:
    assert [NoRetry().delay(failed) for failed in (1, 2, 10**9)] == [None, None, None]


def test_a_fixed_retry_waits_the_same_so_many_times() -> None:
    assert [FixedRetry(3, 0.1).delay(failed) for failed in range(1, 6)] == [0.1, 0.1, 0.1, None, None]
    assert [FixedRetry(1, timedelta(minutes=1)).delay(failed) for failed in (1, 2)] == [60, None]
    assert FixedRetry(0, 1).delay(1) is None


def test_delays_grow_by_the_multiplier_up_to_the_cap() -> None:
    grown = ExponentialBackoff(2, base_delay=0.05, multiplier=3, max_delay=5, jitter=0)
    assert [grown.delay(failed) for failed in (1, 2, 3)] == [0.05, pytest.approx(0.15), None]
    capped = ExponentialBackoff(3, base_delay=timedelta(seconds=0.1), multiplier=10, max_delay=timedelta(seconds=0.5), jitter=0)
    assert [capped.delay(failed) for failed in (1, 2, 3, 4)] == [0.1, 0.5, 0.5, None]


def test_the_default_has_three_more_attempts_that_wait_longer_and_longer() -> None:
    delays = [ExponentialBackoff().delay(failed) for failed in (1, 2, 3, 4)]
    assert delays[3] is None
    for delay, middle in zip(delays, (0.1, 0.2, 0.4), strict=False):
        assert delay == pytest.approx(middle, rel=0.1)


def test_jitter_spreads_around_the_delay_and_stays_within_it() -> None:
    policy = ExponentialBackoff(FOREVER, base_delay=0.1, multiplier=1, jitter=0.5)
    samples = [policy.delay(1) for _ in range(2000)]
    assert all(sample is not None and 0.05 <= sample <= 0.15 for sample in samples)
    assert min(samples) < 0.06  # type: ignore[type-var, operator]  # it gives one
    assert max(samples) > 0.14  # type: ignore[type-var, operator]  # it gives one


def test_a_full_jitter_never_takes_a_delay_down_to_nothing() -> None:
    policy = ExponentialBackoff(FOREVER, base_delay=0.1, jitter=1.0)
    assert all((policy.delay(failed % 5 + 1) or 0) >= 0.001 for failed in range(4096))
    shrinking = ExponentialBackoff(FOREVER, base_delay=0.1, multiplier=0.5, jitter=1.0)
    assert (shrinking.delay(10**6) or 0) >= 0.001
    assert ExponentialBackoff(base_delay=0.0001, jitter=0).delay(1) == 0.0001


@pytest.mark.parametrize("multiplier", [math.nan, math.inf, -math.inf, 0, 0.0, -1, -(10**400), 10**400])
def test_a_multiplier_that_is_not_finite_or_not_positive_counts_as_one(multiplier: Any) -> None:
    policy = ExponentialBackoff(FOREVER, base_delay=0.1, multiplier=multiplier, jitter=0)
    grows = multiplier == 10**400
    assert [policy.delay(failed) for failed in (1, 2, 50)] == ([0.1, 30, 30] if grows else [0.1, 0.1, 0.1])


@pytest.mark.parametrize(("jitter", "least", "most"), [(math.nan, 0.1, 0.1), (-3, 0.1, 0.1), (7, 0.0, 0.2), (10**400, 0.0, 0.2)])
def test_a_jitter_out_of_range_counts_as_the_nearer_end(jitter: Any, least: float, most: float) -> None:
    policy = ExponentialBackoff(FOREVER, base_delay=0.1, multiplier=1, jitter=jitter)
    samples = [policy.delay(1) or 0 for _ in range(500)]
    assert least <= min(samples) <= max(samples) <= most
    assert (max(samples) - min(samples) > 0.1) == (most > least)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FixedRetry(-1, 0),
        lambda: FixedRetry(True, 0),
        lambda: FixedRetry(1.0, 0),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: FixedRetry(1, -1),
        lambda: FixedRetry(1, math.nan),
        lambda: FixedRetry(1, "1"),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: FixedRetry(1, timedelta(seconds=-1)),
        lambda: ExponentialBackoff(-1),
        lambda: ExponentialBackoff(2.5),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: ExponentialBackoff(base_delay=-0.1),
        lambda: ExponentialBackoff(base_delay=math.nan),
        lambda: ExponentialBackoff(max_delay=True),
        lambda: ExponentialBackoff(max_delay=None),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: ExponentialBackoff(multiplier="2"),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: ExponentialBackoff(jitter=True),
        lambda: TaskConfig(retry=3),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: TaskConfig(retry=NoRetry),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: TaskConfig(attempt_timeout=-1),
        lambda: TaskConfig(attempt_timeout="1"),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: TaskConfig(retry_on="ValueError"),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: TaskConfig(retry_on=(ValueError, "KeyError")),  # type: ignore[arg-type]  # wrong, on purpose
        lambda: TaskConfig(retry_on=int),  # type: ignore[arg-type]  # wrong, on purpose
    ],
)
def test_nonsense_is_refused_at_once(make: Any) -> None:
    with pytest.raises(ConfigurationError):
        make()


def test_a_predicate_that_would_have_to_be_awaited_is_refused() -> None:
    async def worth_it(error: BaseException) -> bool:
        return True

    with pytest.raises(ConfigurationError, match="async"):
        TaskConfig(retry_on=worth_it)  # type: ignore[arg-type]  # wrong, on purpose
