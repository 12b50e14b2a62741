"""Where requests meet a meter: who is admitted, who waits, and in which order. Nothing here awaits.

A request charges one or several gates, all or none of them. One that has to wait stands in the line of the gate that
refused it. When that gate could admit it but another refuses, it goes over to the line of the other and takes the place
there that its arrival gives it. Each line is served in order: nobody is admitted at a gate where somebody waits who came
before, so small requests do not starve a large one.

Lines know no event loop of their own. Every event loop that has somebody in a line keeps a timer for the moment when the
first in line can be admitted, and whichever fires serves whoever is due, in any event loop.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from cano.resilience.counts import LimiterCounts
from cano.resilience.meter import Meter
from cano.resilience.steady import SteadyTime

LOCK = threading.Lock()
"""Guards every gate. One for all, since a request may charge several, and nothing waits with it in hand."""

LOST: deque[Callable[[], None]] = deque()
"""What garbage collection gave up, to be put right by the next who holds the lock: a finalizer must not take it."""

SHORTEST = 0.001
"""The least a timer is set to, in seconds. It keeps rounding from turning a wait into a busy loop."""

LONGEST = 3600.0
"""The most a timer is set to, in seconds: then it is set again."""

_tickets = count()


class Charge(NamedTuple):
    """A cost at a gate, in the name of a tier."""

    gate: Gate
    cost: int
    tier: str | None


class Debit(NamedTuple):
    """A cost that a gate's meter was paid."""

    gate: Gate
    cost: int
    stamp: int


class Refusal(NamedTuple):
    """The charge that could not be paid, and in how many seconds it could be if nobody else came."""

    charge: Charge
    wait: float


@dataclass(eq=False, slots=True)
class Waiter:
    """A request that waits, in the event loop of whoever made it."""

    charges: Sequence[Charge]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]
    gate: Gate
    ticket: int = field(default_factory=_tickets.__next__)
    debits: list[Debit] | None = None

    def give_up(self) -> None:
        """Leave the line; if it was just admitted, what it was given goes to the next. With the lock held."""
        if self.debits is None:
            self.gate.leave(self)
            serve(self.gate)
        else:
            refund(self.debits)


class Alarm(NamedTuple):
    """When an event loop will serve a line, and its timer; None if it was only asked to do so soon."""

    due: float
    handle: asyncio.TimerHandle | None


