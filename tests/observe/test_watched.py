"""What breakers, limiters and a scheduler have counted by themselves, as metrics."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from cano import CircuitOpenError, ConfigurationError, DoNotRetry, RateLimitedError, Workflow
from cano.observe.prometheus import PrometheusObserver
from cano.observe.tally import VALUES
from cano.resilience.breaker import CircuitBreaker
from cano.resilience.limiter import RateLimiter, WindowedRateLimiter
from cano.resilience.tiers import MultiRateLimiter
from cano.scheduler.scheduler import Scheduler

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


def samples(registry: CollectorRegistry, start: str) -> dict[str, float]:
    lines = [line for line in generate_latest(registry).decode().splitlines() if line.startswith(start)]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def test_a_breaker_is_read_at_every_scrape() -> None:
    breaker, registry = CircuitBreaker(2, reset_timeout=0, name="payments"), CollectorRegistry()
    PrometheusObserver(registry, watch=[breaker])
    breaker.acquire().success()
    for _ in range(2):
        breaker.acquire().failure()
    assert samples(registry, "cano_circuit_outcomes_total") == {
        'cano_circuit_outcomes_total{breaker="payments",outcome="success"}': 1,
        'cano_circuit_outcomes_total{breaker="payments",outcome="failure"}': 2,
    }
    trial = breaker.acquire()
    with pytest.raises(CircuitOpenError):
        breaker.acquire()
    trial.success()
    assert samples(registry, "cano_circuit_rejections_total") == {'cano_circuit_rejections_total{breaker="payments"}': 1}
    assert samples(registry, "cano_circuit_acquires_total") == {
        'cano_circuit_acquires_total{breaker="payments",result="acquired"}': 4,
        'cano_circuit_acquires_total{breaker="payments",result="rejected"}': 1,
    }
    moves = samples(registry, "cano_circuit_transitions_total")
    assert {name.split('"')[3]: value for name, value in moves.items()} == {
        "closed_to_open": 1,
        "open_to_halfopen": 1,
        "halfopen_to_closed": 1,
        "halfopen_to_open": 0,
    }


async def test_limiters_and_their_tiers_are_read() -> None:
    registry = CollectorRegistry()
    limiter, calls = RateLimiter(1_000, max_tokens=10), WindowedRateLimiter(1, 3600)
    tiers = MultiRateLimiter({"fast": (RateLimiter(10), 2), "slow": calls})
    PrometheusObserver(registry).watch(limiter, "fast").watch(calls, "slow").watch(tiers)
    limiter.require(7)
    await limiter.acquire(10)
    calls.require()
    with pytest.raises(RateLimitedError):
        tiers.require()
    assert samples(registry, "cano_rate_limiter_acquired_total") == {
        'cano_rate_limiter_acquired_total{limiter="fast"}': 2,
        'cano_rate_limiter_acquired_total{limiter="slow"}': 1,
        'cano_rate_limiter_acquired_total{limiter="MultiRateLimiter"}': 0,
    }
    assert samples(registry, 'cano_rate_limiter_tokens_consumed_total{limiter="fast"}').popitem()[1] == 17
    throttled = samples(registry, "cano_rate_limiter_throttled_total")
    assert throttled['cano_rate_limiter_throttled_total{limiter="fast",result="waited"}'] == 1
    assert throttled['cano_rate_limiter_throttled_total{limiter="MultiRateLimiter",result="rejected"}'] == 1
    waits = samples(registry, "cano_rate_limiter_wait_seconds")
    assert waits['cano_rate_limiter_wait_seconds_count{limiter="fast"}'] == 1
    assert waits['cano_rate_limiter_wait_seconds_bucket{le="+Inf",limiter="fast"}'] == 1
    assert 0 < waits['cano_rate_limiter_wait_seconds_sum{limiter="fast"}'] < 10
    assert samples(registry, "cano_multi_rate_limiter_throttled_total") == {
        'cano_multi_rate_limiter_throttled_total{limiter="MultiRateLimiter",tier="fast"}': 0,
        'cano_multi_rate_limiter_throttled_total{limiter="MultiRateLimiter",tier="slow"}': 1,
    }


async def test_the_flows_of_a_scheduler_are_read() -> None:
    inside, gate = asyncio.Event(), asyncio.Event()

    async def work(ctx: Any) -> str:
        if ctx.data == "bad":
            raise DoNotRetry
        if ctx.data == "slow":
            inside.set()
            await gate.wait()
        return "done"

    flow = Workflow[str]().register("work", work).add_exit_state("done")
    scheduler, registry = Scheduler().manual("nightly", flow, "work").manual("idle", flow, "work"), CollectorRegistry()
    observer = PrometheusObserver(registry, watch=[scheduler])
    observer.watch(scheduler)
    async with scheduler:
        await scheduler.trigger("nightly")
        with pytest.raises(Exception, match="DoNotRetry"):
            await scheduler.trigger("nightly", data="bad")
        slow = scheduler.trigger("nightly", data="slow")
        await inside.wait()
        assert samples(registry, "cano_scheduler_active_flows") == {"cano_scheduler_active_flows": 1}
        gate.set()
        await slow
    assert samples(registry, "cano_scheduler_active_flows") == {"cano_scheduler_active_flows": 0}
    runs = samples(registry, 'cano_scheduler_flow_runs_total{flow="nightly"')
    assert {name.split('"')[3]: value for name, value in runs.items()} == {
        "completed": 2,
        "failed": 1,
        "cancelled": 0,
        "skipped": 0,
    }
    assert samples(registry, 'cano_scheduler_flow_duration_seconds_count{flow="nightly"}').popitem()[1] == 3
    assert samples(registry, 'cano_scheduler_flow_backoff_total{flow="nightly"}').popitem()[1] == 1
    assert samples(registry, 'cano_scheduler_flow_tripped_total{flow="idle"}').popitem()[1] == 0


async def test_things_of_one_name_are_added_up_one_thing_counts_once_and_names_are_bounded() -> None:
    registry = CollectorRegistry()
    observer = PrometheusObserver(registry)
    for number in range(3 * VALUES):
        breaker = CircuitBreaker()
        breaker.acquire().success()
        observer.watch(breaker, f"breaker {number}").watch(breaker, "again")
    rows = samples(registry, "cano_circuit_rejections_total")
    assert len(rows) == VALUES + 1
    acquired = [
        value for name, value in samples(registry, "cano_circuit_acquires_total").items() if "acquired" in name.split("{")[1]
    ]
    assert sum(acquired) == 3 * VALUES
    assert max(acquired) == 2 * VALUES
    observer.close()
    assert samples(registry, "cano") == {}
    with pytest.raises(ConfigurationError):
        observer.watch(registry)
