"""Two outside forces on a run: its total timeout, and the cancellation of whoever awaits it. Both only press the
brake.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cano.brake import Brake, Halt


class Budget:
    """The total timeout of a run, in seconds, counted from `start`. Without a limit it does nothing."""

    __slots__ = ("_began", "_brake", "_loop", "_timer", "limit")

    def __init__(self, limit: float | None, brake: Brake) -> None:
        self.limit = limit
        self._brake = brake
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._loop.time() - self._began

    def start(self) -> None:
        """Begin to count."""
        self._began = self._loop.time()
        if self.limit is not None:
            self._timer = self._loop.call_later(self.limit, self._expire)

    def check(self) -> None:
        """Look at the clock; for a run that gives the timer no chance."""
        if self.limit is not None and not self._brake.on and self.elapsed >= self.limit:
            self._expire()

    def stop(self) -> None:
        """Count no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._brake.press(Halt.TIMED_OUT)


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any
    error: BaseException | None


async def supervise(work: Coroutine[Any, Any, Any], brake: Brake) -> Any:
    """Do a run's work in an asyncio task of its own and see it to its end, however often the caller is cancelled.

    The first cancellation presses the brake, so that the run drains; each further one aborts the drain. When the run
    has ended the cancellation is raised again, so that an enclosing `asyncio.timeout` or TaskGroup finds what it
    expects.

    A KeyboardInterrupt of the work is carried over as a value, because an asyncio task that ends with one stops the
    event loop.
    """
    variables = contextvars.copy_context()
    loop = asyncio.get_running_loop()
    task = loop.create_task(_contained(work), name="cano-run", context=variables)
    brake.bind(task, variables)
    cancelled: asyncio.CancelledError | None = None
    try:
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                if cancelled is None:
                    brake.press(Halt.OUTSIDE)
                elif not _again(cancelled, error):
                    brake.abort()
                cancelled = error
    except BaseException:  # the caller's coroutine is being closed: it cannot wait any more
        with suppress(RuntimeError):  # with its event loop
            task.cancel()
        raise
    finally:
        brake.release()
    outcome = task.result()
    try:
        crashed = outcome.error is not None and not isinstance(outcome.error, Exception)
        if cancelled is not None and not crashed:
            raise cancelled from outcome.error
        if outcome.error is not None:
            raise outcome.error
        return outcome.value
    finally:
        del outcome, cancelled  # or the errors would keep these frames alive


def _again(before: asyncio.CancelledError, now: asyncio.CancelledError) -> bool:
    """Whether this is the same cancellation once more: anyio's cancel scopes repeat theirs at every turn of the event loop."""
    return before.args == now.args and "cancel scope" in str(now)


async def _contained(work: Coroutine[Any, Any, Any]) -> _Outcome:
    try:
        return _Outcome(await work, None)
    except BaseException as error:
        return _Outcome(None, error)
