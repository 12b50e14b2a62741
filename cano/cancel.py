"""Asking a run to stop: CancellationToken, and signals that fire one."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import weakref
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Protocol, TypeVar

from cano.errors import ConfigurationError

T = TypeVar("T")


class Stoppable(Protocol):
    """What follows a token: told once to stop, and perhaps to stop without a drain. Called in the firing thread."""

    def stop(self) -> None:
        """The token has fired."""
        ...

    def abort(self) -> None:
        """The drain shall end too."""
        ...


class CancellationToken:
    """A request to stop, shared by whoever asks and whoever obeys.

    It is a level: once fired it stays fired. Firing is idempotent, safe from any thread and safe in a signal handler.
    One token may serve many runs and event loops; dropping it without firing it means nothing.
    """

    __slots__ = (
        "__weakref__",
        "_aborted",
        "_children",
        "_fired",
        "_followers",
        "_lock",
        "_parent",
        "_rollback",
        "_waiters",
    )

    def __init__(self) -> None:
        self._fired = False
        self._aborted = False
        self._rollback = False
        self._lock = threading.RLock()
        self._followers: list[Stoppable] = []
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
        self._children: weakref.WeakSet[CancellationToken] = weakref.WeakSet()
        self._parent: CancellationToken | None = None

    def __repr__(self) -> str:
        return f"<CancellationToken {'fired' if self._fired else 'waiting'}>"

    @property
    def cancelled(self) -> bool:
        """Whether the token has fired."""
        return self._fired

    @property
    def rollback(self) -> bool:
        """Whether the first `cancel` asked for completed saga steps to be compensated."""
        return self._rollback

    def cancel(self, rollback: bool = False) -> None:
        """Fire. Runs drain and end as `WorkflowCancelledError`; only the first call counts.

        `rollback=True` asks that completed saga steps are compensated although the run could be resumed.
        """
        with self._lock:
            if self._fired:
                return
            self._rollback = rollback
            self._fired = True
            followers, waiters, children = list(self._followers), self._waiters, list(self._children)
            self._waiters = []
        for follower in followers:
            follower.stop()
        for loop, waiter in waiters:
            with suppress(RuntimeError):  # that loop has closed, and its waiter with it
                loop.call_soon_threadsafe(_wake, waiter)
        for child in children:
            child.cancel(rollback)

    async def wait(self) -> None:
        """Return once the token has fired, at once if it already has.

        Cancellation: leaves the token as it is.
        """
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self._fired:
                return
            self._waiters.append((loop, waiter))
        try:
            await waiter
        finally:
            with self._lock:
                self._waiters = [entry for entry in self._waiters if entry[1] is not waiter]

    def child(self) -> CancellationToken:
        """A token that fires when this one does, and may be fired alone without touching this one."""
        child = CancellationToken()
        child._parent = self
        with self._lock:
            if self._fired:
                child._fired, child._rollback, child._aborted = True, self._rollback, self._aborted
            else:
                self._children.add(child)
        return child

    def follow(self, follower: Stoppable) -> None:
        """Tell `follower` when the token fires; at once if it already has. Engine use."""
        with self._lock:
            self._followers.append(follower)
            fired, aborted = self._fired, self._aborted
        if fired:
            follower.stop()
        if aborted:
            follower.abort()

    def unfollow(self, follower: Stoppable) -> None:
        """Undo `follow`. Engine use."""
        with self._lock:
            self._followers = [other for other in self._followers if other is not follower]

    def abort(self) -> None:
        """Fire, and end the drains of all runs that follow the token. What a second signal does."""
        self.cancel()
        with self._lock:
            self._aborted = True
            followers, children = list(self._followers), list(self._children)
        for follower in followers:
            follower.abort()
        for child in children:
            child.abort()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


@contextmanager
def cancel_on_signals(token: CancellationToken) -> Iterator[CancellationToken]:
    """Let SIGINT and SIGTERM stop the runs that follow `token`, while the block lasts.

    The first signal fires the token, so that runs drain. A second one aborts the drain: what is not committed yet is
    left for `resume_from`. A third kills the process. The handlers found on entry are put back on exit.

    Raises:
        ConfigurationError: not called from the main thread, the only one that may handle signals.
    """
    if not isinstance(token, CancellationToken):
        raise ConfigurationError(f"cancel_on_signals needs a CancellationToken, not a {type(token).__name__}")
    if threading.current_thread() is not threading.main_thread():
        raise ConfigurationError("cancel_on_signals works in the main thread only; elsewhere call token.cancel()")
    received = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received == 1:
            token.cancel()
        elif received == 2:
            token.abort()
        else:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield token
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


async def outlast(future: asyncio.Future[Any]) -> None:
    """Wait until a future is done whatever cancellations arrive, and raise the last of them afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()
        raise cancelled


async def settled(operation: Awaitable[T]) -> T:
    """Await an operation to its end whatever cancellations arrive, and raise the last of them afterwards."""
    task = asyncio.ensure_future(operation)
    await outlast(task)
    return task.result()


def cancellations() -> int:
    """How often this asyncio task has been cancelled, those undone by `uncancel` left out; 0 outside of one."""
    current = asyncio.current_task()
    return 0 if current is None else current.cancelling()


def leaked() -> bool:
    """Whether a CancelledError that just surfaced was let out by somebody's code, and no cancellation of this asyncio
    task.
    """
    return cancellations() == 0
