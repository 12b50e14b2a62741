"""Permit: leave to make one call through a circuit breaker."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from cano.errors import WorkflowCancelledError


class Permit:
    """Leave to make one call, whose outcome is then told to it.

    Only the first outcome counts. One told after the breaker has changed its state since is ignored. A permit that is
    garbage-collected without an outcome is released.
    """

    __slots__ = ("__weakref__", "_abandoned", "_cancellations", "_epoch", "_passenger", "_settle", "_settled", "_task")

    def __init__(
        self,
        settle: Callable[[Permit, bool | None], None],
        abandoned: deque[int],
        epoch: int,
        passenger: bool,
        owner: Any,
    ) -> None:
        self._settle = settle
        self._abandoned = abandoned
        self._epoch = epoch
        self._passenger = passenger
        self._settled = False
        self.belongs_to(owner)

    def belongs_to(self, owner: Any) -> None:
        """The call is made by this one from here on. Breaker use."""
        self._task = weakref.ref(owner)
        self._cancellations = owner.cancelling() if isinstance(owner, asyncio.Task) else 0

    def success(self) -> None:
        """The call went well."""
        self._settle(self, True)

    def failure(self) -> None:
        """The call failed, and the dependency is to blame."""
        self._settle(self, False)

    def release(self) -> None:
        """Nobody knows: the call was given up, and counts for nothing. A trial makes room for another."""
        self._settle(self, None)

    def tell(self, error: BaseException | None) -> None:
        """The call ended with this exception, or with none. Breaker use.

        A caller who was cancelled since the permit was taken gave the call up. Cancellations from before that, which
        somebody has swallowed, say nothing of this call.
        """
        if error is None:
            self.success()
        elif isinstance(error, GeneratorExit):
            self._lose()
        elif self._cancelled() or isinstance(error, WorkflowCancelledError) or not _blames(error):
            self.release()
        else:
            self.failure()

    def _cancelled(self) -> bool:
        here = owner()
        if not isinstance(here, asyncio.Task):
            return False
        return here.cancelling() > (self._cancellations if here is self._task() else 0)

    def __del__(self) -> None:
        self._lose()

    def _lose(self) -> None:
        """Release it, the next time that the breaker is asked. Garbage collection does that, also by closing a coroutine
        in its block, and may do it in the middle of the breaker's own code with its lock held: so it takes no lock.
        """
        if not self._settled:
            self._settled = True
            if not self._passenger:
                self._abandoned.append(self._epoch)


def _blames(error: BaseException) -> bool:
    return isinstance(error, Exception | asyncio.CancelledError)


def owner() -> Any:
    """Who makes the calls that are made now: the asyncio task, or outside of one the thread."""
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()
