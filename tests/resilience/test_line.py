"""Waiting for a rate limiter: in order, and with nothing lost whoever gives up."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cano.errors import ConfigurationError, RateLimitedError
from cano.resilience.counts import WAIT_BOUNDS
from cano.resilience.gate import LOCK, LONGEST
from cano.resilience.limiter import MeteredLimiter, RateLimiter, WindowedRateLimiter
from cano.testing import VirtualTimeLoop, simulate


def now() -> float:
    return round(asyncio.get_running_loop().time(), 6)


async def start(*coroutines: Any) -> list[asyncio.Task[Any]]:
    """Asyncio tasks that have come as far as they can without waiting."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


class Arrivals:
    """Acquires, and remembers who was admitted when."""

    def __init__(self, limiter: MeteredLimiter) -> None:
        self.limiter = limiter
        self.admitted: list[tuple[str, float]] = []

    async def come(self, name: str, cost: int = 1) -> None:
        await self.limiter.acquire(cost)
        self.admitted.append((name, now()))

    @property
    def order(self) -> str:
        return "".join(name for name, _ in self.admitted)


def test_with_units_there_nobody_waits() -> None:
    async def main() -> None:
        limiter = RateLimiter(1)
        await limiter.acquire()
        assert (now(), limiter.available) == (0.0, 0)
        assert (limiter.counts.waited, sum(limiter.counts.waits)) == (0, 0)

    simulate(main, debug=True)


def test_an_empty_bucket_is_waited_for_as_long_as_what_is_missing_takes() -> None:
    async def main() -> None:
        limiter = RateLimiter(100, 1.0)
        limiter.require(100)
        await limiter.acquire()
        assert now() == pytest.approx(0.01, abs=0.002)
        await limiter.acquire(3)
        assert now() == pytest.approx(0.04, abs=0.004)

    simulate(main, debug=True)


def test_a_full_window_is_waited_for_until_it_ends() -> None:
    async def main() -> None:
        limiter = WindowedRateLimiter(1, 100.0)
        await asyncio.sleep(7)
        await limiter.acquire()
        await limiter.acquire()
        assert now() == pytest.approx(107, abs=0.01)
        assert limiter.available == 0

    simulate(main, debug=True)


@pytest.mark.asyncio
async def test_it_waits_in_real_time_too(nothing_left: None) -> None:
    limiter = RateLimiter(1, 0.03)
    began = asyncio.get_running_loop().time()
    for _ in range(3):
        await limiter.acquire()
    assert asyncio.get_running_loop().time() - began >= 0.06 - 0.002


def test_those_who_wait_are_served_in_order_and_on_time() -> None:
    async def main() -> None:
        arrivals = Arrivals(RateLimiter(1, 1.0))
        await asyncio.gather(*(arrivals.come(name) for name in "abcdef"))
        assert arrivals.admitted == [(name, pytest.approx(second, abs=0.02)) for second, name in enumerate("abcdef")]

    simulate(main, debug=True)


def test_a_large_request_is_not_starved_by_small_ones_behind_it() -> None:
    async def main() -> None:
        limiter = RateLimiter(10, 10.0)
        arrivals = Arrivals(limiter)
        limiter.require(8)
        tasks = await start(arrivals.come("L", 10), *(arrivals.come(name) for name in "abc"))
        assert limiter.available == 2
        assert not limiter.try_acquire(), "one that does not wait does not overtake either"
        assert limiter.try_reserve() is None
        with pytest.raises(RateLimitedError) as caught:
            limiter.require()
        assert caught.value.retry_after == limiter.time_until() == 8.0, "those who wait want all there can be"
        assert limiter.try_acquire(0)
        await asyncio.gather(*tasks)
        assert arrivals.order == "Labc"
        assert [when for _, when in arrivals.admitted] == pytest.approx([8, 9, 10, 11], abs=0.02)

    simulate(main, debug=True)


@pytest.mark.asyncio
async def test_a_cancelled_waiter_gives_its_place_to_the_next_at_once(nothing_left: None) -> None:
    """BR-95. The second needs less than the first, so there is room for it as soon as the first is gone."""
    limiter = RateLimiter(10, 86400.0)
    limiter.require(5)
    arrivals = Arrivals(limiter)
    large, small, third = await start(arrivals.come("L", 10), arrivals.come("s", 2), arrivals.come("t", 3))
    assert arrivals.order == ""
    large.cancel()
    async with asyncio.timeout(10):
        await asyncio.gather(small, third)
    assert large.cancelled()
    assert (arrivals.order, limiter.available) == ("st", 0)


