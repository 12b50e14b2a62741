"""StreamSession: an opened stream. What lives between its windows, and everything the loop does less than once an
item.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import CoroutineType
from typing import Any, Protocol

from cano.brake import Brake
from cano.cancel import outlast
from cano.clock import Turn
from cano.context import Context
from cano.errors import AttemptTimeoutError, TaskExecutionError
from cano.task.failure import hook_failure
from cano.task.policy import ErrorBudget
from cano.task.pull import Source
from cano.task.stream import CloseReason, Stop, StreamSettings, StreamTask
from cano.task.watchdog import TimeoutExpired, Watchdog
from cano.task.window import OpenWindow

_log = logging.getLogger("cano")


class Host(Protocol):
    """What a stream needs of whoever runs it. A stream knows nothing of stores."""

    fix: Callable[[Any], Any] | None

    def encode(self, cursor: Any) -> bytes:
        """Encode a cursor, or raise CursorError."""
        ...

    def window_id(self) -> str:
        """The id of the window that follows the last commit."""
        ...

    async def commit(self, cursor: bytes, stop: Stop[Any] | None) -> None:
        """Make a cursor, `ctx.data` and the decision durable in one append."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A transaction that `commit` takes part in; gives its connection."""
        ...

    def flushed(self, count: int, seconds: float, stopped: bool) -> None:
        """A window is committed."""
        ...

    def dropped(self, error: BaseException) -> None:
        """The policy dropped an item."""
        ...


@dataclass(frozen=True, slots=True)
class _Flushed:
    """How a flush beside a read ended."""

    stop: Stop[Any] | None
    error: BaseException | None


