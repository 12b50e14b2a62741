"""Several limits at once: all or nothing, in order, and nobody waits for a tier that is not asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano.errors import ConfigurationError, RateLimitedError
from cano.resilience.limiter import MeteredLimiter, RateLimiter, WindowedRateLimiter
from cano.resilience.tiers import MultiRateLimiter, Tier
from cano.testing import ManualClock, simulate


def slow(limit: int) -> WindowedRateLimiter:
    return WindowedRateLimiter.per_days(limit)


async def start(*coroutines: Any) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


def used(*limiters: MeteredLimiter) -> list[int]:
    return [limiter.snapshot().used for limiter in limiters]


def test_a_call_is_charged_in_every_tier() -> None:
    a, b = slow(10), slow(1000)
    limiter = MultiRateLimiter({"requests": a, "tokens": (b, 600)})
    assert limiter.try_acquire()
    assert used(a, b) == [1, 600]
    with pytest.raises(RateLimitedError) as caught:
        limiter.require()
    assert caught.value.tier == "tokens"
    assert 0 < caught.value.retry_after <= 86400
    assert str(caught.value).startswith("the rate limit of tier 'tokens' is used up; try again in ")
    assert used(a, b) == [1, 600]


def test_tiers_may_be_given_as_a_sequence_too() -> None:
    a, b = slow(10), slow(10)
    limiter = MultiRateLimiter([Tier("a", a), Tier("b", b, cost=3)])
    limiter.require()
    assert used(a, b) == [1, 3]
    assert {name: usage.used for name, usage in limiter.snapshot().items()} == {"a": 1, "b": 3}


def test_a_refusal_leaves_no_trace_in_the_tiers_before_it() -> None:
    a, b = slow(100), slow(1)
    limiter = MultiRateLimiter({"a": a, "b": b})
    limiter.require()
    assert not any(limiter.try_acquire() for _ in range(10))
    assert used(a, b) == [1, 1]


def test_tiers_after_the_one_that_refuses_are_not_asked() -> None:
    a, b = slow(1), slow(100)
    limiter = MultiRateLimiter({"a": a, "b": b})
    limiter.require()
    assert not any(limiter.try_acquire() for _ in range(10))
    assert (b.counts.acquired, b.counts.rejected) == (1, 0)
    assert (a.counts.rejected, limiter.throttled) == (10, {"a": 10, "b": 0})


def test_of_many_calls_at_once_as_many_are_admitted_as_the_scarcest_tier_allows() -> None:
    a, b = slow(100), slow(5)
    limiter = MultiRateLimiter({"a": a, "b": b})
    assert sum(limiter.try_acquire() for _ in range(24)) == 5
    assert used(a, b) == [5, 5]


def test_a_tier_that_costs_nothing_neither_refuses_nor_is_charged() -> None:
    a, b = slow(1), slow(10)
    limiter = MultiRateLimiter({"free": (a, 0), "b": b})
    a.require()
    assert limiter.try_acquire()
    assert used(a, b) == [1, 1]


def test_only_the_named_tiers_are_charged() -> None:
    a, b, c = slow(10), slow(1), slow(10)
    limiter = MultiRateLimiter({"a": a, "b": b, "c": c})
    b.require()
    assert limiter.try_acquire(only=("c", "a"))
    limiter.require(only=["a"])
    assert used(a, b, c) == [2, 1, 1]
    assert not limiter.try_acquire(only={"b"})


@pytest.mark.parametrize("only", [None, [], (), set(), frozenset(), {}])
def test_no_names_mean_all_tiers(only: Any) -> None:
    a, b = slow(10), slow(1)
    limiter = MultiRateLimiter({"a": a, "b": b})
    assert [limiter.try_acquire(only=only) for _ in range(3)] == [True, False, False]
    assert used(a, b) == [1, 1]
    assert limiter.time_until(only=only) > 0


@pytest.mark.parametrize(
    "only", [("a", "tokns"), ["A"], (3,), "a", 3, ("",), ([],), b"a", iter(["a"]), iter(()), (x for x in "a")]
)
def test_a_tier_that_is_not_there_is_refused_by_every_verb_and_nothing_is_charged(only: Any) -> None:
    a = slow(10)
    limiter = MultiRateLimiter({"a": a, "tokens": slow(10)})

    async def acquire(*, only: Any) -> None:
        await limiter.acquire(only=only)

    for verb in (
        limiter.try_acquire,
        limiter.require,
        limiter.try_reserve,
        limiter.time_until,
        lambda only: simulate(acquire(only=only)),
    ):
        with pytest.raises(ConfigurationError) as caught:
            verb(only=only)
        if isinstance(only, tuple | list):
            assert str(caught.value).endswith("; the known ones: 'a', 'tokens'")
    assert used(a) == [0]


@pytest.mark.parametrize("entry", [(), (slow(1),), (slow(1), 1, 1), 3, (3, 1)], ids=range(5))
def test_a_tier_that_is_no_limiter_and_no_pair_is_refused(entry: Any) -> None:
    with pytest.raises(ConfigurationError, match="tier 'a'"):
        MultiRateLimiter({"a": entry})


def test_without_tiers_every_call_is_admitted() -> None:
    for limiter in (MultiRateLimiter({}), MultiRateLimiter([])):
        limiter.require()
        assert limiter.try_acquire()
        assert (limiter.time_until(), limiter.snapshot()) == (0.0, {})
        simulate(limiter.acquire())
        with pytest.raises(ConfigurationError, match="known ones: none"):
            limiter.require(only=("a",))


def test_a_limiter_in_two_tiers_is_charged_for_each() -> None:
    a = slow(5)
    limiter = MultiRateLimiter({"x": a, "y": (a, 2)})
    limiter.require()
    assert used(a) == [3]
    assert not limiter.try_acquire()
    assert used(a) == [3], "the charge for x was given back"
    assert limiter.try_acquire(only=("y",))


def test_a_limiter_in_two_tiers_says_how_long_both_charges_take() -> None:
    with ManualClock() as time:
        limiter = MultiRateLimiter({name: bucket for bucket in [RateLimiter(2, 2.0)] for name in "xy"})
        limiter.require()
        time.advance(1.0)
        with pytest.raises(RateLimitedError) as caught:
            limiter.require()
        assert (caught.value.tier, caught.value.retry_after, limiter.time_until()) == ("y", 1.0, 1.0)


def test_two_tiers_that_ask_more_of_one_limiter_than_it_can_hold_are_refused_together() -> None:
    """BR-97."""
    a = slow(5)
    limiter = MultiRateLimiter({"x": (a, 3), "y": (a, 3)})
    with pytest.raises(ConfigurationError, match="cost"):
        limiter.try_acquire()
    assert limiter.try_acquire(only=("y",))


@pytest.mark.parametrize("cost", [-1, 6, True, 1.0, float("nan"), "1", None])
def test_a_tier_with_an_impossible_cost_is_refused(cost: Any) -> None:
    """BR-97."""
    with pytest.raises(ConfigurationError, match="cost"):
        MultiRateLimiter({"a": (slow(5), cost)})


@pytest.mark.parametrize(
    "tiers",
    [
        3,
        "ab",
        [("a", 1)],
        {"a": 1},
        {"a": MultiRateLimiter({})},
        {"": RateLimiter(1)},
        {1: RateLimiter(1)},
        [Tier("a", RateLimiter(1)), Tier("a", RateLimiter(1))],
    ],
)
def test_tiers_that_are_none_or_have_the_same_name_are_refused(tiers: Any) -> None:
    with pytest.raises(ConfigurationError, match="tier"):
        MultiRateLimiter(tiers)


def test_what_is_admitted_stays_taken_and_a_reservation_is_given_back_to_every_tier() -> None:
    a, b = slow(10), slow(10)
    limiter = MultiRateLimiter({"a": a, "b": (b, 4)})
    with limiter.try_reserve() or pytest.fail("there was room"):
        assert used(a, b) == [1, 4]
    assert used(a, b) == [0, 0]
    with limiter.try_reserve(only=("b",)) or pytest.fail("there was room") as reservation:
        reservation.commit()
    assert used(a, b) == [0, 4]
    limiter.require()
    assert limiter.try_reserve() is None
    assert used(a, b) == [1, 8]


def test_how_long_it_takes_is_the_longest_of_the_tiers() -> None:
    async def main() -> None:
        a, b = RateLimiter(1, 5.0), WindowedRateLimiter(1, 60.0)
        limiter = MultiRateLimiter({"a": a, "b": b})
        assert limiter.time_until() == 0.0
        limiter.require()
        assert (limiter.time_until(), limiter.time_until(only=("a",))) == (60.0, 5.0)

    simulate(main, debug=True)


def test_a_call_waits_for_each_tier_that_refuses_and_holds_nothing_meanwhile() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        a, b = RateLimiter(1, 5.0), WindowedRateLimiter(1, 60.0)
        limiter = MultiRateLimiter({"a": a, "b": b})
        limiter.require()
        (waiting,) = await start(limiter.acquire())
        await asyncio.sleep(10)
        assert (waiting.done(), a.available) == (False, 1)
        a.require()  # whoever wants only this one is not kept waiting
        await waiting
        assert loop.time() == pytest.approx(60, abs=0.01)
        counts = limiter.counts
        assert (counts.acquired, counts.waited, counts.rejected, counts.tokens, sum(counts.waits)) == (2, 1, 0, 4, 1)
        assert counts.wait_seconds == pytest.approx(60, abs=0.01)
        assert limiter.throttled == {"a": 1, "b": 0}

    simulate(main, debug=True)


def test_calls_that_wait_are_served_in_order_whichever_tier_keeps_them() -> None:
    async def main() -> None:
        a, b = RateLimiter(1, 1.0, max_tokens=2), WindowedRateLimiter(3, 10.0)
        limiter = MultiRateLimiter({"a": a, "b": b})
        order: list[int] = []

        async def come(number: int) -> None:
            await limiter.acquire()
            order.append(number)

        tasks = await start(*(come(number) for number in range(20)))
        assert not limiter.try_acquire()
        await asyncio.gather(*tasks)
        assert order == list(range(20))
        assert asyncio.get_running_loop().time() == pytest.approx(60, abs=0.1), "three in each window, two in the 7th"

    simulate(main, debug=True)


def test_whoever_goes_over_to_another_line_takes_the_place_that_its_arrival_gives_it() -> None:
    async def main() -> None:
        a, b = RateLimiter(1, 1.0), RateLimiter(1, 10.0)
        limiter = MultiRateLimiter({"a": a, "b": b})
        limiter.require()
        order: list[str] = []

        async def come(name: str, only: tuple[str, ...] | None) -> None:
            await limiter.acquire(only=only)
            order.append(name)

        await asyncio.gather(come("both", None), come("b alone", ("b",)), come("a alone", ("a",)))
        assert order == ["a alone", "both", "b alone"]

    simulate(main, debug=True)


def test_a_limiter_in_two_tiers_is_waited_for_without_a_busy_loop() -> None:
    async def main() -> None:
        a = RateLimiter(2, 2.0)
        limiter = MultiRateLimiter({"x": a, "y": a})
        for _ in range(3):
            await limiter.acquire()
        assert asyncio.get_running_loop().time() == pytest.approx(4, abs=0.02)

    simulate(main, debug=True)


@pytest.mark.asyncio
async def test_a_cancelled_call_leaves_the_line_it_stands_in_and_the_next_is_served_at_once(nothing_left: None) -> None:
    """BR-95."""
    a, b = slow(10), slow(3)
    limiter = MultiRateLimiter({"a": a, "b": (b, 3)})
    b.require(2)
    large, small = await start(limiter.acquire(), b.acquire())
    assert not small.done()
    large.cancel()
    async with asyncio.timeout(10):
        await small
    assert used(a, b) == [0, 3]


@pytest.mark.asyncio
async def test_a_call_that_is_cancelled_when_it_was_just_admitted_gives_everything_back(nothing_left: None) -> None:
    """BR-95."""
    a, b = slow(10), slow(1)
    limiter = MultiRateLimiter({"a": a, "b": b})
    reservation = b.try_reserve()
    assert reservation is not None
    first, second = await start(limiter.acquire(), limiter.acquire())
    reservation.refund()
    first.cancel()
    async with asyncio.timeout(10):
        await second
    assert first.cancelled()
    assert used(a, b) == [1, 1]


@pytest.mark.asyncio
async def test_a_block_and_a_decorated_function_are_one_call(nothing_left: None) -> None:
    a = slow(10)
    limiter = MultiRateLimiter({"a": (a, 2)})

    @limiter
    async def call() -> None: ...

    async with limiter:
        await call()
    assert used(a) == [4]
    assert repr(limiter) == "<MultiRateLimiter a>"
