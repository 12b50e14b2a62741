"""Exactly-once windows: the user's SQL and the cursor commit together or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cano import (
    CancellationToken,
    CheckpointStoreError,
    ConfigurationError,
    Context,
    MemoryCheckpointStore,
    SqliteCheckpointStore,
    Stop,
    TaskExecutionError,
    Window,
    WorkflowCancelledError,
)
from cano.testing import Crashed
from tests.streams import Probe, machine, numbers, run, then_silence

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Writing(Probe):
    transactional = True

    async def flush_window(self, ctx: Context, outputs: list[int]) -> Any:
        for output in outputs:
            await ctx.transaction.execute("INSERT INTO sink VALUES (?)", (output,))
        return await super().flush_window(ctx, outputs)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "all.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE sink (number INTEGER)")
    connection.close()
    return path


def sink(path: Path) -> list[int]:
    connection = sqlite3.connect(path)
    try:
        return [number for (number,) in connection.execute("SELECT number FROM sink ORDER BY rowid")]
    finally:
        connection.close()


async def test_every_window_is_in_the_sink_exactly_once_through_crashes_in_every_flush(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    crashed: set[int] = set()

    def flush(outputs: list[int]) -> None:
        if outputs[0] not in crashed:
            crashed.add(outputs[0])
            raise Crashed

    flow = machine(Writing(numbers(1, 9), flush=flush), store)
    result = None
    while result is None:
        try:
            result = await flow.orchestrate("work", workflow_id="r", if_exists="resume")
        except Crashed:
            pass
    assert len(crashed) == 5
    assert sink(path) == list(range(1, 10))
    await store.close()


async def test_a_crash_at_the_commit_leaves_neither_and_after_it_both(path: Path) -> None:
    for after in (False, True):
        store = SqliteCheckpointStore(path)

        class Dying(SqliteCheckpointStore):
            def transaction(self, workflow_id: str, after: bool = after) -> Any:
                return dying(super().transaction(workflow_id), after)

        from contextlib import asynccontextmanager

        @asynccontextmanager
        async def dying(inner: Any, after: bool) -> Any:
            async with inner as transaction:
                yield transaction
                if not after:
                    raise Crashed
            raise Crashed

        before = sink(path)
        broken = Dying(path)
        with pytest.raises(Crashed):
            await run(Writing(numbers(1, 4)), broken)
        assert sink(path) == before + ([1, 2] if after else [])
        await broken.close()
        assert await machine(Writing(numbers(1, 4)), store).resume_from("r") == "done"
        assert sink(path) == [*before, 1, 2, 3, 4]
        await store.close()


async def test_a_stop_commits_with_its_window(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    assert await run(Writing(numbers(1, 9), flush=lambda outputs: Stop("stopped")), store) == "stopped"
    assert sink(path) == [1, 2]
    await store.close()


async def test_a_drain_and_a_window_beside_a_read_are_transactional_too(path: Path) -> None:
    store, token = SqliteCheckpointStore(path), CancellationToken()
    flushes = 0

    def flush(outputs: list[int]) -> None:
        nonlocal flushes
        flushes += 1
        asyncio.get_running_loop().call_later(0.01, token.cancel)

    with pytest.raises(WorkflowCancelledError):
        await run(Writing(then_silence(3), window=Window(seconds=0.02), flush=flush), store, token=token)
    assert flushes == 1
    assert sink(path) == [1, 2, 3]
    await store.close()


async def test_ending_the_transaction_in_the_flush_is_refused_and_rolled_back(path: Path) -> None:
    async def commit(ctx: Context) -> None:
        await ctx.transaction.commit()

    async def rollback(ctx: Context) -> None:
        await ctx.transaction.execute("ROLLBACK")

    async def script(ctx: Context) -> None:
        await ctx.transaction.executescript("INSERT INTO sink VALUES (7);")

    async def swallowed(ctx: Context) -> None:
        try:
            await ctx.transaction.commit()
        except sqlite3.DatabaseError:
            pass

    for ending in (commit, rollback, script, swallowed):

        class Ending(Writing):
            async def flush_window(self, ctx: Context, outputs: list[int], ending: Any = ending) -> Any:
                await super().flush_window(ctx, outputs)
                await ending(ctx)

        store = SqliteCheckpointStore(path)
        with pytest.raises(CheckpointStoreError, match="leave commit and rollback to the engine"):
            await run(Ending(numbers(1, 4)), store)
        assert sink(path) == []
        await store.clear("r")
        await store.close()


async def test_a_run_inside_a_transactional_window_of_its_own_store_is_refused_instead_of_waiting_for_ever(path: Path) -> None:
    store = SqliteCheckpointStore(path)

    class Nested(Writing):
        async def flush_window(self, ctx: Context, outputs: list[int]) -> Any:
            await machine(Probe(numbers(1, 2)), store).orchestrate("work", workflow_id="inner")

    with pytest.raises(TaskExecutionError) as caught:
        await asyncio.wait_for(run(Nested(numbers(1, 4)), store), 5)
    assert "needs another file" in str(caught.value.__cause__)
    await store.close()


async def test_a_store_without_transactions_is_refused_at_validation() -> None:
    for store in (None, MemoryCheckpointStore()):
        flow = machine(Writing(numbers(1, 2)), store)
        with pytest.raises(ConfigurationError, match="transactional"):
            flow.validate()
        with pytest.raises(ConfigurationError, match="transactional"):
            await flow.orchestrate("work", workflow_id="r")


async def test_many_transactional_runs_share_one_store(path: Path) -> None:
    store = SqliteCheckpointStore(path)

    async def flush(outputs: list[int]) -> None:
        await asyncio.sleep(0)

    flow = machine(Writing(numbers(1, 6), flush=flush), store)
    await asyncio.gather(*(flow.orchestrate("work", workflow_id=f"r{n}") for n in range(10)))
    assert sorted(sink(path)) == sorted(list(range(1, 7)) * 10)
    await store.close()


async def test_outside_a_flush_there_is_no_transaction(path: Path) -> None:
    store = SqliteCheckpointStore(path)
    seen: list[Any] = []

    class Looking(Writing):
        async def process_item(self, ctx: Context, item: int) -> tuple[int, int]:
            seen.append(ctx.transaction)
            return item, item

        async def on_close(self, ctx: Context, reason: Any) -> str:
            seen.append(ctx.transaction)
            return "done"

    assert await run(Looking(numbers(1, 2)), store) == "done"
    assert seen == [None, None, None]
    await store.close()
