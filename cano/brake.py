"""The brake of one run: what stops it, when it may be interrupted, and how a cancellation is told from another's.

A run is stopped by its token, by its total timeout, or by `asyncio.Task.cancel()` on whoever awaits it. All three press
the same brake, so there is one way to stop. Pressing it sets a level that the run looks at between items and between
states. Only where the run has said that it is *exposed* (blocked in a read, in `open`, in a plain task's body) is its
asyncio task interrupted, through `cancel()`; the brake counts its own requests and takes each of them back with
`uncancel()`, so whatever cancellation is left over is somebody else's.

                      press                      drain_timeout, a second cancel, a second signal
    running ────────────────────────▶ draining ────────────────────────────────────────────────▶ aborted
             level on, exposed waits             `cancel()` wherever the run is, and again later
             are interrupted
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context as Variables
from enum import Enum, auto
from typing import Any, TypeVar

T = TypeVar("T")

_PATIENCE = 1.0


class Halt(Enum):
    """Why the brake was pressed. The first reason stays."""

    CANCELLED = auto()
    TIMED_OUT = auto()
    OUTSIDE = auto()


class Halted(Exception):
    """The run's brake was pressed. Never leaves the engine."""


class Brake:
    """Stops one run. Bound to the asyncio task that does the run's work by `bind`, and let go by `release`.

    `on` is the level. `alert` tells a stream's loop that there is something to look at between two items: that level, an
    interruption, a window that is due, or a turn for the event loop. `mark` is the number of outputs at which the loop
    looks up by itself; `call` sets both so that it does at once.
    """

    __slots__ = (
        "_drain_timeout",
        "_loop",
        "_patience",
        "_sheltered",
        "_task",
        "_thread",
        "_timer",
        "aborted",
        "alert",
        "begun",
        "crashed",
        "exposed",
        "first",
        "interrupted",
        "mark",
        "on",
        "reason",
        "variables",
    )

    def __init__(self, drain_timeout: float | None) -> None:
        self.on = False
        self.alert = False
        self.mark = 1
        self.reason: Halt | None = None
        self.aborted = False
        self.begun = False
        self.crashed = False
        self.exposed = False
        self.interrupted = False
        self._sheltered = False
        self._patience = _PATIENCE
        self.first: Callable[[], bool] | None = None
        self._drain_timeout = drain_timeout
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._task: asyncio.Task[Any] | None = None
        self.variables: Variables | None = None
        self._timer: asyncio.TimerHandle | None = None

    def bind(self, task: asyncio.Task[Any], variables: Variables) -> None:
        """The asyncio task that does the run's work, and its context variables. A brake pressed before takes hold
        now.
        """
        self._task = task
        self.variables = variables
        if self.on:
            self._engage()

    def release(self) -> None:
        """The run is over: nothing is interrupted any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._task = None

    # -- asking the run to stop; any thread, any number of times ----------------------------------------------------

    def press(self, reason: Halt) -> None:
        """Stop and drain."""
        if self.reason is None:
            self.reason = reason
        self.on = True
        self.call()
        if threading.get_ident() == self._thread and asyncio.current_task(self._loop) is not self._task:
            self.interrupt()
        self._later(self._engage)

    def call(self) -> None:
        """Have a stream's loop look up before its next item."""
        self.alert = True  # in this order: the loop sets its mark and then asks for the alert
        self.mark = 0

    def stop(self) -> None:
        """The token fired (`Stoppable`)."""
        self.press(Halt.CANCELLED)

    def abort(self) -> None:
        """End the drain: what is not committed is left for a resume."""
        self.press(Halt.CANCELLED)
        self._later(self._abort)

    def _later(self, callback: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop has closed: no run is left to stop
            self._loop.call_soon_threadsafe(callback)

    def _engage(self) -> None:
        if self._task is None:
            return
        self.call()
        if self._timer is None and self._drain_timeout is not None and not self._sheltered:
            self._timer = self._loop.call_later(self._drain_timeout, self._abort)
        self.interrupt()

    def shelter(self) -> None:
        """From here on the run is not aborted: what it does now has to be finished, within a bound of its own."""
        self._sheltered, self.aborted = True, False
        while self._task is not None and self._task.cancelling():
            self._task.uncancel()  # requests of ours that have been delivered
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def crash(self) -> None:
        """Something like a KeyboardInterrupt is on its way out. Nothing is interrupted for a stop any more, and what is cancelled
        on the way out was cancelled by the engine.
        """
        self.crashed = True
        self.settle()

    def expose_again(self) -> None:
        """The end of the shelter. A drain that is going on gets its whole time once more."""
        self._sheltered = False
        if self.on:
            self._engage()

    def _abort(self) -> None:
        if self._task is None or self._task.done() or self._sheltered:
            return
        if not self.begun:  # an asyncio task that is cancelled before its first step never takes it
            self._later(self._abort)
            return
        self.aborted = True
        self.call()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._patience, self._abort)
        self._patience *= 2  # what keeps swallowing cancellations gets time to come to an end by itself
        self._task.cancel()

    # -- interrupting an exposed wait -------------------------------------------------------------------------------

    def interrupt(self) -> None:
        """Interrupt the run's task if it is in an exposed wait, once for each wait.

        A stream that waits in a read has something to do first (`first`), and then calls `cut` itself.
        """
        if self.exposed and not self.interrupted and (self.first is None or not self.first()):
            self.cut()

    def cut(self) -> None:
        """Interrupt an exposed wait now."""
        if self.exposed and not self.interrupted and self._task is not None and not self._task.done():
            self.interrupted = True
            self.call()
            self._task.cancel()

    def settle(self) -> bool:
        """End an exposed wait. True if it was interrupted, and then the request is taken back."""
        self.exposed = False
        if not self.interrupted:
            return False
        self.interrupted = False
        if self._task is not None:
            self._task.uncancel()
        return True

    async def expose(self, operation: Coroutine[Any, Any, T]) -> T:
        """Await an operation that a stop may interrupt at once: it is no read, so nothing comes `first`.

        Raises:
            Halted: the run was stopped before the operation or interrupted it. What it raised then is the cause.
        """
        if self.on:
            operation.close()
            raise Halted
        first, self.first = self.first, None
        self.exposed = True
        try:
            return await operation
        except (asyncio.CancelledError, Exception) as error:
            if self.settle() and not self.aborted:
                raise Halted from error
            if isinstance(error, asyncio.CancelledError) and not self.leaked() and not self.aborted:
                raise Halted from error
            raise
        finally:
            self.settle()
            self.first = first

    async def pause(self, delay: float) -> None:
        """Wait so many seconds, or until a stop.

        Raises:
            Halted: the run was stopped.
        """
        await self.expose(asyncio.sleep(delay))

    async def absorb(self) -> None:
        """The wait that was interrupted ended as if nothing were: take the request off the asyncio task if it is still
        to come.

        Raises:
            CancelledError: the drain is aborted.
        """
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        if self.aborted:
            raise asyncio.CancelledError

    def leaked(self, *, final: bool = False) -> bool:
        """Whether a CancelledError that just surfaced is only something that user code let out.

        It is not if the drain was aborted. Nor if somebody cancelled the very asyncio task that works for the run, as
        `asyncio.run` does at its end with all there are. That stops the run like any other cancellation; with `final`
        it aborts it, because what was interrupted cannot be left out.
        """
        if self.aborted or self.crashed:
            return False
        current = asyncio.current_task(self._loop)
        if current is None or current.cancelling() == 0:
            return True
        self.press(Halt.OUTSIDE)
        if final:
            self.aborted = True
        else:
            while current.cancelling():
                current.uncancel()
        return False
