"""FaultyStore: a checkpoint store that fails, stalls or dies at the n-th append."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from cano.errors import ConfigurationError
from cano.recovery.checkpoint import CheckpointRow
from cano.recovery.store import CheckpointStore, Claiming, Transactional
from cano.testing.crash import Crashed


class FaultyStore:
    """Stands before another store, and has one thing happen at the n-th append that it is asked for, counted from 1.

    store:     where the rows go; `claim` and `transaction` are offered if it offers them, and anything else it has
    fail_at:   append n raises `error`
    stall_at:  append n waits until `release` is called, or until it is cancelled
    crash_at:  append n raises `Crashed`: the process dies
    before:    True: it happens before the row is written, so it is not. False: right after it has become durable
    error:     what fails; default an OSError

    Each happens once; later appends go through. An append within a transaction counts as well; "after" is then after
    the transaction has been committed. Without a fault it is as good a store as the one behind it.

    appends:   how many were asked for so far
    stalled:   whether one is waiting now

    Raises:
        ConfigurationError: an argument is of the wrong type, or two things are to happen at one append.
    """

    def __init__(
        self,
        store: CheckpointStore,
        *,
        fail_at: int | None = None,
        stall_at: int | None = None,
        crash_at: int | None = None,
        before: bool = True,
        error: Exception | None = None,
    ) -> None:
        _check(store, {"fail_at": fail_at, "stall_at": stall_at, "crash_at": crash_at}, before, error)
        self._behind: Any = store
        self._at = (fail_at, stall_at, crash_at)
        self._before = before
        self._error = OSError("the disk of this test is broken") if error is None else error
        self._gate: asyncio.Future[None] | None = None
        self.appends = 0
        self.claim: Any = self._behind.claim if isinstance(self._behind, Claiming) else None
        self.transaction: Any = self._transaction if isinstance(self._behind, Transactional) else None

    def __repr__(self) -> str:
        return f"<FaultyStore before {type(self._behind).__name__}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._behind, name)

    @property
    def stalled(self) -> bool:
        """Whether an append is waiting now."""
        return self._gate is not None and not self._gate.done()

    def release(self) -> None:
        """Let the append that waits go on; in the thread of its event loop. Nothing happens if none waits."""
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        """Add the next row, unless its time has come; see `CheckpointStore.append`."""
        number = self._next()
        await self._happen(number, before=True)
        await self._behind.append(workflow_id, row)
        await self._happen(number, before=False)

    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        """All rows of one run, ascending by sequence."""
        rows: list[CheckpointRow] = await self._behind.load_run(workflow_id)
        return rows

    async def clear(self, workflow_id: str) -> None:
        """Forget one run."""
        await self._behind.clear(workflow_id)

    @asynccontextmanager
    async def _transaction(self, workflow_id: str) -> AsyncIterator[_Transaction]:
        async with self._behind.transaction(workflow_id) as inner:
            transaction = _Transaction(self, inner)
            yield transaction
        for number in transaction.appended:
            await self._happen(number, before=False)

    def _next(self) -> int:
        self.appends += 1
        return self.appends

    async def _happen(self, number: int, *, before: bool) -> None:
        if before is not self._before:
            return
        fail_at, stall_at, crash_at = self._at
        if number == stall_at:
            self._gate = asyncio.get_running_loop().create_future()
            await self._gate
        if number == fail_at:
            raise self._error
        if number == crash_at:
            raise Crashed


def _check(store: Any, faults: dict[str, Any], before: Any, error: Any) -> None:
    if isinstance(store, type) or not isinstance(store, CheckpointStore):
        raise ConfigurationError(f"a FaultyStore stands before a checkpoint store, not before a {type(store).__name__}")
    at = {name: number for name, number in faults.items() if number is not None}
    for name, number in at.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise ConfigurationError(f"{name} must be the number of an append, counted from 1")
    if len(set(at.values())) < len(at):
        raise ConfigurationError("fail_at, stall_at and crash_at must be different appends: each has one thing happen to it")
    if not isinstance(before, bool):
        raise ConfigurationError(f"before must be True or False, not a {type(before).__name__}")
    if error is not None and not isinstance(error, Exception):
        raise ConfigurationError("error must be an Exception, such as OSError(); a death is crash_at")


class _Transaction:
    """An open transaction whose appends count."""

    def __init__(self, store: FaultyStore, inner: Any) -> None:
        self._store = store
        self._inner = inner
        self.connection: Any = inner.connection
        self.appended: list[int] = []

    async def append(self, row: CheckpointRow) -> None:
        """Add the next row; durable with the transaction."""
        number = self._store._next()
        await self._store._happen(number, before=True)
        await self._inner.append(row)
        self.appended.append(number)
