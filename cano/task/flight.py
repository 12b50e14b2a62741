"""Flight: up to `max_in_flight` items of a stream in process at once, their outputs handed on in the order of the
source.

Workers live as long as the stream; nothing is started for an item. An output comes into the window when every item
before it has, so the window's cursor is always that of the longest finished prefix. An item that failed stops that
order until the policy has judged it, and so does a window that is full until it has been flushed.

    source ──▶ submit ──▶ [in flight: done · done · failed · working · working] ──▶ deliver ──▶ window
                                                       │
                                                    settle
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any, Protocol

from cano.brake import Brake, Halted
from cano.clock import TURN
from cano.context import Context, RunData
from cano.task.crew import Crew
from cano.task.items import Fatal, ItemHandler, NotAPair, Retrying, resolve, surely
from cano.task.retry import Member
from cano.task.stream import Stop, StreamSettings, StreamTask
from cano.task.window import OpenWindow


class Deck(Protocol):
    """What a flight needs of the session that it works for."""

    task: StreamTask[Any, Any, Any, Any]
    settings: StreamSettings
    brake: Brake
    host: Any
    ctx: Context[Any]
    window: OpenWindow
    decided: Stop[Any] | None

    async def attend(self, *, draining: bool = False) -> Stop[Any] | None:
        """Do what is to be done between items."""
        ...

    def accepts(self) -> bool:
        """Whether the window can take something now."""
        ...

    def add(self, output: Any, cursor: Any) -> None:
        """Take an output."""
        ...

    def poke(self) -> None:
        """Something is to be done between items."""
        ...

    async def drop(self, item: Any, error: BaseException) -> None:
        """Have the policy judge an item that failed."""
        ...

    async def rest(self, progress: asyncio.Event) -> None:
        """Wait for progress; a stop of the run ends that."""
        ...


class TakenOver(Exception):
    """Not an error: the item is in flight, and its output comes into the window by itself."""


class _Entry:
    __slots__ = ("done", "error", "item", "pair")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.pair: Any = None
        self.error: BaseException | None = None
        self.done = False


class _Patience(Retrying):
    """The guard and host of one item's attempts in a worker: a stop of the run ends the waits between them."""

    def __init__(self, flight: Flight, brake: Brake, ctx: Context[Any], host: Any) -> None:
        super().__init__(brake, ctx, host)
        self._flight = flight
        self.leaked = Member().leaked

    async def pause(self, delay: float) -> None:
        await self._flight.patience(delay)


