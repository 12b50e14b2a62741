"""Watchdog: bounds each of many short attempts with one timer, not one timer each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


class Watchdog:
    """Interrupts the present asyncio task when an attempt outlives `limit` seconds.

    Starting an attempt only stores its deadline. The one timer, when it fires early for the attempt then running,
    sets itself again.
    """

    __slots__ = ("_bitten", "_deadline", "_limit", "_loop", "_task", "_timer")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._bitten = False

    async def bound(self, attempt: Awaitable[Any]) -> Any:
        """Await an attempt.

        Raises:
            TimeoutExpired: the limit has passed, whatever the attempt then raised. An attempt that returns all the
                same, has.
        """
        self._deadline = self._loop.time() + self._limit
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._look)
        try:
            return await attempt
        except (asyncio.CancelledError, Exception) as error:
            if self._bitten:
                raise TimeoutExpired from error
            raise
        finally:
            self._deadline = None
            if self._bitten and self._task is not None:
                self._bitten = False
                self._task.uncancel()

    def _look(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._look)
        elif self._task is not None and not self._bitten:
            self._bitten = True
            self._task.cancel()

    def release(self) -> None:
        """No attempt follows."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class TimeoutExpired(Exception):
    """The watchdog's own word that its limit has passed."""
