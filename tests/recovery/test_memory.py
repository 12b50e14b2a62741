"""The memory store, beyond the contract."""

from __future__ import annotations

import asyncio
import threading

import pytest

from cano import CheckpointConflictError, MemoryCheckpointStore, RunOwnedError
from tests.recovery.logs import cursor, entry, in_threads


@pytest.mark.asyncio
async def test_it_lists_its_runs_sorted_and_forgets_the_cleared() -> None:
    store = MemoryCheckpointStore()
    assert await store.list_runs() == []
    for workflow_id in ("c", "a", "b"):
        await store.append(workflow_id, entry(0))
    await store.clear("a")
    assert await store.list_runs() == ["b", "c"]


@pytest.mark.asyncio
async def test_its_repr_shows_no_values_and_what_it_hands_out_is_a_copy() -> None:
    store = MemoryCheckpointStore()
    await store.append("a", entry(0, data=b"s3cr3t"))
    await store.append("a", cursor(1, b"s3cr3t", data=b"s3cr3t"))
    assert repr(store) == "<MemoryCheckpointStore of 1 runs>"
    rows = await store.load_run("a")
    assert "s3cr3t" not in repr(rows)
    rows.clear()
    assert [row.sequence for row in await store.load_run("a")] == [0, 1]


@pytest.mark.asyncio
async def test_what_a_row_replaces_is_an_instruction_and_not_stored() -> None:
    store = MemoryCheckpointStore()
    await store.append("a", cursor(0))
    await store.append("a", cursor(1, replaces=0))
    assert [row.replaces for row in await store.load_run("a")] == [None]


@pytest.mark.asyncio
async def test_two_stores_share_nothing() -> None:
    one, two = MemoryCheckpointStore(), MemoryCheckpointStore()
    await one.append("a", entry(0))
    assert await two.load_run("a") == []
    async with one.claim("a"), two.claim("a"):
        pass


def test_many_threads_with_loops_of_their_own_lose_nothing_and_one_of_them_wins() -> None:
    store, won = MemoryCheckpointStore(), []

    async def work(number: int) -> None:
        for sequence in range(600):
            await store.append(f"own {number}", cursor(sequence, replaces=sequence - 1))
            try:
                await store.append("contested", entry(sequence, f"thread {number}"))
                won.append(sequence)
            except CheckpointConflictError:
                pass

    in_threads(8, lambda number: asyncio.run(work(number)))
    for number in range(8):
        assert asyncio.run(store.load_run(f"own {number}")) == [cursor(599)]
    log = asyncio.run(store.load_run("contested"))
    assert [row.sequence for row in log] == sorted(won) == list(range(len(won)))


def test_a_claim_is_exclusive_between_threads() -> None:
    store, outcomes = MemoryCheckpointStore(), []
    tried = threading.Barrier(4)

    async def work() -> None:
        try:
            async with store.claim("a"):
                outcomes.append("held")
                tried.wait()
        except RunOwnedError:
            outcomes.append("refused")
            tried.wait()

    in_threads(4, lambda number: asyncio.run(work()))
    assert sorted(outcomes) == ["held", "refused", "refused", "refused"]
