"""A circuit breaker under any order of calls, in threads, and in one event loop after another."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from cano.errors import CircuitOpenError
from cano.resilience.breaker import BreakerState, CircuitBreaker, Permit
from cano.testing import ManualClock, simulate

CALLS = strategies.integers(1, 3)


class BreakerMachine(RuleBasedStateMachine):
    """Against a reference that remembers, for each permit, the epoch it is of, and nothing else."""

    permits = Bundle("permits")

    @initialize(threshold=CALLS, most=CALLS)
    def begin(self, threshold: int, most: int) -> None:
        self.time = ManualClock()
        self.time.__enter__()
        self.threshold, self.most = threshold, most
        self.breaker = CircuitBreaker(threshold, 30.0, most)
        self.state, self.until, self.epoch = "closed", 0.0, 0
        self.in_row = self.won = 0
        self.trials: set[int] = set()
        self.live: dict[int, int] = {}
        self.number = 0
        self.kept: dict[int, Permit] = {}

    def teardown(self) -> None:
        if hasattr(self, "time"):
            self.time.__exit__(None, None, None)

    def move(self, state: str) -> None:
        self.state, self.epoch, self.in_row, self.won, self.trials = state, self.epoch + 1, 0, 0, set()
        self.until = self.time.now + 30

    @rule(target=permits)
    def acquire(self) -> int:
        if self.state == "open" and self.time.now >= self.until:
            self.move("half_open")
        admitted = self.state == "closed" or (self.state == "half_open" and len(self.trials) < self.most)
        self.number += 1
        try:
            permit = self.breaker.acquire()
        except CircuitOpenError:
            assert not admitted
            return 0
        assert admitted
        self.kept[self.number], self.live[self.number] = permit, self.epoch
        if self.state == "half_open":
            self.trials.add(self.number)
        return self.number

    @rule(number=permits, outcome=strategies.sampled_from(["success", "failure", "release", "forget"]))
    def settle(self, number: int, outcome: str) -> None:
        if number not in self.kept:
            return
        if outcome == "forget":
            del self.kept[number]
        else:
            getattr(self.kept[number], outcome)()
        if self.live.pop(number, None) != self.epoch:
            return
        if outcome == "failure":
            self.in_row += 1
            if self.state == "half_open" or self.in_row >= self.threshold:
                self.move("open")
        elif self.state == "half_open":
            self.trials.discard(number)
            self.won += outcome == "success"
            if self.won >= self.most:
                self.move("closed")
        elif outcome == "success":
            self.in_row = 0

    @rule(seconds=strategies.sampled_from([0.0, 1.0, 29.0, 30.0, 1000.0]))
    def wait(self, seconds: float) -> None:
        self.time.advance(seconds)

    @invariant()
    def it_is_in_the_state_of_the_reference(self) -> None:
        if hasattr(self, "state"):
            assert self.breaker.state == self.state
            assert self.breaker.retry_after == (max(0.0, self.until - self.time.now) if self.state == "open" else 0.0)


BreakerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestBreakerMachine = BreakerMachine.TestCase


def in_threads(count: int, work: Any) -> None:
    failures: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


def test_failing_calls_of_several_threads_open_it() -> None:
    breaker = CircuitBreaker(10)
    refused = []

    def work() -> None:
        for _ in range(30):
            try:
                breaker.acquire().failure()
            except CircuitOpenError:
                refused.append(1)

    in_threads(6, work)
    assert breaker.state is BreakerState.OPEN
    assert (breaker.counts.acquired + len(refused), breaker.counts.rejected) == (180, len(refused))
    assert (breaker.counts.closed_to_open, breaker.counts.failures) == (1, breaker.counts.acquired)


def test_threads_never_have_more_trials_than_there_are_slots() -> None:
    breaker = CircuitBreaker(1, 0, 2)
    breaker.acquire().failure()
    at_once, most, guard = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal at_once, most
        for _ in range(300):
            try:
                permit = breaker.acquire()
            except CircuitOpenError:
                continue
            with guard:
                at_once += 1
                most = max(most, at_once)
            with guard:
                at_once -= 1
            permit.release()

    in_threads(6, work)
    assert 1 <= most <= 2
    first, second = breaker.acquire(), breaker.acquire()
    with pytest.raises(CircuitOpenError):
        breaker.acquire()
    first.success()
    second.success()
    assert breaker.state is BreakerState.CLOSED


SHARED = CircuitBreaker(2, 30.0)


def test_a_breaker_of_a_module_works_in_one_event_loop_after_another() -> None:
    async def failing() -> None:
        with pytest.raises(KeyError):
            async with SHARED:
                raise KeyError

    async def recovering() -> None:
        with pytest.raises(CircuitOpenError):
            SHARED.acquire()
        await asyncio.sleep(SHARED.retry_after)
        async with SHARED:
            pass

    simulate(failing, debug=True)
    simulate(failing, debug=True)
    assert SHARED.state is BreakerState.OPEN
    simulate(recovering, debug=True)
    assert SHARED.state is BreakerState.CLOSED
    asyncio.run(failing())
    assert SHARED.counts.failures == 3
