"""MemoryCheckpointStore: logs that live as long as the store object."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from cano.errors import CheckpointConflictError, RunOwnedError
from cano.recovery.checkpoint import CheckpointRow, RowKind


class MemoryCheckpointStore:
    """Keeps logs in memory, for tests and for runs that need a resume within one process only.

    Safe for concurrent use from many coroutines, event loops and threads.
    """

    def __init__(self) -> None:
        self._logs: dict[str, list[CheckpointRow]] = {}
        self._claimed: set[str] = set()
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<MemoryCheckpointStore of {len(self._logs)} runs>"

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        """Add the next row; see `CheckpointStore.append`."""
        with self._lock:
            log = self._logs.get(workflow_id, [])
            expected = log[-1].sequence + 1 if log else 0
            if row.sequence != expected:
                raise conflict(workflow_id, row)
            kept = [old for old in log if not (old.sequence == row.replaces and old.kind is RowKind.STEP_CURSOR)]
            self._logs[workflow_id] = [*kept, row if row.replaces is None else replace(row, replaces=None)]

    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        """All rows of one run, ascending by sequence."""
        with self._lock:
            return list(self._logs.get(workflow_id, ()))

    async def clear(self, workflow_id: str) -> None:
        """Forget one run."""
        with self._lock:
            self._logs.pop(workflow_id, None)

    async def list_runs(self) -> list[str]:
        """The ids of all runs that have a log, sorted."""
        with self._lock:
            return sorted(self._logs)

    @asynccontextmanager
    async def claim(self, workflow_id: str) -> AsyncIterator[None]:
        """Hold one run while the block lasts; see `Claiming.claim`."""
        with self._lock:
            if workflow_id in self._claimed:
                raise owned(workflow_id)
            self._claimed.add(workflow_id)
        try:
            yield
        finally:
            with self._lock:
                self._claimed.discard(workflow_id)


def conflict(workflow_id: str, row: CheckpointRow) -> CheckpointConflictError:
    """The refusal of an append that is not the next one."""
    return CheckpointConflictError(f"row {row.sequence} is not the next one in the log of run {workflow_id!r} (conflict)")


def owned(workflow_id: str) -> RunOwnedError:
    """The refusal of a claim that somebody else holds."""
    return RunOwnedError(f"run {workflow_id!r} is being worked on by somebody alive; wait for it to end")
