"""StreamSession: an opened stream. What lives between its windows, and everything the loop does less than once an
item.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import CoroutineType
from typing import Any

from cano.brake import Brake, Halted
from cano.clock import Turn
from cano.context import Context
from cano.errors import RetryExhaustedError, TaskExecutionError
from cano.task.failure import crashes, hook_failure
from cano.task.flight import Flight, TakenOver, end
from cano.task.host import Host
from cano.task.items import ItemHandler
from cano.task.pull import Source
from cano.task.stream import CloseReason, Stop, StreamSettings, StreamTask
from cano.task.window import OpenWindow

_log = logging.getLogger("cano")


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
        self._clock = self._loop.time
        self.window = OpenWindow(settings.window, self._clock)
        self._turn = Turn(self._clock)
        self.beside: asyncio.Task[_Flushed] | None = None
        self.decided: Stop[Any] | None = None
        self._items = ItemHandler(task, settings, brake, host)
        self._flight = Flight(self, settings.max_in_flight) if settings.max_in_flight > 1 else None
        self._flushing = False
        self._turn_due = False
        self.spoiled = False  # whether a flush failed
        self._flushed = 0
        self._timer: asyncio.TimerHandle | None = None

    # -- windows ----------------------------------------------------------------------------------------------------

    def reckon(self) -> None:
        """The outputs have reached the mark: arm a time window that was empty, see whether the window is full, look at the
        clock, and set the next mark.
        """
        window = self.window
        if len(window.outputs) >= window.limit or (window.timed and self._timer is None and window.outputs):
            self._filled()
        self._look()
        self.set_mark()

    def set_mark(self) -> None:
        """Say at how many outputs the loop shall look up: 0 if there is something to look at now."""
        window = self.window
        mark = len(window.outputs) + self._turn.stride
        if window.timed and self._timer is None:
            mark = 1
        self.brake.mark = mark if mark < window.limit else window.limit
        if self.brake.alert:
            self.brake.mark = 0

    def _filled(self) -> None:
        """Something came into the window: start its timer if it was empty, see whether it is full."""
        window = self.window
        if window.timed and self._timer is None:
            self._timer = self._loop.call_at(window.arm(), self._deadline_passed)
        if len(window.outputs) >= window.limit or window.passed >= window.limit:
            window.due = True
            self.brake.call()

    def add(self, output: Any, cursor: Any) -> None:
        """Take an output that was in flight."""
        self.window.outputs.append(output)
        self.window.cursor = cursor
        self._filled()

    def accepts(self) -> bool:
        """Whether the window can take something now."""
        return not self.window.due and not self._flushing

    def _deadline_passed(self) -> None:
        """The deadline of the window has come. If the run waits in a read, flush beside it: the read is left alone."""
        self.window.due = True
        self.poke()
        if self._flight is not None:
            self._flight.wake()

    def poke(self) -> None:
        """Something is to be done between items. If the run waits in a read, do it beside that."""
        self.brake.call()
        reading = self.brake.exposed and self.brake.first is not None
        if reading and self.beside is None and not self._flushing and not self.brake.on:
            self._start_beside(self.attend)

    def _start_beside(self, work: Callable[[], Coroutine[Any, Any, Stop[Any] | None]]) -> None:
        self.beside = self._loop.create_task(self._beside(work), name="cano-flush", context=self.brake.variables)

    def stop_reading(self) -> bool:
        """The run is stopped while it waits in a read: flush what is in hand first, beside the read. False if that is
        nothing.

        The read is interrupted when that is done. An item that comes meanwhile is in hand too.
        """
        if self.beside is None:
            if not self.window.holds and (self._flight is None or self._flight.empty):
                return False
            self._start_beside(self.drain)
        return True

    async def _beside(self, work: Callable[[], Coroutine[Any, Any, Stop[Any] | None]]) -> _Flushed:
        try:
            outcome = _Flushed(await work(), None)
        except BaseException as error:
            outcome = _Flushed(None, error)
        if outcome.stop is None and outcome.error is None and not self.brake.on:
            self.beside = None  # so that another may follow while the read goes on
        else:
            self.brake.cut()  # the read would be in vain
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

    async def attend(self, *, draining: bool = False) -> Stop[Any] | None:
        """Do what is to be done between items: judge what failed in flight, flush the window if it is due."""
        while True:
            if self.decided is not None:
                return self.decided
            if self._flight is not None:
                await self._flight.settle()
                if self.decided is not None:
                    return self.decided
            if not self.window.due:
                return None
            if (stop := await self.flush(draining=draining)) is not None:
                return stop

    async def drain(self) -> None:
        """Finish what is in flight, flush and commit what is in the window."""
        await self.land(draining=True)
        if self.window.holds:
            await self.flush(draining=True)

    async def land(self, *, draining: bool) -> Stop[Any] | None:
        """Wait until no item is in flight any more, or until the run is stopped unless this is its drain."""
        return None if self._flight is None else await self._flight.land(draining=draining)

    async def rest(self, progress: asyncio.Event) -> None:
        """Wait for the items in flight to make progress; a stop of the run ends that."""
        if progress.is_set():
            return
        with suppress(Halted):
            await self.brake.expose(progress.wait())

    async def flush(self, *, draining: bool = False) -> Stop[Any] | None:
        """Flush and commit the window: encode the cursor, `flush_window`, the row. In a drain a Stop is ignored.

        A window that holds nothing but the cursors of dropped items is only committed.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.spoiled = True
        cursor = self.host.encode(self.window.cursor)
        outputs = self.window.take()
        count = len(outputs)
        self.ctx.window_id = self.host.window_id()
        self._flushing = True
        try:
            if self.settings.transactional:
                async with self.host.transaction() as self.ctx.transaction:
                    stop = await self._flush_and_commit(cursor, outputs, draining)
            else:
                stop = await self._flush_and_commit(cursor, outputs, draining)
        finally:
            self.ctx.window_id = self.ctx.transaction = None
            self._flushing = False
        self.spoiled = False
        self._flushed += count
        lasted = self.window.begin()
        self.set_mark()
        if count:
            self.host.flushed(count, lasted, stop is not None)
        if self._flight is not None and stop is None:
            self._flight.deliver()
        return stop

    async def _flush_and_commit(self, cursor: bytes, outputs: list[Any], draining: bool) -> Stop[Any] | None:
        stop: Stop[Any] | None = None
        if outputs:
            stop = await self.call("flush_window", self.task.flush_window, outputs)
        if stop is not None and not isinstance(stop, Stop):
            raise TaskExecutionError(
                f"flush_window of {self.task.name} must return None or Stop(state), not a {type(stop).__name__}"
            )
        if draining:
            stop = None
        if self.crash is not None:  # of an item in flight
            raise self.crash
        if self.brake.crashed:
            raise asyncio.CancelledError
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
        if isinstance(error, asyncio.CancelledError) and not self.brake.leaked(final=True):
            return error
        return hook_failure(self.task.name, hook, error)

    async def close(self, reason: CloseReason) -> Any:
        """Close the source, then call `on_close`."""
        await self.source.close()
        return await self.call("on_close", self.task.on_close, reason)

    @property
    def failed_beside(self) -> BaseException | None:
        """What the flush beside the read ended with, if it failed and nobody has taken that over yet."""
        over = self.beside is not None and self.beside.done() and not self.beside.cancelled()
        return self.beside.result().error if over and self.beside is not None else None

    @property
    def crash(self) -> BaseException | None:
        """What came up beside the loop, in an item in flight or in a flush, and is no Exception, if anything did."""
        beside = (None if self._flight is None else self._flight.crash, self.failed_beside)
        return next((error for error in beside if error is not None and crashes(error)), None)

    async def release(self) -> None:
        """The last thing on every way out: nothing of the stream stays behind. Idempotent."""
        self.brake.first = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._items.release()
        try:
            await self._release_tasks()
        finally:
            await self.source.close()

    async def _release_tasks(self) -> None:
        try:
            if self.beside is not None:
                await end([self.beside])
        finally:
            if self._flight is not None:
                await self._flight.release()

    # -- items ------------------------------------------------------------------------------------------------------

    def begin(self) -> Callable[[Context[Any], Any], Any]:
        """What the loop calls with each item: `process_item`, or what stands in for it."""
        self.brake.first = self.stop_reading
        self.set_mark()
        if self._flight is None:
            return self._items.process()
        self._flight.start()
        return self._flight.submit

    async def judge(self, item: Any, error: BaseException) -> None:
        """An item failed: drop it, or raise the error that fails the run. The clock is looked at as well."""
        if not isinstance(error, TakenOver | Halted):  # stopped between two attempts: the item is left for a resume
            await self.drop(item, error)
        self._look()

    async def drop(self, item: Any, error: BaseException) -> None:
        """Have the policy judge an item that failed; if it is dropped, its cursor may count."""
        try:
            cursor = await self._items.failed(item, error, self._flushed + len(self.window.outputs))
        except RetryExhaustedError as failure:
            self.ctx.attempt = failure.attempts
            raise
        if cursor is not None:
            self.window.cursor = cursor if self.host.fix is None else self.host.fix(cursor)
            self.window.passed += 1
            self._filled()
        if self._items.flood is not None:
            if cursor is not None:  # so that a resume goes on behind what was set aside
                self.decided = await self.flush(draining=self.brake.on)
            if self.decided is None:
                raise self._items.flood
            self.brake.call()  # a Stop wins, as it does at the end of the source

    def no_pair(self, found: str) -> TaskExecutionError:
        """The error for a `process_item` that broke its contract."""
        return self._items.no_pair(found)

    def read_failed(self, error: BaseException) -> Exception | None:
        """A read raised: the error that fails the run, or None if the run was stopped."""
        interrupted = self.brake.settle()
        if isinstance(error, asyncio.CancelledError):
            if interrupted and not self.brake.aborted:
                return None
            if not self.brake.leaked():
                if self.brake.aborted:
                    raise self.failed_beside or error
                return None
        elif interrupted or self.brake.on:
            _log.warning("the source of %s raised %s when it was stopped", self.task.name, type(error).__name__)
            return None
        return hook_failure("the source of " + self.task.name, "a read", error)

    def _look(self) -> None:
        """Look at the clock: see whether the window is due, and whether the event loop has to be given a turn."""
        now = self._clock()
        if now >= self.window.deadline and self.window.holds:
            self.window.due = True
            self.brake.call()
        if self._turn.look(now):
            self._turn_due = True
            self.brake.call()

    async def give_turn(self) -> None:
        """Give the event loop its turn, if it is due."""
        if self._turn_due:
            self._turn_due = False
            await asyncio.sleep(0)
            self._turn.taken()
