"""MultiRateLimiter: several limits that one call has to keep."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from cano.errors import ConfigurationError
from cano.resilience.amounts import cost_of, name_of
from cano.resilience.counts import LimiterCounts
from cano.resilience.gate import LOCK, Charge, Refusal, put_right
from cano.resilience.limiter import Limiter, MeteredLimiter
from cano.resilience.meter import Usage
from cano.resilience.reservation import Reservation


@dataclass(frozen=True, slots=True)
class Tier:
    """One of the limits: its name, its limiter, and what each call costs there (0: nothing).

    Raises:
        ConfigurationError: one of them is of the wrong type, or the cost is above the limiter's capacity.
    """

    name: str
    limiter: MeteredLimiter
    cost: int = 1

    def __post_init__(self) -> None:
        name_of(self.name, "the name of a tier")
        if not isinstance(self.limiter, MeteredLimiter):
            raise ConfigurationError(
                f"tier {self.name!r} needs a RateLimiter or a WindowedRateLimiter, not a {type(self.limiter).__name__}"
            )
        cost_of(self.cost, self.limiter.capacity)


Named = Mapping[str, MeteredLimiter | tuple[MeteredLimiter, int]]


class MultiRateLimiter(Limiter):
    """Admits a call only if every tier does.

    tiers: `{"name": limiter, "other": (limiter, cost)}` or a sequence of `Tier`

    Tiers are charged in order; if one refuses, all before it get back what they gave and those after it are not asked.
    A limiter may be in several tiers, and is charged once for each. `only` is a list, tuple or set of the names of the
    tiers that a call shall be charged for; None and an empty one mean all. Without any tier every call is admitted.
    Calls that wait are served in the order in which they came, among those for the same tiers; a full tier keeps nobody
    waiting who does not need it. `counts` counts each call once, `throttled` by tier how often it refused one or kept it
    waiting, and the limiters count for themselves.

    Raises:
        ConfigurationError: a tier is wrong, or two have the same name.
    """

    @overload
    def __init__(self, tiers: Named) -> None: ...

    @overload
    def __init__(self, tiers: Iterable[Tier]) -> None: ...

    def __init__(self, tiers: Named | Iterable[Tier]) -> None:
        super().__init__(LimiterCounts())
        self._tiers: dict[str, Tier] = {}
        for tier in _listed(tiers):
            if tier.name in self._tiers:
                raise ConfigurationError(f"there are two tiers {tier.name!r}")
            self._tiers[tier.name] = tier
        self.throttled = dict.fromkeys(self._tiers, 0)

    def __repr__(self) -> str:
        return f"<MultiRateLimiter {', '.join(self._tiers) or 'without tiers'}>"

    def _charges(self, only: Collection[str] | None) -> Sequence[Charge]:
        names = self._tiers.keys() if only is None else self._known(only) or self._tiers.keys()
        tiers = [tier for tier in self._tiers.values() if tier.name in names and tier.cost > 0]
        for tier in tiers:
            cost_of(sum(other.cost for other in tiers if other.limiter is tier.limiter), tier.limiter.capacity)
        return [Charge(tier.limiter._gate, tier.cost, tier.name) for tier in tiers]

    def _known(self, only: Collection[str]) -> set[str]:
        # An iterator would be used up by the first call, and an empty one would then lift the choice.
        if isinstance(only, str | bytes) or not isinstance(only, Collection):
            raise ConfigurationError(f"`only` must be a list, a set or a tuple of names of tiers, not a {type(only).__name__}")
        for name in only:
            if not isinstance(name, str) or name not in self._tiers:
                known = ", ".join(repr(tier) for tier in self._tiers) or "none"
                shown = repr(name) if isinstance(name, str) else f"of type {type(name).__name__}"
                raise ConfigurationError(f"there is no tier {shown}; the known ones: {known}")
        return set(only)

    def _admitted(self, charges: Sequence[Charge]) -> None:
        super()._admitted(charges)
        self.counts.admit(sum(charge.cost for charge in charges))

    def _refused(self, refusal: Refusal, *, waits: bool) -> None:
        super()._refused(refusal, waits=waits)
        self.counts.waited += waits
        self.counts.rejected += not waits
        self.throttled[refusal.charge.tier or ""] += 1

    def _waited(self, charge: Charge, seconds: float) -> None:
        super()._waited(charge, seconds)
        self.counts.wait(seconds)

    def try_acquire(self, *, only: Collection[str] | None = None) -> bool:
        """Have a call admitted if that is possible now.

        Raises:
            ConfigurationError: there is no tier of a name in `only`. So do all verbs.
        """
        return not isinstance(self._try(self._charges(only)), Refusal)

    def require(self, *, only: Collection[str] | None = None) -> None:
        """Have a call admitted now.

        Raises:
            RateLimitedError: a tier refused; `tier` is its name and `retry_after` says when to ask it again.
        """
        self._require(self._charges(only))

    async def acquire(self, *, only: Collection[str] | None = None) -> None:
        """Have a call admitted, and wait in line for the tier that refuses if need be. Nothing is held meanwhile.

        Cancellation: the place in line is given up and nothing is taken, whatever the moment; the next is served at once.
        """
        await self._wait(self._charges(only))

    def try_reserve(self, *, only: Collection[str] | None = None) -> Reservation | None:
        """Have a call admitted if that is possible now, and be able to take it back: see `Reservation`."""
        return self._reserve(self._charges(only))

    def time_until(self, *, only: Collection[str] | None = None) -> float:
        """Seconds until a call could be admitted, at the earliest; 0 if now."""
        charges = self._charges(only)
        with LOCK:
            put_right()
            asked = {charge.gate: sum(other.cost for other in charges if other.gate is charge.gate) for charge in charges}
            return max((gate.time_until(cost) for gate, cost in asked.items()), default=0.0)

    def snapshot(self) -> dict[str, Usage]:
        """How much of each tier's limiter is used now, by name."""
        return {tier.name: tier.limiter.snapshot() for tier in self._tiers.values()}


def _listed(tiers: Named | Iterable[Tier]) -> Iterable[Tier]:
    if isinstance(tiers, Mapping):
        return [_named(name, entry) for name, entry in tiers.items()]
    if isinstance(tiers, str) or not isinstance(tiers, Iterable):
        raise ConfigurationError(f"tiers must be a mapping or some Tier objects, not a {type(tiers).__name__}")
    listed = list(tiers)
    for tier in listed:
        if not isinstance(tier, Tier):
            raise ConfigurationError(f"tiers must be a mapping or some Tier objects, not a {type(tier).__name__}")
    return listed


def _named(name: str, entry: Any) -> Tier:
    if not isinstance(entry, tuple):
        return Tier(name, entry)
    if len(entry) != 2:
        raise ConfigurationError(
            f"tier {name!r} must be a limiter, or a tuple of a limiter and a cost: of 2, not of {len(entry)}"
        )
    return Tier(name, *entry)