def test_when_a_large_request_is_cancelled_the_next_is_served_when_its_own_turn_comes() -> None:
    """BR-95. The timer that was set for the large one is set anew."""

    async def main() -> None:
        limiter = RateLimiter(1, 1.0, max_tokens=100)
        limiter.require(100)
        arrivals = Arrivals(limiter)
        large, small = await start(arrivals.come("L", 100), arrivals.come("s", 5))
        await asyncio.sleep(2)
        large.cancel()
        await small
        assert arrivals.admitted == [("s", pytest.approx(5, abs=0.01))]

    simulate(main, debug=True)


@pytest.mark.asyncio
@pytest.mark.parametrize("behind", [True, False])
async def test_a_waiter_that_is_cancelled_when_it_was_just_admitted_gives_its_units_on(behind: bool, nothing_left: None) -> None:
    """BR-95."""
    limiter = RateLimiter(1, 86400.0)
    reservation = limiter.try_reserve()
    assert reservation is not None
    arrivals = Arrivals(limiter)
    tasks = await start(*(arrivals.come(name) for name in ("ab" if behind else "a")))
    reservation.refund()  # admits the first, whose asyncio task has yet to be woken
    assert limiter.available == 0
    tasks[0].cancel()
    async with asyncio.timeout(10):
        await asyncio.wait(tasks)
    assert tasks[0].cancelled()
    assert (arrivals.order, limiter.available) == (("b", 0) if behind else ("", 1))
    assert limiter.counts.acquired == 1 + behind, "the reservation, and who was let through"


@pytest.mark.asyncio
async def test_a_refund_lets_the_next_through_at_once(nothing_left: None) -> None:
    limiter = WindowedRateLimiter(5, 86400.0)
    with limiter.try_reserve(5) or pytest.fail("there was room"):
        waiting = await start(limiter.acquire(2), limiter.acquire(3))
        assert not any(task.done() for task in waiting)
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting)
    assert limiter.available == 0


@pytest.mark.asyncio
async def test_a_reservation_that_is_garbage_collected_lets_the_next_through_at_once(nothing_left: None) -> None:
    limiter = WindowedRateLimiter(1, 86400.0)
    cycle: list[Any] = [limiter.try_reserve()]
    cycle.append(cycle)
    (waiting,) = await start(limiter.acquire())
    assert not waiting.done()
    del cycle
    gc.collect()
    async with asyncio.timeout(10):
        await waiting


def test_a_finalizer_may_run_while_the_lock_is_held() -> None:
    limiter = RateLimiter(2)
    reservation = limiter.try_reserve()
    with LOCK:
        del reservation
    assert limiter.available == 2


@pytest.mark.asyncio
async def test_a_waiter_that_is_garbage_collected_leaves_the_line() -> None:
    limiter = RateLimiter(5, 86400.0)
    limiter.require(3)
    waiting = limiter.acquire(5)
    waiting.send(None)  # as an asyncio task would whose event loop is then forgotten
    assert not limiter.try_acquire()
    (second,) = await start(limiter.acquire(2))
    with LOCK:
        waiting.close()
    async with asyncio.timeout(10):
        await second
    assert limiter.available == 0


def test_the_waits_are_counted() -> None:
    async def main() -> None:
        limiter = RateLimiter(1, 2.0)
        await asyncio.gather(*(limiter.acquire() for _ in range(3)))
        (given_up,) = await start(limiter.acquire())
        given_up.cancel()
        await asyncio.wait([given_up])
        counts = limiter.counts
        assert (counts.acquired, counts.tokens, counts.waited, counts.rejected) == (3, 3, 3, 0)
        assert counts.wait_seconds == pytest.approx(6, abs=0.02)
        in_buckets = dict(zip([*WAIT_BOUNDS, None], counts.waits, strict=True))
        assert {bound: number for bound, number in in_buckets.items() if number} == {5.0: 2}

    simulate(main, debug=True)


