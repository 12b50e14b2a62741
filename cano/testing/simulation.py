"""Virtual time: an event loop that does not wait but lets its clock jump, and `simulate`, which runs a program on one.

    def test_the_window_closes_after_an_hour():
        async def main():
            began = asyncio.get_running_loop().time()
            await asyncio.sleep(3600)
            return asyncio.get_running_loop().time() - began

        assert simulate(main) == 3600            # at once

Work takes no time here; only waiting does. What never waits, such as a loop around `asyncio.sleep(0)` or a source that is
always ready, takes its time all the same: each 10,000 turns of the event loop the clock goes on to the next timer.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import math
import selectors
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from weakref import WeakSet

from cano import clock
from cano.clock import Duration, optional_seconds, seconds, signed_seconds
from cano.errors import ConfigurationError
from cano.testing.deadlock import Deadlock, whereabouts
from cano.testing.order import MarkedHandle, Order

T = TypeVar("T")

START = datetime(2024, 1, 1, tzinfo=UTC)
"""When a simulation begins unless it is told otherwise: a Monday at midnight."""

_PATIENCE = 5.0
_BUSY = 10_000
_ENDLESS = 1_000_000
_GRACE = 0.02
_ASKS_THREADS = {asyncio.wrap_future.__code__, asyncio.BaseEventLoop.shutdown_default_executor.__code__}
_ANSWERED_BY_THREADS = {"aiosqlite.core"}
_KNOWN_THREADS = {"aiosqlite.core", "concurrent.futures.thread"}


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while something can be done, and else jumps to the next timer.

    `time()` begins at 0. While it runs, `cano.clock` tells its time in the whole process, and the wall clock goes on
    from `start`; so one simulation at a time. It may be given to `asyncio.Runner(loop_factory=VirtualTimeLoop)`, and to
    plugins that take an event loop policy or factory.

    With a `seed` the ready callbacks of each turn run in an order shuffled by it, within what asyncio promises. The same
    seed gives the same order again, as long as no thread has a part in it.

    **What never waits** holds the clock up for 10,000 turns in a row in which something was ready; then the clock jumps to
    the next timer, as if they had taken that long, and the count begins anew. After 1,000,000 turns in a row that is an
    error. A stretch without an `await` that gives the loop a turn is one turn, however long it is; cano's own loops give
    one each 64 items while another clock is in place.

    **Threads** work in real time. While one owes an answer, the clock stands still and the loop really waits:
    `run_in_executor`, `asyncio.to_thread`, `asyncio.wrap_future` and aiosqlite are known to the loop exactly. After 5
    seconds without an answer time goes on all the same, because the thread may be waiting for something that a timer
    does. Of other threads that are started while the loop is there, and of sockets and pipes, the loop cannot know
    whether they owe it anything: it listens for 20 ms before each jump, and for 5 s before it gives up.

    These come out of whatever runs the loop.

    Raises:
        Deadlock: every asyncio task waits, and there is nothing to wait for; or some go round without end.
        TimeoutError: the time would go beyond `timeout` (seconds or timedelta since the beginning; None: no limit).
    """

    _closed: bool
    _ready: deque[asyncio.Handle]
    _scheduled: list[Any]
    _selector: selectors.BaseSelector
    _stopping: bool
    _debug: bool
    _timer_cancelled_count: int
    _current_handle: asyncio.Handle | None

    def __init__(self, *, seed: int | None = None, start: datetime | None = None, timeout: Duration | None = None) -> None:
        self._closed = True  # in case that it never opens
        self._now = 0.0
        self._start = moment(start)
        self._limit = optional_seconds(timeout, "timeout")
        self._end = math.inf if self._limit is None else self._limit
        self._order = None if seed is None else Order(seed)
        self._owed: list[asyncio.Future[Any]] = []
        self._slow: list[asyncio.Future[Any]] = []
        self._turns = 0
        self._others = WeakSet(threading.enumerate())
        super().__init__()
        if self._order is not None:
            self.set_task_factory(self._order.task)

    # -- time -------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self._now

    def wall(self) -> datetime:
        """The virtual moment of the calendar, in UTC."""
        return self._start + timedelta(seconds=self._now)

    def step_wall(self, duration: Duration) -> None:
        """Put the wall clock forward by seconds or a timedelta, or back by a negative one; `time()` does not notice. So it
        is when the clock is set, and when the machine slept.

        Raises:
            ConfigurationError: it is no finite duration, or leads out of the calendar.
        """
        self._start = stepped(self._start, duration)

    def block(self, duration: Duration) -> None:
        """Let seconds, or a timedelta, pass at once, in which the loop gets no turn: as if the caller computed so long.

        Raises:
            ConfigurationError: it is negative, or no finite duration.
        """
        length = seconds(duration, "a duration to block for")
        if math.isinf(length):
            raise ConfigurationError("a duration to block for must be finite")
        self._now += length

    def run_forever(self) -> None:
        """Run until `stop` is called."""
        with clock.replaced(now=self.time, wall=self.wall):
            super().run_forever()

    # -- one turn ---------------------------------------------------------------------------------------------------

    def _run_once(self) -> None:
        while self._scheduled and self._scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(self._scheduled)._scheduled = False
        events = self._selector.select(0)
        if not events and not self._stopping and not self._due():
            events = self._go_on() if self._ready else self._wait()
        self._process_events(events)
        del events
        self._fire()
        self._run_ready(len(self._ready) if self._order is None else self._shuffle(self._order))

    def _process_events(self, event_list: Any) -> None:
        super()._process_events(event_list)  # type: ignore[misc]  # a method that typeshed leaves out

    def _due(self) -> bool:
        return bool(self._scheduled) and self._scheduled[0]._when <= self._now

    def _fire(self) -> None:
        due: list[asyncio.TimerHandle] = []
        while self._due():
            handle = heapq.heappop(self._scheduled)
            handle._scheduled = False
            due.append(handle)
        self._ready.extend(due if self._order is None else self._order.timers(due))

    def _shuffle(self, order: Order) -> int:
        """Put what is ready in order, and say how much of it is to be run in this turn."""
        now, later = order.turn([self._ready.popleft() for _ in range(len(self._ready))])  # a thread may append meanwhile
        self._ready.extendleft(reversed(later))
        self._ready.extendleft(reversed(now))
        return len(now)

    def _run_ready(self, count: int) -> None:
        for _ in range(count):
            handle = self._ready.popleft()
            if handle.cancelled():
                continue
            if self._order is not None:
                self._order.next()
            self._current_handle = handle if self._debug else None
            try:
                handle._run()
            finally:
                self._current_handle = None
            del handle

    def _call_soon(self, callback: Any, args: Any, context: Any) -> asyncio.Handle:
        if self._order is None:
            return super()._call_soon(callback, args, context)  # type: ignore[misc,no-any-return]  # as above
        handle = MarkedHandle(callback, args, self, context, self._order.origin)
        self._ready.append(handle)
        return handle

    # -- waiting ----------------------------------------------------------------------------------------------------

    def create_future(self) -> asyncio.Future[Any]:
        """Create a future; remember it if it is a thread that will answer it."""
        future = super().create_future()
        frame = sys._getframe(1)
        if frame.f_code in _ASKS_THREADS or frame.f_globals.get("__name__") in _ANSWERED_BY_THREADS:
            if len(self._owed) >= 64:
                self._forget_answered()
            self._owed.append(future)
        return future

    def _forget_answered(self) -> None:
        self._owed = [future for future in self._owed if not future.done()]
        self._slow = [future for future in self._slow if not future.done()]

    def _wait(self) -> Any:
        """Nothing can be done now: wait for threads and files as long as they deserve, or else jump."""
        self._turns = 0
        events = self._listen(_PATIENCE)
        if not events and not self._jump() and not self._slow:
            raise Deadlock(f"nothing can happen any more; these wait:\n{whereabouts(asyncio.all_tasks(self))}")
        return events

    def _go_on(self) -> Any:
        """Something can be done now, again: after many turns in a row like this one, jump as if they had taken their time."""
        self._turns += 1
        if self._turns % _BUSY:
            return []
        events = self._listen(_GRACE)
        if not events:
            if self._turns >= _ENDLESS:
                self._turns = 0
                raise Deadlock(f"{_ENDLESS} turns, and no end; these go round:\n{whereabouts(self._busy())}")
            self._jump()
        return events

    def _listen(self, patience: float) -> Any:
        """What threads and files say, within the time they deserve: `patience`, if there is no timer to jump to."""
        self._forget_answered()
        if self._owed:
            events = self._selector.select(_PATIENCE)
            if not events:
                self._slow += self._owed
                self._owed = []
            return events
        if self._slow or self._outsiders():
            return self._selector.select(patience if self._next() == math.inf else _GRACE)
        return []

    def _busy(self) -> set[asyncio.Task[Any]]:
        """The asyncio tasks that are about to take a step."""
        owners = [getattr(getattr(handle, "_callback", None), "__self__", None) for handle in self._ready]
        return {owner for owner in owners if isinstance(owner, asyncio.Task)}

    def _outsiders(self) -> bool:
        """Whether somebody may speak to the loop of whom it does not know whether they will."""
        if len(self._selector.get_map()) > 1:
            return True
        return any(
            getattr(getattr(thread, "_target", None), "__module__", None) not in _KNOWN_THREADS
            for thread in threading.enumerate()
            if thread not in self._others
        )

    def _next(self) -> float:
        when: float = self._scheduled[0]._when if self._scheduled else math.inf
        return when

    def _jump(self) -> bool:
        """Jump to the next timer. Whether there is one."""
        when = self._next()
        if when == math.inf:
            return False
        if when > self._end:
            self._end = self._now + (self._limit or 0.0)  # so that those who are cancelled now may still wait for something
            raise TimeoutError(f"more than {self._limit} s have passed; these wait:\n{whereabouts(asyncio.all_tasks(self))}")
        self._now = when
        return True