class Gate:
    """A meter and the line before it."""

    def __init__(self, meter: Meter, time: SteadyTime) -> None:
        self.meter = meter
        self.time = time
        self.counts = LimiterCounts()
        self.line: list[Waiter] = []
        self._asked = 0
        self._loops: Counter[asyncio.AbstractEventLoop] = Counter()
        self._alarms: dict[asyncio.AbstractEventLoop, Alarm] = {}

    def debit(self, cost: int, ticket: int | None) -> int | None:
        """Pay, unless somebody waits who came before. `ticket` is that of a waiter; whoever has none has just come."""
        if self.line and (ticket is None or self.line[0].ticket < ticket):
            return None
        return self.meter.try_debit(cost, self.time.now())

    def time_until(self, cost: int, *, behind_line: bool = True) -> float:
        """Seconds until the cost could be paid, at the earliest: after those who wait, or as if first in line."""
        if cost == 0:
            return 0.0
        ahead = self._asked if behind_line else 0
        return self.meter.time_until(min(self.meter.capacity, ahead + cost), self.time.now())

    def enter(self, waiter: Waiter) -> None:
        """Stand in line, at the place the ticket gives."""
        waiter.gate = self
        self.line.insert(self._place(waiter), waiter)
        self._asked += self._ask(waiter)
        self._loops[waiter.loop] += 1

    def leave(self, waiter: Waiter) -> None:
        """Leave the line, if still there."""
        place = self._place(waiter)
        if place == len(self.line) or self.line[place] is not waiter:
            return
        del self.line[place]
        self._asked -= self._ask(waiter)
        self._loops[waiter.loop] -= 1
        if not self._loops[waiter.loop]:
            del self._loops[waiter.loop]

    def _place(self, waiter: Waiter) -> int:
        return bisect_left(self.line, waiter.ticket, key=lambda other: other.ticket)

    def _ask(self, waiter: Waiter) -> int:
        return sum(charge.cost for charge in waiter.charges if charge.gate is self)

    def set_alarms(self, wait: float) -> None:
        """Have the line served in `wait` seconds, by every event loop that has somebody in it."""
        here = running_loop()
        wait = min(max(wait, SHORTEST), LONGEST)
        due = self.time.now() + wait
        for loop in self._loops:
            alarm = self._alarms.get(loop)
            if alarm is not None and alarm.due <= due + SHORTEST:
                continue  # if it rings too early, it is set again
            if loop is here:
                self._stop_alarm(loop)
                self._alarms[loop] = Alarm(due, loop.call_later(wait, self._ring))
            else:
                self._alarms[loop] = Alarm(due, None if alarm is None else alarm.handle)
                self.wake(loop)

    def drop_alarms(self) -> None:
        """Nobody waits: this event loop's timer is stopped. Those of others ring in vain once."""
        here = running_loop()
        for loop in list(self._alarms):
            if loop is here or loop.is_closed():
                self._stop_alarm(loop)

    def _stop_alarm(self, loop: asyncio.AbstractEventLoop) -> None:
        alarm = self._alarms.pop(loop, None)
        if alarm is not None and alarm.handle is not None:
            alarm.handle.cancel()

    def _ring(self) -> None:
        with LOCK:
            put_right()
            self._stop_alarm(asyncio.get_running_loop())
            serve(self)

    def wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have `loop` serve the line soon. From any thread, and without the lock too."""
        with suppress(RuntimeError):  # it has closed, and whoever waited in it is gone
            loop.call_soon_threadsafe(self._ring)

    def wake_all(self) -> None:
        """Have the line served soon, by all event loops that wait. Safe in a finalizer."""
        for loop in tuple(self._alarms):
            self.wake(loop)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of this thread, if one is running."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def put_right() -> None:
    """Do what finalizers left to do. With the lock held, before anything else."""
    while LOST:
        LOST.popleft()()


def admit(charges: Sequence[Charge]) -> list[Debit] | Refusal:
    """Pay all charges of a request that has just come, or none. With the lock held."""
    put_right()
    for charge in charges:
        if charge.gate.line:
            serve(charge.gate)  # its timer may be late
    return _pay(charges, None)


def _pay(charges: Sequence[Charge], ticket: int | None) -> list[Debit] | Refusal:
    debits: list[Debit] = []
    for charge in charges:
        stamp = charge.gate.debit(charge.cost, ticket)
        if stamp is None:  # how long is asked before the refund: another tier may have charged the same gate
            wait = charge.gate.time_until(charge.cost, behind_line=ticket is None)
            _give_back(debits)
            return Refusal(charge, wait)
        debits.append(Debit(charge.gate, charge.cost, stamp))
    return debits


def _give_back(debits: Iterable[Debit]) -> None:
    for gate, cost, stamp in debits:
        gate.meter.credit(cost, stamp, gate.time.now())


def refund(debits: Sequence[Debit]) -> None:
    """Give back what was paid, and serve those who can be admitted now. With the lock held."""
    _give_back(debits)
    for debit in debits:
        serve(debit.gate)


def wait_in_line(charges: Sequence[Charge], refusal: Refusal) -> Waiter:
    """Have a refused request stand in line, in the running event loop. With the lock held."""
    loop = asyncio.get_running_loop()
    waiter = Waiter(charges, loop, loop.create_future(), refusal.charge.gate)
    waiter.gate.enter(waiter)
    serve(waiter.gate)
    return waiter


def serve(gate: Gate) -> None:
    """Admit who can be admitted, in order, and set the timers for the next. With the lock held."""
    due = deque([gate])
    while due:
        gate = due.popleft()
        while gate.line:
            waiter = gate.line[0]
            outcome = None if waiter.loop.is_closed() or waiter.future.done() else _pay(waiter.charges, waiter.ticket)
            if isinstance(outcome, Refusal) and outcome.charge.gate is gate:
                gate.set_alarms(outcome.wait)
                break
            gate.leave(waiter)
            if isinstance(outcome, Refusal):
                outcome.charge.gate.enter(waiter)
                due.append(outcome.charge.gate)
            elif outcome is not None:
                _tell(waiter, outcome, due)
        else:
            gate.drop_alarms()


def _tell(waiter: Waiter, debits: list[Debit], due: deque[Gate]) -> None:
    waiter.debits = debits
    if waiter.loop is running_loop():
        _wake(waiter.future)
        return
    try:
        waiter.loop.call_soon_threadsafe(_wake, waiter.future)
    except RuntimeError:  # it has closed in this moment
        waiter.debits = None
        _give_back(debits)
        due.extend(debit.gate for debit in debits if debit.gate.line)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
