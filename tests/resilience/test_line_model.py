"""Under random costs, cancels and refunds every line is served in order, nothing is lost and nobody waits in vain (BR-95)."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest
from hypothesis import given, settings, strategies

from cano.resilience.limiter import MeteredLimiter, RateLimiter, WindowedRateLimiter
from cano.resilience.tiers import MultiRateLimiter
from cano.testing import simulate

CAPACITY = 5
MOMENTS = strategies.integers(0, 40)
REQUESTS = strategies.lists(
    strategies.tuples(MOMENTS, strategies.integers(0, CAPACITY), strategies.none() | MOMENTS), min_size=1, max_size=20
)
"""When each comes, what it costs, and how long it is prepared to wait."""

Request = tuple[int, int, int | None]


def make(kind: str) -> MeteredLimiter:
    return RateLimiter(1, 2.0, max_tokens=CAPACITY) if kind == "bucket" else WindowedRateLimiter(CAPACITY, 10.0)


class Bench:
    """Requests that come and give up at given moments, and what became of them."""

    def __init__(self, limiter: MeteredLimiter) -> None:
        self.limiter = limiter
        self.line: list[tuple[int, int]] = []
        self.admitted: list[tuple[float, int]] = []
        self.given_up = 0
        self.came: list[int] = []
        self.when: dict[int, float] = {}

    async def come(self, number: int, request: Request) -> None:
        moment, cost, patience = request
        await asyncio.sleep(moment)
        self.line.append((number, cost))
        self.came.append(number)
        try:
            async with asyncio.timeout(patience):
                await self.limiter.acquire(cost)
        except TimeoutError:
            self.given_up += 1
            self.line.remove((number, cost))
            return
        self.line.remove((number, cost))
        self.admitted.append((asyncio.get_running_loop().time(), cost))
        self.when[number] = self.admitted[-1][0]

    async def watch(self, until: int) -> None:
        """At no moment is there room for the first in line."""
        await asyncio.sleep(0.5)  # all that happens, happens at whole seconds and a little
        for _ in range(until):
            await asyncio.sleep(1)
            paying = [cost for _, cost in self.line if cost]
            if paying:
                assert self.limiter.available < paying[0]


@pytest.mark.parametrize("kind", ["bucket", "window"])
@settings(max_examples=100, deadline=None)
@given(requests=REQUESTS)
def test_nobody_waits_while_there_is_room_and_all_are_served_in_order(kind: str, requests: list[Request]) -> None:
    async def main() -> None:
        limiter = make(kind)
        bench = Bench(limiter)
        watching = asyncio.ensure_future(bench.watch(100))
        await asyncio.gather(*(bench.come(number, request) for number, request in enumerate(requests)))
        await watching
        await asyncio.sleep(100)
        assert len(bench.admitted) + bench.given_up == len(requests)
        assert bench.line == []
        moments = [bench.when[number] for number in bench.came if number in bench.when and requests[number][1]]
        assert moments == sorted(moments), "whoever came first is served first"
        assert limiter.available == CAPACITY, "everything has come back"
        assert limiter.counts.tokens == sum(cost for _, cost in bench.admitted)
        if kind == "bucket":
            for began, _ in bench.admitted:
                taken = [(moment, cost) for moment, cost in bench.admitted if moment >= began]
                for moment, _ in taken:
                    paid = sum(cost for other, cost in taken if other <= moment)
                    assert paid <= CAPACITY + (moment - began) / 2 + 1e-6, "never more than the rate allows"

    simulate(main, debug=False)


def kept(limiters: dict[str, MeteredLimiter], admitted: list[Any]) -> bool:
    return all(
        limiter.counts.tokens == sum(1 for only in admitted if only is None or name in only) for name, limiter in limiters.items()
    )


@settings(max_examples=100, deadline=None)
@given(
    requests=strategies.lists(
        strategies.tuples(MOMENTS, strategies.sampled_from([None, ("a",), ("b",), ("a", "b")]), strategies.none() | MOMENTS),
        min_size=1,
        max_size=20,
    )
)
def test_calls_for_several_tiers_are_all_admitted_in_the_end_and_charged_exactly(requests: list[Any]) -> None:
    async def main() -> None:
        limiters = {"a": make("bucket"), "b": make("window")}
        limiter = MultiRateLimiter(limiters)
        admitted: list[Any] = []
        came: list[int] = []
        when: dict[int, float] = {}

        async def come(number: int, moment: int, only: Any, patience: int | None) -> None:
            await asyncio.sleep(moment)
            came.append(number)
            try:
                async with asyncio.timeout(patience):
                    await limiter.acquire(only=only)
            except TimeoutError:
                return
            admitted.append(only)
            if only is None or len(only) == 2:
                when[number] = asyncio.get_running_loop().time()

        async with asyncio.timeout(2000):
            await asyncio.gather(*(come(number, *request) for number, request in enumerate(requests)))
        moments = [when[number] for number in came if number in when]
        assert moments == sorted(moments), "those for the same tiers are served in order"
        assert kept(limiters, admitted)
        await asyncio.sleep(1000)
        assert [one.available for one in limiters.values()] == [CAPACITY, CAPACITY]

    simulate(main, debug=False)


def test_ten_thousand_requests_of_which_a_third_gives_up_leave_no_unit_behind() -> None:
    """BR-95."""
    dice = random.Random(95)

    async def main() -> None:
        limiter = RateLimiter(1000, 1.0, max_tokens=5)
        survivors = 0

        async def work() -> None:
            nonlocal survivors
            await limiter.acquire(dice.randint(1, 5))
            survivors += 1

        tasks: list[asyncio.Task[None]] = []
        for _ in range(10_000):
            tasks.append(asyncio.create_task(work()))
            if dice.random() < 0.3:
                dice.choice(tasks[-200:]).cancel()
            await asyncio.sleep(dice.choice([0, 0, 0.001, 0.005]))
        async with asyncio.timeout(100):
            await asyncio.wait(tasks)
        assert survivors == sum(not task.cancelled() for task in tasks) == limiter.counts.acquired
        assert 5000 < survivors < 9000
        await asyncio.sleep(0.0051)
        assert limiter.available == 5

    simulate(main, debug=False)


def test_event_loops_in_threads_share_a_limiter_and_none_of_its_units_is_lost_or_given_twice() -> None:
    limiter = WindowedRateLimiter(40, 0.05)
    failures: list[BaseException] = []
    admitted: list[int] = []

    async def main(seed: int) -> None:
        dice = random.Random(seed)

        async def one() -> None:
            try:
                async with asyncio.timeout(dice.choice([None, 0.0, 0.01, 0.2])):
                    await limiter.acquire(2)
            except TimeoutError:
                return
            admitted.append(2)

        async with asyncio.timeout(30):
            await asyncio.gather(*(one() for _ in range(60)))

    def work(seed: int) -> None:
        try:
            asyncio.run(main(seed))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=40)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    assert limiter.counts.tokens == sum(admitted) > 0


@pytest.mark.parametrize("make_limiter", [lambda: RateLimiter(10, 1e9), lambda: WindowedRateLimiter(10, 1e9)])
def test_threads_are_admitted_as_often_as_there_are_units(make_limiter: Any) -> None:
    limiter = make_limiter()
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.extend(limiter.try_acquire() for _ in range(20))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert (len(results), sum(results), limiter.available) == (120, 10, 0)