class StreamSession:
    """An opened stream: its source, its open window, and the flush that may be going on beside a waiting read."""

    def __init__(
        self,
        task: StreamTask[Any, Any, Any, Any],
        settings: StreamSettings,
        ctx: Context[Any],
        brake: Brake,
        source: Source,
        host: Host,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.task = task
        self.settings = settings
        self.ctx = ctx
        self.brake = brake
        self.source = source
        self.host = host
        self.window = OpenWindow(settings.window, self._loop.time)
        self._turn = Turn(self._loop.time)
        self.beside: asyncio.Task[_Flushed] | None = None
        self.mark = 1
        self._budget = ErrorBudget(settings.on_item_error)
        self._flushed = 0
        self._timer: asyncio.TimerHandle | None = None
        self._watchdog = None if settings.attempt_timeout is None else Watchdog(settings.attempt_timeout)

    # -- windows ----------------------------------------------------------------------------------------------------

    async def reckon(self) -> int:
        """The outputs have reached the mark: arm a time window that was empty, look at the clock, see whether the
        window is full.

        Returns the next mark.
        """
        window = self.window
        count = len(window.outputs)
        if window.timed and self._timer is None:
            self._timer = self._loop.call_at(window.arm(), self._deadline_passed)
        if self._look():
            await self._take_turn()
        if count >= window.limit:
            window.due = self.brake.alert = True
        self.mark = min(window.limit, count + self._turn.stride)
        return self.mark

    def _deadline_passed(self) -> None:
        """The deadline of the window has come. If the run waits in a read, flush beside it: the read is left alone."""
        self.window.due = self.brake.alert = True
        if self.brake.exposed and self.beside is None and self.window.outputs and not self.brake.on:
            self.beside = self._loop.create_task(self._flush_beside(), name="cano-flush", context=self.brake.variables)

    async def _flush_beside(self) -> _Flushed:
        try:
            outcome = _Flushed(await self.flush(), None)
        except BaseException as error:
            outcome = _Flushed(None, error)
        if outcome.stop is not None or outcome.error is not None:
            self.brake.interrupt()  # the read would be in vain
        return outcome

    async def join(self) -> Stop[Any] | None:
        """Wait for the flush beside the read, if there is one, and take over how it ended."""
        if self.beside is None:
            return None
        outcome = await self.beside
        self.beside = None
        if outcome.error is not None:
            raise outcome.error
        return outcome.stop

    async def flush(self, *, draining: bool = False) -> Stop[Any] | None:
        """Flush and commit the window: encode the cursor, `flush_window`, the row. In a drain a Stop is ignored."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.mark = 1 if self.window.timed else min(self.window.limit, self._turn.stride)
        cursor = self.host.encode(self.window.cursor)
        outputs = self.window.take()
        count = len(outputs)
        self.ctx.window_id = self.host.window_id()
        try:
            if self.settings.transactional:
                async with self.host.transaction() as self.ctx.transaction:
                    stop = await self._flush_and_commit(cursor, outputs, draining)
            else:
                stop = await self._flush_and_commit(cursor, outputs, draining)
        finally:
            self.ctx.window_id = self.ctx.transaction = None
        self._flushed += count
        self.host.flushed(count, self.window.begin(), stop is not None)
        return stop

    async def _flush_and_commit(self, cursor: bytes, outputs: list[Any], draining: bool) -> Stop[Any] | None:
        stop: Stop[Any] | None = await self.call("flush_window", self.task.flush_window, outputs)
        if stop is not None and not isinstance(stop, Stop):
            raise TaskExecutionError(
                f"flush_window of {self.task.name} must return None or Stop(state), not a {type(stop).__name__}"
            )
        if draining:
            stop = None
        await self.host.commit(cursor, stop)
        return stop

    # -- hooks ------------------------------------------------------------------------------------------------------

    async def call(self, hook: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a hook, which may be async or not, and turn what it raises into an error of ours."""
        try:
            result = function(self.ctx, *arguments)
            if type(result) is CoroutineType or inspect.isawaitable(result):
                return await result
            return result
        except (asyncio.CancelledError, Exception) as error:
            raise self._hook_failed(hook, error)

    def _hook_failed(self, hook: str, error: BaseException) -> BaseException:
        """What to raise for what a hook raised: an error of ours, or the cancellation if that was an abort."""
        if isinstance(error, asyncio.CancelledError) and not self.brake.leaked():
            return error
        return hook_failure(self.task.name, hook, error)

    async def close(self, reason: CloseReason) -> Any:
        """Close the source, then call `on_close`."""
        await self.source.close()
        return await self.call("on_close", self.task.on_close, reason)

    async def release(self) -> None:
        """The last thing on every way out: nothing of the stream stays behind. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._watchdog is not None:
            self._watchdog.release()
        if self.beside is not None:
            beside, self.beside = self.beside, None
            beside.cancel()
            try:
                await outlast(beside)
            finally:
                await self.source.close()
        await self.source.close()

    # -- items ------------------------------------------------------------------------------------------------------

    @property
    def process(self) -> Callable[[Context[Any], Any], Any]:
        """What the loop calls with each item: the hook itself, unless its attempts are bounded."""
        hook, watchdog = self.task.process_item, self._watchdog
        if watchdog is None:
            return hook

        async def bounded(ctx: Context[Any], item: Any) -> Any:
            result = hook(ctx, item)
            return await watchdog.bound(result) if inspect.isawaitable(result) else result

        return bounded

    async def resolve(self, result: Any) -> tuple[Any, Any]:
        """What `process_item` returned, if that was no plain tuple."""
        if inspect.isawaitable(result):
            result = await result
        if not isinstance(result, tuple):
            raise _NotAPair(type(result).__name__)
        return result

    async def judge(self, error: BaseException) -> int:
        """An item failed: drop it, or raise the error that fails the run. The mark stays, but the clock is looked at."""
        if isinstance(error, asyncio.CancelledError):
            raise self._hook_failed("process_item", error)
        if isinstance(error, _NotAPair):
            raise self.no_pair(str(error)) from None
        if self._budget.tolerates(self._flushed + len(self.window.outputs)):
            self.host.dropped(AttemptTimeoutError() if isinstance(error, TimeoutExpired) else error)
            if self._look():
                await self._take_turn()
            return self.mark
        if isinstance(error, TimeoutExpired):
            limit, raised = self.settings.attempt_timeout, error.__cause__
            raise AttemptTimeoutError(
                f"process_item of {self.task.name} took longer than its attempt_timeout of {limit} s"
            ) from None if isinstance(raised, asyncio.CancelledError) else raised
        raise self._hook_failed("process_item", error)

    def no_pair(self, found: str) -> TaskExecutionError:
        """The error for a `process_item` that broke its contract; no policy tolerates that."""
        return TaskExecutionError(f"process_item of {self.task.name} must return a pair (output, cursor), not a {found}")

    def read_failed(self, error: BaseException) -> None:
        """A read raised. Return if that was our own interruption; else raise the error that fails the run."""
        interrupted = self.brake.settle()
        if isinstance(error, asyncio.CancelledError):
            if interrupted and not self.brake.aborted:
                return
            if not self.brake.leaked():
                raise error
        elif interrupted:
            _log.warning("the source of %s raised %s when it was stopped", self.task.name, type(error).__name__)
            return
        raise hook_failure("the source of " + self.task.name, "a read", error)

    def _look(self) -> bool:
        """Look at the clock: see whether the window is due, and say whether the event loop has to be given a turn."""
        now, turn_due = self._turn.look()
        if now >= self.window.deadline and self.window.outputs:
            self.window.due = self.brake.alert = True
        return turn_due

    async def _take_turn(self) -> None:
        await asyncio.sleep(0)
        self._turn.taken()


class _NotAPair(Exception):
    """What `process_item` returned is no pair; names its type."""
