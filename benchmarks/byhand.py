"""The loops that somebody who needs no engine would write by hand: what the engine is measured against.

Each calls the same hooks of the same task object as the engine does, fills the same windows and keeps the cursor. None
can be cancelled, resumed, timed out or observed, none gives other tasks a turn, and none checks what a hook returns.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from time import monotonic
from typing import Any

import aiosqlite

from benchmarks.tasks import Step

CTX: Any = None
"""The hooks of the benchmarks look at no context."""

_KEEP = "INSERT INTO cursors VALUES ('run', ?) ON CONFLICT (run) DO UPDATE SET cursor = excluded.cursor"

_LOOK = 64
"""Every how many items a time window looks at the clock, which costs a fifth of an item."""


async def count_windows(task: Any, items: AsyncIterable[int], size: int) -> int | None:
    """An async source, an async `process_item`, windows of `size`."""
    cursor: int | None = None
    outputs: list[int] = []
    async for item in items:
        output, cursor = await task.process_item(CTX, item)
        outputs.append(output)
        if len(outputs) >= size:
            await task.flush_window(CTX, outputs)
            outputs = []
    if outputs:
        await task.flush_window(CTX, outputs)
    return cursor


async def count_windows_plain_item(task: Any, items: AsyncIterable[int], size: int) -> int | None:
    """The same with a plain `process_item`."""
    cursor: int | None = None
    outputs: list[int] = []
    async for item in items:
        output, cursor = task.process_item(CTX, item)
        outputs.append(output)
        if len(outputs) >= size:
            await task.flush_window(CTX, outputs)
            outputs = []
    if outputs:
        await task.flush_window(CTX, outputs)
    return cursor


async def count_windows_plain_source(task: Any, items: Iterable[int], size: int) -> int | None:
    """The same with a plain source, over which a plain `for` goes."""
    cursor: int | None = None
    outputs: list[int] = []
    for item in items:
        output, cursor = await task.process_item(CTX, item)
        outputs.append(output)
        if len(outputs) >= size:
            await task.flush_window(CTX, outputs)
            outputs = []
    if outputs:
        await task.flush_window(CTX, outputs)
    return cursor


async def time_windows(task: Any, items: AsyncIterable[int], seconds: float) -> int | None:
    """Windows of `seconds`, by a look at the clock every few dozen items. A silent source keeps a window open for ever."""
    cursor: int | None = None
    outputs: list[int] = []
    deadline = monotonic() + seconds
    left = _LOOK
    async for item in items:
        output, cursor = await task.process_item(CTX, item)
        outputs.append(output)
        left -= 1
        if not left:
            left = _LOOK
            if monotonic() >= deadline:
                await task.flush_window(CTX, outputs)
                outputs = []
                deadline = monotonic() + seconds
    if outputs:
        await task.flush_window(CTX, outputs)
    return cursor


async def durable_windows(task: Any, items: AsyncIterable[int], size: int, database: Database) -> None:
    """Count windows; the cursor of each is committed, inline, before the next item."""
    cursor: int | None = None
    outputs: list[int] = []
    async for item in items:
        output, cursor = await task.process_item(CTX, item)
        outputs.append(output)
        if len(outputs) >= size:
            await task.flush_window(CTX, outputs)
            outputs = []
            database.keep(cursor)
    if outputs:
        await task.flush_window(CTX, outputs)
        database.keep(cursor)


async def durable_windows_in_thread(task: Any, items: AsyncIterable[int], size: int, connection: aiosqlite.Connection) -> None:
    """The same through aiosqlite, so that the event loop is free while a cursor is committed, as it is with the engine."""
    cursor: int | None = None
    outputs: list[int] = []
    async for item in items:
        output, cursor = await task.process_item(CTX, item)
        outputs.append(output)
        if len(outputs) >= size:
            await task.flush_window(CTX, outputs)
            outputs = []
            await connection.execute_fetchall(_KEEP, (cursor,))
    if outputs:
        await task.flush_window(CTX, outputs)
        await connection.execute_fetchall(_KEEP, (cursor,))


async def transitions(initial: Step, functions: Mapping[Step, Callable[[Any], Awaitable[Step]]]) -> None:
    """A state machine: a dictionary and a `while`."""
    state = initial
    while state is not Step.DONE:
        state = await functions[state](CTX)


async def durable_transitions(
    initial: Step, functions: Mapping[Step, Callable[[Any], Awaitable[Step]]], database: Database
) -> None:
    """The same, and each state is committed, inline, before its function runs."""
    state = initial
    while state is not Step.DONE:
        database.enter(state.name)
        state = await functions[state](CTX)
    database.enter(state.name)


async def batch(task: Any, hands: int) -> Step:
    """Workers that share an iterator. An item that fails has its exception for a result."""
    items = list(await task.load(CTX))
    ahead = iter(enumerate(items))
    outcomes: list[Any] = [None] * len(items)

    async def worker() -> None:
        for place, item in ahead:
            try:
                outcomes[place] = await task.process_item(CTX, item)
            except Exception as error:
                outcomes[place] = error

    await asyncio.gather(*(worker() for _ in range(hands)))
    end: Step = await task.finish(CTX, outcomes)
    return end


async def in_flight(task: Any, items: AsyncIterable[int], size: int, hands: int) -> int | None:
    """Count windows; workers process the items, whose results are taken in the order of the source."""
    loop = asyncio.get_running_loop()
    todo: asyncio.Queue[tuple[int, asyncio.Future[Any]]] = asyncio.Queue(hands)
    ordered: asyncio.Queue[asyncio.Future[Any] | None] = asyncio.Queue(4 * hands)

    async def feed() -> None:
        async for item in items:
            result = loop.create_future()
            await todo.put((item, result))
            await ordered.put(result)
        await ordered.put(None)

    async def worker() -> None:
        while True:
            item, result = await todo.get()
            result.set_result(await task.process_item(CTX, item))

    cursor: int | None = None
    outputs: list[int] = []
    members = [asyncio.create_task(feed()), *(asyncio.create_task(worker()) for _ in range(hands))]
    while (result := await ordered.get()) is not None:
        output, cursor = await result
        outputs.append(output)
        if len(outputs) >= size:
            await task.flush_window(CTX, outputs)
            outputs = []
    if outputs:
        await task.flush_window(CTX, outputs)
    for member in members:
        member.cancel()
    return cursor


class Database:
    """The standard library's driver, used inline: it blocks the event loop while it commits, and needs no thread.

    Autocommit, so that a statement is a transaction and there is nothing cheaper. The pragmas are those of the store.
    """

    def __init__(self, path: str, synchronous: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {synchronous}")
        self._connection.execute("CREATE TABLE cursors (run TEXT PRIMARY KEY, cursor INTEGER) WITHOUT ROWID")
        self._connection.execute("CREATE TABLE states (number INTEGER PRIMARY KEY, run TEXT, state TEXT)")

    def keep(self, cursor: int | None) -> None:
        """Commit a cursor in place of the one before."""
        self._connection.execute(_KEEP, (cursor,))

    def enter(self, state: str) -> None:
        """Commit that a state is entered."""
        self._connection.execute("INSERT INTO states (run, state) VALUES ('run', ?)", (state,))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
