"""Resume: where it goes on, what it refuses, who may."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from cano import (
    CheckpointConflictError,
    CheckpointRow,
    CheckpointStoreError,
    ConfigurationError,
    CursorError,
    MemoryCheckpointStore,
    RowKind,
    RunFencedError,
    RunOwnedError,
    SqliteCheckpointStore,
    Stop,
    StreamTask,
    TaskExecutionError,
    Window,
    Workflow,
    WorkflowError,
    WorkflowVersionMismatchError,
)
from cano.testing import Crashed
from tests.streams import Probe, cursors, machine, numbers, run

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


class Unclaimed(MemoryCheckpointStore):
    """A store that leaves everything to the compare-and-set."""

    claim = None  # type: ignore[assignment]  # a store that has no claims


def crash(at: Any) -> Any:
    def hook(argument: Any) -> None:
        if argument == at:
            raise Crashed

    return hook


async def test_a_failed_run_is_resumed_in_its_state_at_its_cursor_and_earlier_states_do_not_run_again() -> None:
    store = MemoryCheckpointStore()
    entered: list[str] = []

    async def first(ctx: Any) -> str:
        entered.append("first")
        return "work"

    def flow(probe: Probe) -> Workflow[str]:
        return machine(probe, store).register("first", first)

    with pytest.raises(Crashed):
        await flow(Probe(numbers(1, 6), process=crash(4))).orchestrate("first", workflow_id="r")
    probe = Probe(numbers(1, 6))
    assert await flow(probe).resume_from("r") == "done"
    assert entered == ["first"]
    assert probe.opened == [2]
    assert await store.list_runs() == []


async def test_a_recorded_decision_is_not_taken_again() -> None:
    store = MemoryCheckpointStore()
    ran: list[str] = []

    async def after(ctx: Any) -> str:
        ran.append("after")
        if len(ran) == 1:
            raise Crashed
        return "done"

    class NoEntry(MemoryCheckpointStore):
        async def append(self, workflow_id: str, row: CheckpointRow) -> None:
            if row.state == "after" and not ran:
                raise Crashed
            await super().append(workflow_id, row)

    store = NoEntry()
    probe = Probe(numbers(1, 6), flush=lambda outputs: Stop("after"))
    with pytest.raises(Crashed):
        await machine(probe, store).register("after", after).orchestrate("work", workflow_id="r")
    assert [(row.kind, row.next_state) for row in await store.load_run("r")][-1] == (RowKind.STEP_CURSOR, "after")
    ran.append("before")
    again = Probe(numbers(1, 6))
    assert await machine(again, store).register("after", after).resume_from("r") == "done"
    assert again.opened == []
    assert ran == ["before", "after"]


async def test_a_cursor_belongs_to_one_visit() -> None:
    store = MemoryCheckpointStore()
    visits = 0

    def close(reason: Any) -> str:
        nonlocal visits
        visits += 1
        return "work" if visits == 1 else "done"

    def flush(outputs: list[int]) -> None:
        if visits == 1 and outputs == [1, 2]:
            raise Crashed

    probe = Probe(numbers(1, 4), close=close, flush=flush)
    with pytest.raises(Crashed):
        await run(probe, store)
    again = Probe(numbers(1, 4))
    assert await machine(again, store).resume_from("r") == "done"
    assert probe.opened == [None, None]
    assert again.opened == [None]


async def test_a_resumed_visit_keeps_its_cursor_through_several_crashes() -> None:
    store = MemoryCheckpointStore()
    with pytest.raises(Crashed):
        await run(Probe(numbers(1, 10), process=crash(4)), store)
    for _ in range(3):
        probe = Probe(numbers(1, 10), process=crash(3))
        with pytest.raises(Crashed):
            await machine(probe, store).resume_from("r")
        assert probe.opened == [2]
    assert len(await store.load_run("r")) == 5
    assert await machine(Probe(numbers(1, 10)), store).resume_from("r") == "done"


async def test_the_log_does_not_grow_with_windows(tmp_path: Any) -> None:
    """BR-71."""
    most = 0
    store = SqliteCheckpointStore(tmp_path / "runs.db", synchronous="NORMAL")

    async def flush(outputs: list[int]) -> None:
        nonlocal most
        if outputs[0] % 100 == 0:
            most = max(most, len(await store.load_run("r")))

    assert await run(Probe(numbers(1, 2000), window=Window(count=1), flush=flush), store) == "done"
    assert most == 2
    assert await store.load_run("r") == []


# -- what it refuses ----------------------------------------------------------------------------------------------------


async def failed_run(store: Any) -> Sequence[CheckpointRow]:
    with pytest.raises(TaskExecutionError):
        await run(Probe(numbers(1, 6), process=lambda item: 1 // (item != 4) and None), store)
    return list(await store.load_run("r"))


async def test_resume_needs_a_store_a_log_the_right_version_and_a_known_state() -> None:
    """BR-45."""
    store = MemoryCheckpointStore()
    rows = await failed_run(store)
    probe = Probe(numbers(1, 6))
    with pytest.raises(ConfigurationError, match="checkpoint_store"):
        await machine(probe).resume_from("r")
    with pytest.raises(CheckpointStoreError, match="no checkpoint rows for run 'other'"):
        await machine(probe, store).resume_from("other")
    with pytest.raises(WorkflowVersionMismatchError) as caught:
        await machine(probe, store, workflow_version=3).resume_from("r")
    assert (caught.value.stored, caught.value.expected) == (0, 3)
    renamed = Workflow[str](checkpoint_store=store).register("load", probe).add_exit_state("done")
    with pytest.raises(WorkflowError, match=r"'work'.*registered: load; exit states: done"):
        await renamed.resume_from("r")
    assert await store.load_run("r") == rows
    assert probe.opened == []
    aliased = Workflow[str](checkpoint_store=store, aliases={"work": "load"}).register("load", probe).add_exit_state("done")
    assert await aliased.resume_from("r") == "done"
    assert probe.opened == [2]


async def test_a_stored_cursor_that_cannot_be_read_is_an_error_and_never_none(tmp_path: Any) -> None:
    """BR-52, BR-68, BR-76."""
    import pickle
    import sqlite3
    from contextlib import closing

    path = tmp_path / "runs.db"
    for garbage in (b"\xff\x00", b"", b'"text"', "null", b"1.5", pickle.dumps(4), b'{"py/object": "os.system"}', b"[4]"):
        store = SqliteCheckpointStore(path)
        await failed_run(store)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("UPDATE cano_checkpoints SET blob = ? WHERE blob IS NOT NULL", (garbage,))
            before = connection.execute("SELECT * FROM cano_checkpoints").fetchall()
        probe = Probe(numbers(1, 6))
        with pytest.raises(CursorError, match="cursor of Probe cannot be read"):
            await machine(probe, store).resume_from("r")
        assert probe.opened == []
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT * FROM cano_checkpoints").fetchall() == before
        await store.clear("r")
        await store.close()


async def test_a_cursor_is_not_dropped_because_the_state_is_no_stream_any_more() -> None:
    store = MemoryCheckpointStore()
    rows = await failed_run(store)

    async def plain(ctx: Any) -> str:
        return "done"

    with pytest.raises(WorkflowError, match="what is registered there has none"):
        await machine(plain, store).resume_from("r")
    assert await store.load_run("r") == rows


async def test_a_fresh_run_never_resumes_by_accident() -> None:
    """BR-43."""
    store = MemoryCheckpointStore()
    rows = await failed_run(store)
    probe = Probe(numbers(1, 6))
    with pytest.raises(CheckpointConflictError, match="resume_from") as caught:
        await run(probe, store)
    assert not isinstance(caught.value, RunFencedError)
    assert probe.opened == []
    assert await store.load_run("r") == rows
    flow = machine(probe, store)
    assert await flow.orchestrate("work", workflow_id="r", if_exists="resume") == "done"
    assert probe.opened == [2]
    assert await flow.orchestrate("work", workflow_id="r", if_exists="resume") == "done"
    assert probe.opened == [2, None]
    await failed_run(store)
    assert await flow.orchestrate("work", workflow_id="r", if_exists="discard") == "done"
    assert probe.opened == [2, None, None]


@pytest.mark.parametrize("workflow_id", ["", "a\nb", "nul\0", "x" * 256, 5, "\ud800", "tab\t", "\x7f"])
async def test_a_bad_id_is_refused_before_anything(workflow_id: Any) -> None:
    store = MemoryCheckpointStore()
    flow = machine(Probe(numbers(1, 2)), store)
    for call in (flow.orchestrate("work", workflow_id=workflow_id), flow.resume_from(workflow_id)):
        with pytest.raises(ConfigurationError, match="workflow_id"):
            await call
    assert await store.list_runs() == []


@pytest.mark.parametrize("workflow_id", ["x'); DROP TABLE cano_checkpoints;--", "%", "_", "é", "a b", "x" * 255, "../../etc"])
async def test_odd_but_printable_ids_name_their_own_run_and_no_other(tmp_path: Any, workflow_id: str) -> None:
    """BR-74."""
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    flow = machine(Probe(numbers(1, 9), process=crash(4)), store)
    for name in (workflow_id, "other"):
        with pytest.raises(Crashed):
            await flow.orchestrate("work", workflow_id=name)
    assert await machine(Probe(numbers(1, 9)), store).resume_from(workflow_id) == "done"
    assert await store.list_runs() == ["other"]
    await store.close()


async def test_a_store_needs_an_id() -> None:
    with pytest.raises(ConfigurationError, match="workflow_id"):
        await machine(Probe(numbers(1, 2)), MemoryCheckpointStore()).orchestrate("work")


# -- who may ------------------------------------------------------------------------------------------------------------


async def test_of_several_resumers_exactly_one_runs_and_the_others_are_told() -> None:
    for store in (MemoryCheckpointStore(), Unclaimed()):
        await failed_run(store)
        probe = Probe(numbers(1, 6), process=lambda item: asyncio.sleep(0.001))
        flow = machine(probe, store)
        results = await asyncio.gather(*(flow.resume_from("r") for _ in range(8)), return_exceptions=True)
        assert results.count("done") == 1
        refused = RunFencedError if isinstance(store, Unclaimed) else RunOwnedError
        assert sum(isinstance(result, refused) for result in results) == 7
        assert await store.list_runs() == []
        if refused is RunOwnedError:
            assert probe.opened == [2]
            assert probe.items == [3, 4, 5, 6]


async def test_a_live_run_is_owned_and_not_even_discarded() -> None:
    store, gate = MemoryCheckpointStore(), asyncio.Event()

    async def wait(ctx: Any) -> str:
        await gate.wait()
        return "done"

    flow = machine(wait, store)
    running = asyncio.create_task(flow.orchestrate("work", workflow_id="r"))
    while not await store.list_runs():
        await asyncio.sleep(0)
    for call in (
        flow.resume_from("r"),
        flow.orchestrate("work", workflow_id="r"),
        flow.orchestrate("work", workflow_id="r", if_exists="discard"),
        flow.orchestrate("work", workflow_id="r", if_exists="resume"),
    ):
        with pytest.raises(RunOwnedError):
            await call
    gate.set()
    assert await running == "done"


async def test_a_run_that_was_overtaken_stops_at_once_and_leaves_the_log_alone() -> None:
    store = Unclaimed()

    async def overtake(outputs: list[int]) -> None:
        if outputs == [3, 4]:
            row = CheckpointRow(2, RowKind.STATE_ENTRY, "work", "Probe")
            await store.append("r", row)

    probe = Probe(numbers(1, 9), flush=overtake)
    with pytest.raises(RunFencedError) as caught:
        await run(probe, store)
    assert caught.value.category == "checkpoint_store"
    assert probe.items == [1, 2, 3, 4]
    assert probe.closed == []
    assert [row.sequence for row in await store.load_run("r")] == [0, 1, 2]


async def test_a_late_append_of_an_abandoned_owner_cannot_land() -> None:
    """BR-70."""
    store = Unclaimed()
    rows = await failed_run(store)
    with pytest.raises(Crashed):
        await machine(Probe(numbers(1, 9), process=crash(8)), store).resume_from("r")
    with pytest.raises(CheckpointConflictError):
        await store.append("r", CheckpointRow(rows[-1].sequence + 1, RowKind.STEP_CURSOR, "work", "Probe", blob=b"4"))
    assert await cursors(store) == ["6"]


async def test_an_unclaimed_store_that_fails_surfaces_its_error_and_the_log_stays() -> None:
    class Broken(MemoryCheckpointStore):
        broken = False

        async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
            if self.broken:
                raise OSError("secret path")
            return await super().load_run(workflow_id)

        async def clear(self, workflow_id: str) -> None:
            raise OSError("no")

    store = Broken()
    assert await run(Probe(numbers(1, 3)), store) == "done"
    assert await store.list_runs() == ["r"]
    store.broken = True
    with pytest.raises(CheckpointStoreError) as caught:
        await machine(Probe(numbers(1, 3)), store).resume_from("r")
    assert isinstance(caught.value.__cause__, OSError)
    store.broken = False
    assert await machine(Probe(numbers(1, 3)), store).resume_from("r") == "done"


@dataclass(frozen=True)
class Position:
    file: str
    line: int


async def test_a_declared_cursor_comes_back_as_what_it_was() -> None:
    opened: list[Any] = []

    class Lines(StreamTask[str, Position, int, Position]):
        def open(self, ctx: Any, cursor: Position | None) -> Any:
            opened.append(cursor)
            return [Position("a", n) for n in range(0 if cursor is None else cursor.line + 1, 4)]

        async def process_item(self, ctx: Any, item: Position) -> tuple[int, Position]:
            if item.line == 2 and len(opened) == 1:
                raise Crashed
            return item.line, item

        async def flush_window(self, ctx: Any, outputs: list[int]) -> None:
            pass

        async def on_close(self, ctx: Any, reason: Any) -> str:
            return "done"

    store = MemoryCheckpointStore()
    with pytest.raises(Crashed):
        await run(Lines(), store)
    assert await machine(Lines(), store).resume_from("r") == "done"
    assert opened == [None, Position("a", 1)]


async def test_damaged_rows_of_a_users_store_are_an_error() -> None:
    class Odd(MemoryCheckpointStore):
        rows: Any = []

        async def load_run(self, workflow_id: str) -> Any:
            return self.rows

    for rows in ([{"sequence": 0}], [CheckpointRow(0, RowKind.STATE_ENTRY, "work", "x")] * 2):
        store = Odd()
        store.rows = rows
        with pytest.raises(CheckpointStoreError, match="damaged"):
            await machine(Probe(numbers(1, 3)), store).resume_from("r")


async def test_rows_of_a_store_that_does_not_sort_are_sorted() -> None:
    class Unsorted(MemoryCheckpointStore):
        async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
            return (await super().load_run(workflow_id))[::-1]

    store = Unsorted()
    with pytest.raises(Crashed):
        await run(Probe(numbers(1, 9), process=crash(6)), store)
    probe = Probe(numbers(1, 9))
    assert await machine(probe, store).resume_from("r") == "done"
    assert probe.opened == [4]
