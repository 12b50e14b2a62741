"""MortalStore: the checkpoint store as one life sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any

from cano.recovery.checkpoint import CheckpointRow
from cano.recovery.store import CheckpointStore, Claiming, Transactional
from cano.testing.crash import Crashed
from cano.testing.life import Life, apart


class MortalStore:
    """Stands before a store that outlives the process. Its life dies at an append, before or after the row is written; from
    then on nothing that it still asks for is done, and what it has in hand is rolled back.

    The asyncio tasks of the store behind it belong to no life.

    crash_at: the append to die at, counted from 1; 0 for a life that goes on
    appends:  how many were asked for so far
    """

    def __init__(self, store: CheckpointStore, life: Life, *, crash_at: int = 0, before: bool = True) -> None:
        self._behind: Any = store
        self._life = life
        self._crash_at = crash_at
        self._before = before
        self.appends = 0
        self.claim: Any = self._claim if isinstance(store, Claiming) else None
        self.transaction: Any = self._transaction if isinstance(store, Transactional) else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._behind, name)

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        """Add the next row, or die; see `CheckpointStore.append`."""
        number = self._next()
        with apart():
            await self._behind.append(workflow_id, row)
        self._written(number)

    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        """All rows of one run, ascending by sequence."""
        self._demand_alive()
        with apart():
            rows: list[CheckpointRow] = await self._behind.load_run(workflow_id)
        return rows

    async def clear(self, workflow_id: str) -> None:
        """Forget one run."""
        self._demand_alive()
        with apart():
            await self._behind.clear(workflow_id)

    def _claim(self, workflow_id: str) -> AbstractAsyncContextManager[None]:
        return _Apart(self._behind.claim(workflow_id))

    @asynccontextmanager
    async def _transaction(self, workflow_id: str) -> AsyncIterator[_Transaction]:
        self._demand_alive()
        async with _Apart(self._behind.transaction(workflow_id)) as inner:
            transaction = _Transaction(self, inner)
            yield transaction
            self._demand_alive()
        for number in transaction.appended:
            self._written(number)

    def _next(self) -> int:
        self._demand_alive()
        self.appends += 1
        if self._before and self.appends == self._crash_at:
            self._die()
        return self.appends

    def _written(self, number: int) -> None:
        self._demand_alive()
        if not self._before and number == self._crash_at:
            self._die()

    def _die(self) -> None:
        self._life.die()
        raise Crashed

    def _demand_alive(self) -> None:
        if self._life.dead:
            raise Crashed


class _Transaction:
    """An open transaction whose appends count."""

    def __init__(self, store: MortalStore, inner: Any) -> None:
        self._store = store
        self._inner = inner
        self.connection: Any = inner.connection
        self.appended: list[int] = []

    async def append(self, row: CheckpointRow) -> None:
        """Add the next row; durable with the transaction."""
        number = self._store._next()
        with apart():
            await self._inner.append(row)
        self.appended.append(number)


class _Apart:
    """Enters and leaves what the store gave, apart from any life."""

    def __init__(self, behind: AbstractAsyncContextManager[Any]) -> None:
        self._behind = behind

    async def __aenter__(self) -> Any:
        with apart():
            return await self._behind.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with apart():
            return await self._behind.__aexit__(kind, error, trace)