def moment(start: datetime | None) -> datetime:
    """When to begin, in UTC.

    Raises:
        ConfigurationError: it is no datetime, or has no time zone.
    """
    if start is None:
        return START
    if not isinstance(start, datetime) or start.tzinfo is None:
        raise ConfigurationError("start must be a datetime with a time zone, such as tzinfo=UTC")
    return start.astimezone(UTC)


def stepped(instant: datetime, duration: Duration) -> datetime:
    """An instant moved by a duration, which may be negative.

    Raises:
        ConfigurationError: it is no finite duration, or leads out of the calendar.
    """
    length = signed_seconds(duration, "a step of the wall clock")
    try:
        return instant + timedelta(seconds=length)
    except OverflowError:
        raise ConfigurationError("a step of the wall clock must be finite, and stay within the calendar") from None


def simulate(
    main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T],
    *,
    seed: int | None = None,
    start: datetime | None = None,
    timeout: Duration | None = timedelta(days=7),
    debug: bool | None = None,
) -> T:
    """Run a coroutine, or a function that gives one, to its end in virtual time, as `asyncio.run` does in real time.

    `seed` shuffles the order of what is ready at once, so that a race that was found once is found again: call this for
    each seed of a range. `start` is the moment of the calendar at which it begins. `timeout` limits the virtual time.
    What is raised with a seed carries a note that names it.

    Raises:
        Deadlock: every asyncio task waits, and there is nothing to wait for; or some have gone round for a million turns.
        TimeoutError: the virtual time went beyond `timeout`.
        RuntimeError: it was called within an event loop.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        if inspect.iscoroutine(main):
            main.close()
        raise RuntimeError("simulate() brings an event loop of its own: call it from a plain function, not from an async one")
    try:
        with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(seed=seed, start=start, timeout=timeout), debug=debug) as runner:
            return runner.run(main() if callable(main) else main)
    except BaseException as error:
        if seed is not None:
            error.add_note(f"simulated with seed={seed}")
        raise
