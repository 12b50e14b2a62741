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
from typing import Any, Protocol

from cano.brake import Brake, Halted
from cano.context import Context, RunData
from cano.task.crew import Crew
from cano.task.items import ItemHandler, NotAPair, resolve
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


class TakenOver(Exception):
    """Not an error: the item is in flight, and its output comes into the window by itself."""


class _Entry:
    __slots__ = ("done", "error", "item", "pair")

    def __init__(self, item: Any) -> None:
        self.item = item
        self.pair: Any = None
        self.error: BaseException | None = None
        self.done = False


class _Patience(Member):
    """The guard and host of one item's attempts in a worker: a stop of the run ends the waits between them."""

    def __init__(self, flight: Flight) -> None:
        self._flight = flight

    async def pause(self, delay: float) -> None:
        await self._flight.patience(delay)

    def restore(self) -> None:
        """Nothing to take back: the item works on a copy of `ctx.data`."""

    def retrying(self, attempt: int, delay: float, error: Exception) -> None:
        """A wait follows."""


class Flight:
    """The items in flight, oldest first, and the workers that process them."""

    def __init__(self, session: Deck, width: int) -> None:
        self._session = session
        self._width = width
        self._entries: deque[_Entry] = deque()
        self._todo: asyncio.Queue[_Entry] = asyncio.Queue()
        self._progress: asyncio.Event = asyncio.Event()
        self._waits: set[asyncio.Future[None]] = set()
        self._crew = Crew()

    def start(self) -> None:
        """Start the workers."""
        for _ in range(self._width):
            _ = self._crew.start(self._work())

    async def submit(self, ctx: Context[Any], item: Any) -> Any:
        """Take an item over, and wait until there is room for another. Stands in for `process_item` in the loop.

        Raises:
            TakenOver: always, once the item is in flight.
        """
        session, entry = self._session, _Entry(item)
        self._entries.append(entry)
        self._todo.put_nowait(entry)
        while len(self._entries) >= self._width and not session.brake.on:
            self._progress.clear()
            if (stop := await session.attend()) is not None:
                session.decided = stop
                session.brake.call()
                break
            if len(self._entries) >= self._width and not self._progress.is_set():
                await self._progress.wait()
        raise TakenOver

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
        """Have the policy judge the items that failed and are next in order."""
        entries = self._entries
        while entries and entries[0].done and entries[0].error is not None and self._session.accepts():
            if isinstance(entries[0].error, Halted):
                return
            entry = entries.popleft()
            assert entry.error is not None
            if not isinstance(entry.error, Exception | asyncio.CancelledError):
                raise entry.error
            await self._session.drop(entry.item, entry.error)
            self.deliver()

    async def land(self, *, draining: bool) -> Any:
        """Wait until nothing is in flight, flushing windows as they fill; a `Stop` of theirs, if any.

        In a drain the waits between attempts end at once; items that had to be given up so are left for a resume, with
        all after them.
        """
        for wait in self._waits if draining else ():
            if not wait.done():
                wait.set_exception(Halted())
        while self._entries:
            self._progress.clear()
            if (stop := await self._session.attend(draining=draining)) is not None:
                return stop
            if self._entries and isinstance(self._entries[0].error, Halted):
                self._entries.clear()
            elif self._entries and not self._progress.is_set():
                await self._progress.wait()
        return None

    async def patience(self, delay: float) -> None:
        """Wait between two attempts; a drain ends it with Halted."""
        loop = asyncio.get_running_loop()
        wait: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(delay, _over, wait)
        self._waits.add(wait)
        try:
            await wait
        finally:
            timer.cancel()
            self._waits.discard(wait)

    async def release(self) -> None:
        """Cancel the workers and wait for them."""
        await self._crew.__aexit__(None, None, None)

    async def _work(self) -> None:
        session = self._session
        items = ItemHandler(session.task, session.settings, session.brake, session.host)
        process = items.process(guard_of=lambda ctx: _Patience(self))
        try:
            while True:
                entry = await self._todo.get()
                await self._process(process, entry)
                if not Member().leaked():
                    return  # cancelled, whatever the hook made of that
                entry.done = True
                self.deliver()
        finally:
            items.release()

    async def _process(self, process: Any, entry: _Entry) -> None:
        session = self._session
        ctx = session.ctx.sibling(data=RunData(session.host.copied(session.ctx.data)))
        try:
            pair = await resolve(process(ctx, entry.item))
            if len(pair) != 2:
                raise NotAPair("tuple of another length")
            entry.pair = (pair[0], pair[1] if session.host.fix is None else session.host.fix(pair[1]))
        except asyncio.CancelledError as error:
            if not Member().leaked():
                raise
            entry.error = error
        except BaseException as error:
            entry.error = error


def _over(wait: asyncio.Future[None]) -> None:
    if not wait.done():
        wait.set_result(None)
