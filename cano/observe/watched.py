"""What breakers, limiters and schedulers have counted by themselves, as metrics. Told apart by what they offer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cano.errors import ConfigurationError
from cano.observe.label import shown
from cano.observe.tally import OTHER, SERIES, VALUES, Family, Histogram, Names

_MOVES = ("closed_to_open", "open_to_half_open", "half_open_to_closed", "half_open_to_open")
_SPELLED = {
    "open_to_half_open": "open_to_halfopen",
    "half_open_to_closed": "halfopen_to_closed",
    "half_open_to_open": "halfopen_to_open",
}


def _is_breaker(thing: Any) -> bool:
    return hasattr(getattr(thing, "counts", None), "closed_to_open")


def _is_limiter(thing: Any) -> bool:
    return hasattr(getattr(thing, "counts", None), "tokens")


def _is_scheduler(thing: Any) -> bool:
    return callable(getattr(thing, "statuses", None)) and hasattr(thing, "counters")


class Watched:
    """Things with counts of their own, read when they are asked for."""

    def __init__(self) -> None:
        self._breakers: tuple[tuple[str, Any], ...] = ()
        self._limiters: tuple[tuple[str, Any], ...] = ()
        self._schedulers: tuple[Any, ...] = ()
        self._names: set[str] = set()

    def add(self, thing: Any, name: str | None) -> None:
        """Watch a thing, once.

        Raises:
            ConfigurationError: it is no breaker, limiter or scheduler.
        """
        if _is_scheduler(thing):
            if not any(thing is known for known in self._schedulers):
                self._schedulers += (thing,)
        elif _is_breaker(thing):
            self._breakers = self._with(self._breakers, thing, name)
        elif _is_limiter(thing):
            self._limiters = self._with(self._limiters, thing, name)
        else:
            raise ConfigurationError(
                f"only a circuit breaker, a rate limiter, a Scheduler or a Workflow can be watched, not a {_type(thing)}"
            )

    def _with(self, known: tuple[tuple[str, Any], ...], thing: Any, name: str | None) -> tuple[tuple[str, Any], ...]:
        if any(thing is other for _, other in known):
            return known
        own = shown(name or getattr(thing, "name", None) or _type(thing))
        if own not in self._names and len(self._names) >= VALUES:
            own = OTHER
        self._names.add(own)
        return (*known, (own, thing))

    def families(self) -> list[Family]:
        """The metrics as they are now."""
        return [*_of_breakers(self._breakers), *_of_limiters(self._limiters), *_of_schedulers(self._schedulers)]


def _type(thing: Any) -> str:
    return type(thing).__name__


def _counter(name: str, text: str, labels: Names, rows: Iterable[tuple[Names, float]]) -> Family:
    return Family("counter", name, text, labels, _summed(rows, lambda one, other: one + other))


def _histogram(name: str, text: str, labels: Names, rows: Iterable[tuple[Names, Histogram]]) -> Family:
    return Family("histogram", name, text, labels, _summed(rows, _added))


def _summed(rows: Iterable[tuple[Names, Any]], add: Callable[[Any, Any], Any]) -> dict[Names, Any]:
    """Rows of one name added up, and those beyond what is bearable too."""
    found: dict[Names, Any] = {}
    for names, value in rows:
        key = names if names in found or len(found) < SERIES else (OTHER,) * len(names)
        found[key] = add(found[key], value) if key in found else value
    return found


def _added(one: Histogram, other: Histogram) -> Histogram:
    buckets = tuple(left + right for left, right in zip(one.buckets, other.buckets, strict=True))
    return Histogram(one.bounds, buckets, one.total + other.total)


def _of_breakers(breakers: Iterable[tuple[str, Any]]) -> Iterator[Family]:
    taken = [(name, breaker.counts) for name, breaker in breakers]
    by = ("breaker",)
    rejections = (((name,), counts.rejected) for name, counts in taken)
    yield _counter("cano_circuit_rejections", "Calls that a breaker refused.", by, rejections)
    acquires = (
        ((name, result), value)
        for name, counts in taken
        for result, value in (("acquired", counts.acquired), ("rejected", counts.rejected))
    )
    yield _counter("cano_circuit_acquires", "Calls that asked a breaker.", ("breaker", "result"), acquires)
    outcomes = (
        ((name, outcome), value)
        for name, counts in taken
        for outcome, value in (("success", counts.successes), ("failure", counts.failures))
    )
    yield _counter("cano_circuit_outcomes", "Outcomes told to a breaker.", ("breaker", "outcome"), outcomes)
    moves = (((name, _SPELLED.get(move, move)), getattr(counts, move)) for name, counts in taken for move in _MOVES)
    yield _counter("cano_circuit_transitions", "Changes of a breaker's state.", ("breaker", "transition"), moves)


def _of_limiters(limiters: Iterable[tuple[str, Any]]) -> Iterator[Family]:
    watched = list(limiters)
    taken = [(name, limiter.counts) for name, limiter in watched]
    by = ("limiter",)
    acquired = (((name,), counts.acquired) for name, counts in taken)
    yield _counter("cano_rate_limiter_acquired", "Requests that a limiter admitted.", by, acquired)
    tokens = (((name,), counts.tokens) for name, counts in taken)
    yield _counter("cano_rate_limiter_tokens_consumed", "The costs of the admitted requests.", by, tokens)
    throttled = (
        ((name, result), value)
        for name, counts in taken
        for result, value in (("waited", counts.waited), ("rejected", counts.rejected))
    )
    text = "Requests that had to wait or were refused."
    yield _counter("cano_rate_limiter_throttled", text, ("limiter", "result"), throttled)
    waits = [((name,), _waits(counts)) for name, counts in taken]
    text = "How long admitted requests that had to wait have waited."
    yield _histogram("cano_rate_limiter_wait_seconds", text, by, waits)
    tiers = (
        ((name, shown(tier)), count)
        for name, limiter in watched
        for tier, count in dict(getattr(limiter, "throttled", None) or {}).items()
    )
    text = "Requests that a tier kept waiting or refused."
    yield _counter("cano_multi_rate_limiter_throttled", text, ("limiter", "tier"), tiers)


def _waits(counts: Any) -> Histogram:
    from cano.resilience.counts import WAIT_BOUNDS  # noqa: PLC0415  (loaded only where a limiter is watched)

    return Histogram(WAIT_BOUNDS, tuple(counts.waits), counts.wait_seconds)


def _of_schedulers(schedulers: Sequence[Any]) -> Iterator[Family]:
    taken = [(shown(flow), counters) for scheduler in schedulers for flow, counters in scheduler.counters.items()]
    by = ("flow",)
    runs = (
        ((flow, outcome), getattr(counters, outcome))
        for flow, counters in taken
        for outcome in ("completed", "failed", "cancelled", "skipped")
    )
    yield _counter("cano_scheduler_flow_runs", "Fires that ended, and those that gave no run.", ("flow", "outcome"), runs)
    durations = [((flow,), _durations(counters)) for flow, counters in taken]
    yield _histogram("cano_scheduler_flow_duration_seconds", "How long runs of a flow took.", by, durations)
    backoffs = (((flow,), counters.backoffs) for flow, counters in taken)
    yield _counter("cano_scheduler_flow_backoff", "Failures after which a flow backed off.", by, backoffs)
    trips = (((flow,), counters.trips) for flow, counters in taken)
    yield _counter("cano_scheduler_flow_tripped", "Failures after which a flow was tripped.", by, trips)
    active: dict[Names, float | Histogram] = {(): sum(scheduler.active for scheduler in schedulers)} if schedulers else {}
    yield Family("gauge", "cano_scheduler_active_flows", "Flows with a run going on.", (), active)


def _durations(counters: Any) -> Histogram:
    from cano.scheduler.status import BUCKETS  # noqa: PLC0415  (loaded only where a scheduler is watched)

    return Histogram(BUCKETS, tuple(counters.buckets), counters.seconds)
