"""The SQLite store against a dict, under any order of operations."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from cano import CheckpointConflictError, CheckpointRow, RowKind, RunOwnedError, SqliteCheckpointStore

BYTES = st.none() | st.binary(max_size=20)
ROWS = st.builds(
    CheckpointRow,
    st.just(0),
    st.sampled_from(RowKind),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.text(st.characters(codec="utf-8"), max_size=5),
    blob=BYTES,
    next_state=st.none() | st.text(st.characters(codec="utf-8"), max_size=3),
    visit=st.integers(0, 2**63 - 1),
    data=BYTES,
    workflow_version=st.integers(-(2**63), 2**63 - 1),
)


class Undo(Exception):
    pass


class SqliteAgainstADict(RuleBasedStateMachine):
    """Two stores on one file, in one event loop after another. `logs` is what they have to hold."""

    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        path = Path(self.folder.name) / "runs.db"
        self.stores = [SqliteCheckpointStore(path, synchronous="NORMAL") for _ in range(2)]
        self.runner = asyncio.Runner(debug=True)
        self.logs: dict[str, list[CheckpointRow]] = {}
        self.used = 0

    def teardown(self) -> None:
        self.runner.close()
        self.folder.cleanup()

    @property
    def store(self) -> SqliteCheckpointStore:
        self.used += 1
        return self.stores[self.used % 2]

    def run(self, operation: Any) -> Any:
        return self.runner.run(operation)

    def next(self, workflow_id: str) -> int:
        log = self.logs.get(workflow_id)
        return log[-1].sequence + 1 if log else 0

    def put(self, workflow_id: str, row: CheckpointRow) -> None:
        log = self.logs.setdefault(workflow_id, [])
        log[:] = [old for old in log if old.sequence != row.replaces or old.kind is not RowKind.STEP_CURSOR]
        log.append(row)

    @initialize(target=ids)
    def some_ids(self) -> Any:
        return multiple("a", "A", "a%", "a_", "'; --", "")

    @rule(target=ids, workflow_id=st.text(st.characters(codec="utf-8"), max_size=4))
    def another_id(self, workflow_id: str) -> str:
        return workflow_id

    @rule(workflow_id=ids, row=ROWS, back=st.integers(0, 4))
    def append(self, workflow_id: str, row: CheckpointRow, back: int) -> None:
        row = self.numbered(workflow_id, row, back)
        self.run(self.store.append(workflow_id, row))
        self.put(workflow_id, row)

    def numbered(self, workflow_id: str, row: CheckpointRow, back: int) -> CheckpointRow:
        sequence = self.next(workflow_id)
        fields = {name: getattr(row, name) for name in CheckpointRow.__slots__}
        return CheckpointRow(**{**fields, "sequence": sequence, "replaces": sequence - back if back else None})

    @rule(workflow_id=ids, row=ROWS, off=st.sampled_from([-3, -2, -1, 1, 2, 2**40]), back=st.integers(0, 3))
    def append_out_of_order(self, workflow_id: str, row: CheckpointRow, off: int, back: int) -> None:
        row = self.numbered(workflow_id, row, back)
        fields = {name: getattr(row, name) for name in CheckpointRow.__slots__}
        with pytest.raises(CheckpointConflictError):
            self.run(self.store.append(workflow_id, CheckpointRow(**{**fields, "sequence": row.sequence + off})))

    @rule(workflow_id=ids, rows=st.lists(ROWS, min_size=1, max_size=4), others=st.sets(ids, max_size=4))
    def append_at_once(self, workflow_id: str, rows: list[CheckpointRow], others: set[str]) -> None:
        others.discard(workflow_id)
        contested = [self.numbered(workflow_id, row, 1) for row in rows]
        alone = {other: self.numbered(other, rows[0], 2) for other in others}

        async def together() -> list[Any]:
            calls = [self.store.append(workflow_id, row) for row in contested]
            calls += [self.store.append(other, row) for other, row in alone.items()]
            return await asyncio.gather(*calls, return_exceptions=True)

        outcomes = self.run(together())
        won = [row for row, outcome in zip(contested, outcomes, strict=False) if outcome is None]
        assert len(won) == 1
        assert outcomes[len(contested) :] == [None] * len(alone)
        self.put(workflow_id, won[0])
        for other, row in alone.items():
            self.put(other, row)

    @rule(workflow_id=ids, row=ROWS, turns=st.integers(0, 40))
    def append_and_cancel(self, workflow_id: str, row: CheckpointRow, turns: int) -> None:
        row = self.numbered(workflow_id, row, 1)
        store = self.store

        async def cancelled() -> list[CheckpointRow]:
            append = asyncio.ensure_future(store.append(workflow_id, row))
            for _ in range(turns):
                await asyncio.sleep(0)
            append.cancel()
            await asyncio.wait((append,))
            return await store.load_run(workflow_id)

        if self.run(cancelled())[-1:] == [row]:
            self.put(workflow_id, row)

    @rule(workflow_id=ids, row=ROWS, fail=st.booleans())
    def append_in_a_transaction(self, workflow_id: str, row: CheckpointRow, fail: bool) -> None:
        rows = [self.numbered(workflow_id, row, 1)]
        fields = {name: getattr(row, name) for name in CheckpointRow.__slots__}
        rows.append(CheckpointRow(**{**fields, "sequence": rows[0].sequence + 1, "replaces": rows[0].sequence}))

        async def transact() -> None:
            async with self.store.transaction(workflow_id) as transaction:
                for each in rows:
                    await transaction.append(each)
                if fail:
                    raise Undo

        try:
            self.run(transact())
        except Undo:
            return
        for each in rows:
            self.put(workflow_id, each)

    @rule(workflow_id=ids)
    def clear(self, workflow_id: str) -> None:
        self.run(self.store.clear(workflow_id))
        self.logs.pop(workflow_id, None)

    @rule(workflow_id=ids, other=ids)
    def claim(self, workflow_id: str, other: str) -> None:
        async def claims() -> None:
            async with self.store.claim(workflow_id):
                if other == workflow_id:
                    with pytest.raises(RunOwnedError):
                        async with self.store.claim(other):
                            pass
                else:
                    async with self.store.claim(other):
                        pass

        self.run(claims())

    @rule()
    def close(self) -> None:
        self.run(self.store.close())

    @rule()
    def another_event_loop(self) -> None:
        self.runner.close()
        self.runner = asyncio.Runner(debug=True)

    @rule(workflow_id=ids)
    def load(self, workflow_id: str) -> None:
        assert self.run(self.store.load_run(workflow_id)) == self.logs.get(workflow_id, [])

    @invariant()
    def it_lists_what_it_holds(self) -> None:
        assert self.run(self.store.list_runs()) == sorted(self.logs, key=str.encode)

    @invariant()
    def it_holds_what_the_dict_holds(self) -> None:
        for workflow_id, log in self.logs.items():
            assert self.run(self.store.load_run(workflow_id)) == log


TestSqliteAgainstADict = SqliteAgainstADict.TestCase
TestSqliteAgainstADict.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