class Flight:
    """The items in flight, oldest first, and the workers that process them."""

    def __init__(self, session: Deck, width: int) -> None:
        self._session = session
        self._width = width
        self._entries: deque[_Entry] = deque()
        self._todo: asyncio.Queue[_Entry] = asyncio.Queue()
        self._progress = asyncio.Event()
        self._draining = asyncio.Event()
        self._workers: list[asyncio.Task[Any]] = []
        self._released = False
        self._gave_up = False
        self.crash: BaseException | None = None
        self._clock = asyncio.get_running_loop().time
        self._rested = self._clock()

    def start(self) -> None:
        """Start the workers."""
        crew = Crew()
        self._workers += [crew.start(self._work()) for _ in range(self._width)]

    async def submit(self, ctx: Context[Any], item: Any) -> Any:
        """Take an item over, and wait until there is room for another. Stands in for `process_item` in the loop.

        Raises:
            TakenOver: the item is in flight; it has no output yet.
            Fatal: a flush failed meanwhile, or an item before this one.
        """
        if self._gave_up:  # an item before this one is left for a resume, and so is this one
            raise TakenOver
        entry = _Entry(item)
        self._entries.append(entry)
        self._todo.put_nowait(entry)
        try:
            await self._make_room()
        except (asyncio.CancelledError, Exception) as error:
            raise Fatal(error)
        raise TakenOver

    async def _make_room(self) -> None:
        session = self._session
        while len(self._entries) >= self._width and not session.brake.on:
            self._progress.clear()
            if (stop := await session.attend()) is not None:
                session.decided = stop
                session.brake.call()
                return
            if len(self._entries) >= self._width:
                await session.rest(self._progress)

    @property
    def empty(self) -> bool:
        """Whether nothing is in flight."""
        return not self._entries

    def wake(self) -> None:
        """Something has changed for whoever waits."""
        self._progress.set()

    def deliver(self) -> None:
        """Hand on what is finished, in order, until an item is not, or failed, or the window is full."""
        session, entries = self._session, self._entries
        while entries and entries[0].done and entries[0].error is None and session.accepts():
            output, cursor = entries.popleft().pair
            session.add(output, cursor)
        if session.window.due or (entries and entries[0].done and entries[0].error is not None):
            session.poke()
        self.wake()

    async def settle(self) -> None:
        """Have the policy judge the items that failed and are next in order.

        Raises: the error that fails the run, or what crashed a worker.
        """
        if self.crash is not None:
            raise self.crash
        entries = self._entries
        while entries and entries[0].done and entries[0].error is not None and self._session.accepts():
            entry = entries[0]  # it stays in its place, so that no other is handed on meanwhile
            assert entry.error is not None
            if isinstance(entry.error, Halted):
                return
            await self._session.drop(entry.item, entry.error)
            entries.popleft()
            if self._session.decided is not None:
                return
            self.deliver()

    async def land(self, *, draining: bool) -> Stop[Any] | None:
        """Wait until nothing is in flight, flushing windows as they fill; a `Stop` of theirs, if any.

        In a drain the waits between attempts end at once; items that had to be given up so are left for a resume, with
        all after them. Otherwise a stop of the run ends the landing.
        """
        session, entries = self._session, self._entries
        if draining:
            self._draining.set()
        while draining or not session.brake.on:
            self._progress.clear()
            if (stop := await session.attend(draining=draining)) is not None:
                return stop
            if not entries:
                break
            if isinstance(entries[0].error, Halted) and all(entry.done for entry in entries):
                entries.clear()
                self._gave_up = True
            elif draining:
                await self._progress.wait()
            else:
                await session.rest(self._progress)
        return None

    async def patience(self, delay: float) -> None:
        """Wait between two attempts.

        Raises:
            Halted: the run was stopped.
        """
        if not self._session.brake.on:
            try:
                async with asyncio.timeout(delay):
                    await self._draining.wait()
            except TimeoutError:
                return
        raise Halted

    async def release(self) -> None:
        """Cancel the workers and wait for them."""
        self._released = True
        await end(self._workers)

    async def _work(self) -> None:
        session = self._session
        items = ItemHandler(session.task, session.settings, session.brake, session.host)
        process = items.process(guard_of=partial(_Patience, self))
        try:
            while not self._released:
                entry = await self._todo.get()
                await self._take_turns()
                await self._process(process, entry)
                if not Member().leaked():
                    raise asyncio.CancelledError  # cancelled, whatever the hook made of that
                entry.done = True
                self.deliver()
        except BaseException as error:
            if not self._released:
                self._crashed(error)
            raise
        finally:
            items.release()

    async def _process(self, process: Any, entry: _Entry) -> None:
        session, host = self._session, self._session.host
        try:
            ctx = session.ctx.sibling(data=RunData(surely(host.copied, session.ctx.data)))
            ctx.branches = session.ctx.branches
            pair = await resolve(process(ctx, entry.item))
            if len(pair) != 2:
                raise NotAPair("tuple of another length")
            entry.pair = pair if host.fix is None else (pair[0], surely(host.fix, pair[1]))
        except (asyncio.CancelledError, Exception) as error:
            if isinstance(error, asyncio.CancelledError) and not Member().leaked():
                raise
            entry.error = error

    def _crashed(self, error: BaseException) -> None:
        """What is no Exception ends the run at once. So does a cancellation of a worker by somebody else, as an abort."""
        self.crash = error
        if isinstance(error, asyncio.CancelledError):
            self._session.brake.leaked()
            self._session.brake.interrupt()
        self._session.poke()
        self.wake()

    async def _take_turns(self) -> None:
        """Give the event loop its turn when all workers together have worked for long enough without one."""
        while self._clock() - self._rested >= TURN:
            rested = self._rested
            await asyncio.sleep(0)
            if rested == self._rested:  # no other worker was quicker
                self._rested = self._clock()


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel asyncio tasks and wait until they are over. A cancellation that arrives meanwhile is passed on to them, and
    raised afterwards.
    """
    cancelled: asyncio.CancelledError | None = None
    left = {task for task in tasks if not task.done()}
    for task in left:
        task.cancel()
    while left:
        try:
            _, left = await asyncio.wait(left)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in left:
                task.cancel()
    if cancelled is not None:
        raise cancelled