@pytest.mark.parametrize("period", [1e308, 1.8e19, 1e5])
def test_an_astronomically_slow_refill_is_waited_for_without_a_busy_loop(period: float) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        turns = 0
        turn = loop._run_once

        def counted() -> None:
            nonlocal turns
            turns += 1
            turn()

        def capped(delay: float, callback: Any, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            assert delay <= 20 * LONGEST, "not every event loop can set a timer to anything"
            return call_later(delay, callback, *args, **kwargs)

        call_later, loop.call_later = loop.call_later, capped  # type: ignore[method-assign]  # to see the delays
        loop._run_once = counted  # type: ignore[method-assign]  # to count the turns of the event loop
        limiter = RateLimiter(1, period)
        limiter.require()
        (waiting,) = await start(limiter.acquire())
        await asyncio.sleep(20 * LONGEST)
        assert not waiting.done()
        waiting.cancel()
        return turns

    assert simulate(main, debug=True) < 100


def test_rounding_costs_no_more_than_a_few_turns_of_the_event_loop() -> None:
    async def main() -> None:
        limiter = RateLimiter(3, 0.7, max_tokens=1)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.block(987_654.321)
        for _ in range(300):
            await limiter.acquire()
        took = loop.time() - 987_654.321
        assert 299 * 0.7 / 3 - 0.001 <= took <= 300 * 0.7 / 3 + 300 * 0.002

    simulate(main, timeout=None, debug=True)


@pytest.mark.asyncio
async def test_a_block_and_a_decorated_function_wait_for_one_unit(nothing_left: None) -> None:
    limiter = RateLimiter(2, 86400.0)

    @limiter
    async def double(number: int, *, plus: int = 0) -> int:
        """Double."""
        return 2 * number + plus

    result: int = await double(3, plus=1)
    assert (result, double.__name__, double.__doc__) == (7, "double", "Double.")
    async with limiter as entered:
        assert (entered is limiter, limiter.available) == (True, 0)
    assert limiter.available == 0, "it limits how often, not how many at once"
    (third,) = await start(double(1))
    assert not third.done()
    third.cancel()
    await asyncio.wait([third])


def test_only_async_functions_are_decorated() -> None:
    def plain() -> None: ...

    async def stream() -> AsyncIterator[int]:
        yield 1

    what: Any
    for what in (plain, stream, 3):
        with pytest.raises(ConfigurationError, match="async functions only"):
            RateLimiter(1)(what)


SHARED = RateLimiter(1, 0.02)


def test_a_limiter_of_a_module_works_in_one_event_loop_after_another() -> None:
    async def main() -> None:
        await asyncio.gather(*(SHARED.acquire() for _ in range(3)))
        await start(SHARED.acquire())  # and is cancelled when the event loop ends

    for _ in range(3):
        asyncio.run(main())
    simulate(main, debug=True)
    assert SHARED.counts.acquired == 12


def test_a_line_across_threads_is_served_in_order_by_whichever_event_loop_is_awake() -> None:
    """The first in line sits in an event loop that is blocked; the others do not wait for it."""
    limiter = RateLimiter(1, 0.02)
    limiter.require()
    standing, go_on, rest_done = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def blocked() -> None:
        async def main() -> None:
            (waiting,) = await start(limiter.acquire())
            standing.set()
            assert go_on.wait(timeout=30)  # blocks the event loop
            await waiting
            order.append("blocked")

        asyncio.run(main())

    def awake() -> None:
        async def main() -> None:
            await asyncio.gather(limiter.acquire(), limiter.acquire())
            order.append("awake")

        asyncio.run(main())
        rest_done.set()

    threads = [threading.Thread(target=blocked, daemon=True)]
    threads[0].start()
    assert standing.wait(timeout=30)
    threads.append(threading.Thread(target=awake, daemon=True))
    threads[1].start()
    assert rest_done.wait(timeout=30)
    go_on.set()
    for thread in threads:
        thread.join(timeout=30)
    assert order == ["awake", "blocked"]
    assert limiter.counts.acquired == 4, "the blocked one was admitted in its turn"


def test_when_a_large_request_is_cancelled_the_next_in_another_thread_is_served_when_its_own_turn_comes() -> None:
    """BR-95."""
    limiter = RateLimiter(20, 1.0, max_tokens=2000)
    limiter.require(2000)
    standing, served = threading.Event(), threading.Event()

    def small() -> None:
        async def main() -> None:
            (waiting,) = await start(limiter.acquire(2))
            standing.set()
            await waiting

        asyncio.run(main())
        served.set()

    async def main() -> None:
        (large,) = await start(limiter.acquire(2000))  # which takes 100 seconds
        thread.start()
        while not standing.is_set():
            await asyncio.sleep(0.001)
        large.cancel()
        await asyncio.wait([large])

    thread = threading.Thread(target=small, daemon=True)
    asyncio.run(main())
    assert served.wait(timeout=20)
    thread.join(timeout=20)


def test_whoever_waits_in_an_event_loop_that_was_closed_is_passed_over() -> None:
    limiter = RateLimiter(5, 86400.0)
    limiter.require(3)
    loop = asyncio.new_event_loop()
    dead = loop.create_task(limiter.acquire(5))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert limiter.try_acquire(2), "nobody stands before it"
    dead._log_destroy_pending = False  # type: ignore[attr-defined]  # that it is lost is the point
    del dead
    gc.collect()
    assert limiter.available == 0
