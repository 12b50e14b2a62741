"""Journal: the log of one run as its owner writes it. The only caller of `append`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from cano.cancel import leaked
from cano.errors import CheckpointConflictError, CheckpointStoreError, RunFencedError
from cano.recovery.checkpoint import CheckpointRow, RowKind
from cano.recovery.store import CheckpointStore, Transaction


class Journal:
    """Numbers rows, stamps them with the workflow's version, and lets a newer cursor replace the older one of its
    visit.

    `sequence` is that of the next row and `cursor_row` that of the cursor row of the present visit, if there is one.
    Without a store everything is the same except that nothing is written. A conflict means that somebody else has
    written to the log: it is raised as `RunFencedError`, except at the very first row of a fresh run, where it means
    that the id is taken.
    """

    def __init__(
        self,
        store: CheckpointStore | None,
        workflow_id: str,
        version: int,
        *,
        sequence: int = 0,
        cursor_row: int | None = None,
    ) -> None:
        self._store = store
        self._workflow_id = workflow_id
        self._version = version
        self._written: Callable[[CheckpointRow], None] | None = None
        self._transaction: Transaction | None = None
        self._pending: CheckpointRow | None = None
        self._unsure: CheckpointRow | None = None
        self.sequence = sequence
        self.cursor_row = cursor_row

    def on_written(self, written: Callable[[CheckpointRow], None]) -> None:
        """Call `written` with every row that has become durable."""
        self._written = written

    async def enter(
        self, state: str, task: str, *, visit: int, data: bytes | None, again: bool, blob: bytes | None = None
    ) -> None:
        """Record that a state is entered; `again` when a resume enters it, so that its cursor still counts.

        `blob` holds the results of the split that led to it, if there was one.
        """
        if self._store is None:
            self.sequence += 1
        else:
            row = CheckpointRow(
                self.sequence,
                RowKind.STATE_ENTRY,
                state,
                task,
                blob=blob,
                visit=visit,
                data=data,
                workflow_version=self._version,
            )
            await self._append(row)
        if not again:
            self.cursor_row = None

    async def cursor(self, state: str, task: str, blob: bytes, *, next_state: str | None, visit: int, data: bytes | None) -> None:
        """Record a cursor, and the decision if there is one, in place of the older cursor of this visit."""
        if self._store is None:
            self.cursor_row = self.sequence
            self.sequence += 1
            return
        row = CheckpointRow(
            self.sequence,
            RowKind.STEP_CURSOR,
            state,
            task,
            blob=bytes(blob),
            next_state=next_state,
            visit=visit,
            data=data,
            workflow_version=self._version,
            replaces=self.cursor_row,
        )
        await self._append(row)

    def pass_by(self) -> None:
        """A state was entered that leaves no row: the cursor of the visit before it does not count for the next."""
        self.cursor_row = None

    async def completed(self, state: str, task: str, blob: bytes, *, next_state: str, visit: int, data: bytes | None) -> None:
        """Record that a compensatable step completed, with its output and its decision."""
        await self._note(RowKind.COMPENSATION, state, task, blob, next_state, visit, data)

    async def rollback_started(self, state: str, task: str, error: bytes, *, visit: int, data: bytes | None) -> None:
        """Record that the run only rolls back from here on, and why."""
        await self._note(RowKind.ROLLBACK_STARTED, state, task, error, None, visit, data)

    async def compensated(self, state: str, task: str, step: int, *, visit: int, data: bytes | None) -> None:
        """Record that the step completed in row `step` was compensated."""
        await self._note(RowKind.COMPENSATED, state, task, str(step).encode(), None, visit, data)

    async def _note(
        self,
        kind: RowKind,
        state: str,
        task: str,
        blob: bytes,
        next_state: str | None,
        visit: int,
        data: bytes | None,
    ) -> None:
        if self._unsure is not None:
            await self._find_out(self._unsure)
        row = CheckpointRow(
            self.sequence,
            kind,
            state,
            task,
            blob=bytes(blob),
            next_state=next_state,
            visit=visit,
            data=data,
            workflow_version=self._version,
        )
        await self._append(row)

    async def _find_out(self, row: CheckpointRow) -> None:
        """An append was cut off or failed, and the run goes on to roll back: see whether the row is there all the same."""
        store: Any = self._store
        try:
            rows: list[CheckpointRow] = await store.load_run(self._workflow_id)
        except (asyncio.CancelledError, Exception) as error:
            raise store_failure("load a run", error) from error
        self._unsure = None
        if row in rows:
            self._advance(row)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """Give the store's connection; the row appended inside becomes durable with what was written through it."""
        store: Any = self._store
        opened: AbstractAsyncContextManager[Transaction] = store.transaction(self._workflow_id)
        failed = False
        try:
            async with opened as self._transaction:
                try:
                    yield self._transaction.connection
                except BaseException:
                    failed = True
                    raise
        except BaseException as error:
            self._unsure, self._pending = self._pending or self._unsure, None
            if failed or not isinstance(error, Exception | asyncio.CancelledError):
                raise
            raise store_failure("commit", error) from error.__cause__
        finally:
            self._transaction = None
        if self._pending is not None:
            row, self._pending = self._pending, None
            self._advance(row)

    async def clear(self) -> None:
        """Forget the log of a completed run.

        Raises:
            CheckpointStoreError: it could not be removed.
        """
        if self._store is None:
            return
        try:
            await self._store.clear(self._workflow_id)
        except (asyncio.CancelledError, Exception) as error:
            raise store_failure("clear a run", error) from error

    async def _append(self, row: CheckpointRow) -> None:
        if self._store is None:
            self._advance(row, silent=True)
            return
        try:
            if self._transaction is not None:
                await self._transaction.append(row)
            else:
                await self._store.append(self._workflow_id, row)
        except CheckpointConflictError as error:
            raise self._conflict(row) from error
        except (asyncio.CancelledError, Exception) as error:
            self._unsure = row
            raise store_failure("append a row", error) from error
        if self._transaction is not None:
            self._pending = row
        else:
            self._advance(row)

    def _advance(self, row: CheckpointRow, *, silent: bool = False) -> None:
        self.sequence = row.sequence + 1
        if row.kind is RowKind.STEP_CURSOR:
            self.cursor_row = row.sequence
        if self._written is not None and not silent:
            self._written(row)

    def _conflict(self, row: CheckpointRow) -> CheckpointStoreError:
        if row.sequence == 0:
            return CheckpointConflictError(
                f"run {self._workflow_id!r} has an unfinished log: go on with resume_from({self._workflow_id!r}), or start with "
                "if_exists='resume' or if_exists='discard'"
            )
        return RunFencedError(
            f"somebody else has written to the log of run {self._workflow_id!r}; this run stopped before row {row.sequence}"
        )


def store_failure(what: str, error: BaseException) -> BaseException:
    """What to raise for what a store raised: a CheckpointStoreError, or the cancellation if that is not just
    something it let out.
    """
    if isinstance(error, CheckpointStoreError) or (isinstance(error, asyncio.CancelledError) and not leaked()):
        return error
    return CheckpointStoreError(f"the checkpoint store could not {what}: {type(error).__name__}")
