"""The contract of checkpoint stores: both bundled stores keep it, and every way to break it is caught by its number."""

from __future__ import annotations

import asyncio
import unicodedata
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cano import (
    CheckpointConflictError,
    CheckpointRow,
    CheckpointStoreError,
    MemoryCheckpointStore,
    RowKind,
    RunOwnedError,
    SqliteCheckpointStore,
)
from cano.testing import checkpoint_store_contract
from cano.testing.contract import CLAUSES, Clause
from tests.recovery.logs import PRELUDE, child, entry


class Plain:
    """A right store without options, which gives the event loop a turn before and after each step. Those below break it."""

    def __init__(self) -> None:
        self.logs: dict[str, list[CheckpointRow]] = {}

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        await asyncio.sleep(0)
        self.check(workflow_id, row)
        self.put(workflow_id, row)

    def check(self, workflow_id: str, row: CheckpointRow) -> None:
        log = self.logs.get(workflow_id)
        if row.sequence != (log[-1].sequence + 1 if log else 0):
            raise CheckpointConflictError("conflict")

    def put(self, workflow_id: str, row: CheckpointRow) -> None:
        self.drop(workflow_id, row)
        self.logs.setdefault(workflow_id, []).append(replace(row, replaces=None))

    def drop(self, workflow_id: str, row: CheckpointRow) -> None:
        log = self.logs.get(workflow_id, [])
        log[:] = [old for old in log if old.sequence != row.replaces or old.kind is not RowKind.STEP_CURSOR]

    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        await asyncio.sleep(0)
        return list(self.logs.get(workflow_id, []))

    async def clear(self, workflow_id: str) -> None:
        await asyncio.sleep(0)
        self.logs.pop(workflow_id, None)


class GivesNone(Plain):
    async def load_run(self, workflow_id: str) -> Any:
        return self.logs.get(workflow_id)


class RaisesOnUnknown(Plain):
    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        return list(self.logs[workflow_id])


class SortsAsText(Plain):
    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        return sorted(self.logs.get(workflow_id, []), key=lambda row: str(row.sequence))


class TakesEmptyForNone(Plain):
    def put(self, workflow_id: str, row: CheckpointRow) -> None:
        super().put(workflow_id, replace(row, blob=row.blob or None))


class StoresText(Plain):
    def put(self, workflow_id: str, row: CheckpointRow) -> None:
        data = None if row.data is None else row.data.decode(errors="replace").encode()
        super().put(workflow_id, replace(row, data=data))


class GivesBytearrays(Plain):
    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        rows = await super().load_run(workflow_id)
        return [replace(row, blob=None if row.blob is None else bytearray(row.blob)) for row in rows]  # type: ignore[arg-type]  # a store that does it wrong


class GivesPlainKinds(Plain):
    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        return [replace(row, kind=str(row.kind)) for row in await super().load_run(workflow_id)]  # type: ignore[arg-type]  # a store that does it wrong


class LosesVersions(Plain):
    def put(self, workflow_id: str, row: CheckpointRow) -> None:
        super().put(workflow_id, replace(row, workflow_version=row.workflow_version & 0xFFFFFFFF))


class GivesItsOwnList(Plain):
    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        return self.logs.get(workflow_id, [])


class TakesAnything(Plain):
    def check(self, workflow_id: str, row: CheckpointRow) -> None:
        pass


class CountsRows(Plain):
    def check(self, workflow_id: str, row: CheckpointRow) -> None:
        if row.sequence != len(self.logs.get(workflow_id, [])):
            raise CheckpointConflictError("conflict")


class TakesRepetitions(Plain):
    def check(self, workflow_id: str, row: CheckpointRow) -> None:
        if row not in self.logs.get(workflow_id, [])[-1:]:
            super().check(workflow_id, row)

    def put(self, workflow_id: str, row: CheckpointRow) -> None:
        if row not in self.logs.get(workflow_id, [])[-1:]:
            super().put(workflow_id, row)


class RefusesWithAnotherError(Plain):
    def check(self, workflow_id: str, row: CheckpointRow) -> None:
        with suppress(CheckpointConflictError):
            return super().check(workflow_id, row)
        raise CheckpointStoreError("no")


class WritesWhatItRefuses(Plain):
    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        log = self.logs.setdefault(workflow_id, [])
        refused = row.sequence != (log[-1].sequence + 1 if log else 0)
        self.put(workflow_id, row)
        log.sort(key=lambda old: old.sequence)
        if refused:
            raise CheckpointConflictError("conflict")


class WritesBehind(Plain):
    def put(self, workflow_id: str, row: CheckpointRow) -> None:
        asyncio.get_running_loop().call_later(0.001, super().put, workflow_id, row)


class KeepsReplaced(Plain):
    def drop(self, workflow_id: str, row: CheckpointRow) -> None:
        pass


class NeedsWhatItReplaces(Plain):
    def drop(self, workflow_id: str, row: CheckpointRow) -> None:
        if row.replaces is not None and row.replaces not in [old.sequence for old in self.logs.get(workflow_id, [])]:
            raise KeyError(row.replaces)
        super().drop(workflow_id, row)


class DropsInOtherRuns(Plain):
    def drop(self, workflow_id: str, row: CheckpointRow) -> None:
        for other in self.logs:
            super().drop(other, row)


class DropsAnyKind(Plain):
    def drop(self, workflow_id: str, row: CheckpointRow) -> None:
        log = self.logs.get(workflow_id, [])
        log[:] = [old for old in log if old.sequence != row.replaces]


class DropsAllButEntries(Plain):
    def drop(self, workflow_id: str, row: CheckpointRow) -> None:
        log = self.logs.get(workflow_id, [])
        log[:] = [old for old in log if old.sequence != row.replaces or old.kind is RowKind.STATE_ENTRY]


class ReplacesInTwoSteps(Plain):
    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        self.check(workflow_id, row)
        self.put(workflow_id, replace(row, replaces=None))
        await asyncio.sleep(0)
        self.drop(workflow_id, row)


class DropsBeforeItRefuses(Plain):
    def check(self, workflow_id: str, row: CheckpointRow) -> None:
        self.drop(workflow_id, row)
        super().check(workflow_id, row)


class ClearsByPrefix(Plain):
    async def clear(self, workflow_id: str) -> None:
        self.logs = {key: log for key, log in self.logs.items() if not key.startswith(workflow_id)}


class ClearsEverything(Plain):
    async def clear(self, workflow_id: str) -> None:
        self.logs.clear()


class ClearsOnlyTheKnown(Plain):
    async def clear(self, workflow_id: str) -> None:
        del self.logs[workflow_id]


class GoesOnCountingAfterAClear(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.cleared: dict[str, int] = {}

    def check(self, workflow_id: str, row: CheckpointRow) -> None:
        log = self.logs.get(workflow_id)
        if row.sequence != (log[-1].sequence + 1 if log else self.cleared.get(workflow_id, 0)):
            raise CheckpointConflictError("conflict")

    async def clear(self, workflow_id: str) -> None:
        if log := self.logs.pop(workflow_id, None):
            self.cleared[workflow_id] = log[-1].sequence + 1


class Keyed(Plain):
    """A store that does not keep ids as they are."""

    key: Callable[[str], str]

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        await super().append(type(self).key(workflow_id), row)

    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        return await super().load_run(type(self).key(workflow_id))

    async def clear(self, workflow_id: str) -> None:
        await super().clear(type(self).key(workflow_id))


class FoldsCase(Keyed):
    key = str.lower


class Trims(Keyed):
    key = str.strip


class Normalizes(Keyed):
    key = lambda text: unicodedata.normalize("NFC", text)  # noqa: E731 - as short as the clause


class CutsLongIds(Keyed):
    key = lambda text: text[:128]  # noqa: E731 - as short as the clause


class TakesWildcards(Plain):
    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        like = workflow_id.rstrip("%")
        wild = workflow_id.endswith("%")
        return [row for key, log in self.logs.items() if key == workflow_id or (wild and key.startswith(like)) for row in log]


class ChoosesOutOfTheId(Plain):
    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        if "'" in workflow_id:
            raise SyntaxError("unrecognized token")
        await super().append(workflow_id, row)


class ChecksThenWaits(Plain):
    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        self.check(workflow_id, row)
        await asyncio.sleep(0)
        self.put(workflow_id, row)


class IsNotConcurrent(Plain):
    busy = False

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        if self.busy:
            raise RuntimeError("another operation is in progress")
        self.busy = True
        try:
            await super().append(workflow_id, row)
        finally:
            self.busy = False


class LandsLater(Plain):
    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        self.check(workflow_id, row)
        self.late = asyncio.ensure_future(self.land(workflow_id, row))
        await asyncio.shield(self.late)

    async def land(self, workflow_id: str, row: CheckpointRow) -> None:
        for _ in range(12):
            await asyncio.sleep(0)
        self.check(workflow_id, row)
        self.put(workflow_id, row)


class CutInTwo(Plain):
    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        self.check(workflow_id, row)
        async with self.lock(workflow_id):
            self.check(workflow_id, row)
            self.drop(workflow_id, row)
            await asyncio.sleep(0)
            self.put(workflow_id, row)

    async def load_run(self, workflow_id: str) -> list[CheckpointRow]:
        async with self.lock(workflow_id):
            return await super().load_run(workflow_id)

    def lock(self, workflow_id: str) -> asyncio.Lock:
        self.locks: dict[str, asyncio.Lock] = getattr(self, "locks", {})
        return self.locks.setdefault(workflow_id, asyncio.Lock())


class SwallowsCancellation(Plain):
    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        with suppress(asyncio.CancelledError):
            await super().append(workflow_id, row)


class ClaimsNothing(Plain):
    @asynccontextmanager
    async def claim(self, workflow_id: str) -> AsyncIterator[None]:
        yield


class Claims(Plain):
    """A store with claims. Those below break them."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()

    def take(self, workflow_id: str) -> None:
        if workflow_id in self.held:
            raise RunOwnedError("held")
        self.held.add(workflow_id)

    @asynccontextmanager
    async def claim(self, workflow_id: str) -> AsyncIterator[None]:
        self.take(workflow_id)
        try:
            yield
        finally:
            self.held.discard(workflow_id)


class ClaimsAreForOneRun(Claims):
    def take(self, workflow_id: str) -> None:
        if self.held:
            raise RunOwnedError("held")
        super().take(workflow_id)


class ClaimsSurviveErrors(Claims):
    @asynccontextmanager
    async def claim(self, workflow_id: str) -> AsyncIterator[None]:
        self.take(workflow_id)
        yield
        self.held.discard(workflow_id)


class ClaimsSurviveCancellation(Claims):
    @asynccontextmanager
    async def claim(self, workflow_id: str) -> AsyncIterator[None]:
        self.take(workflow_id)
        try:
            yield
        except asyncio.CancelledError:
            raise
        except Exception:
            self.held.discard(workflow_id)
            raise
        self.held.discard(workflow_id)


class ClaimsEndWithARefusal(Claims):
    @asynccontextmanager
    async def claim(self, workflow_id: str) -> AsyncIterator[None]:
        try:
            self.take(workflow_id)
            yield
        finally:
            self.held.discard(workflow_id)


class ClaimsLockTheLog(Claims):
    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        if workflow_id in self.held:
            raise RunOwnedError("held")
        await super().append(workflow_id, row)


class ClaimsRaiseAnotherError(Claims):
    def take(self, workflow_id: str) -> None:
        if workflow_id in self.held:
            raise CheckpointConflictError("held")
        super().take(workflow_id)


class Staged:
    connection: Any = None

    def __init__(self, store: Plain, workflow_id: str) -> None:
        self.store = store
        self.workflow_id = workflow_id
        self.before = list(store.logs.get(workflow_id, []))

    async def append(self, row: CheckpointRow) -> None:
        await self.store.append(self.workflow_id, row)

    def undo(self) -> None:
        self.store.logs[self.workflow_id] = self.before


class Transacts(Plain):
    """A store with transactions. Those below break them."""

    @asynccontextmanager
    async def transaction(self, workflow_id: str) -> AsyncIterator[Any]:
        staged = Staged(self, workflow_id)
        try:
            yield staged
        except BaseException:
            staged.undo()
            raise


class NeverRollsBack(Transacts):
    @asynccontextmanager
    async def transaction(self, workflow_id: str) -> AsyncIterator[Any]:
        yield Staged(self, workflow_id)


class RollsBackOnlyExceptions(Transacts):
    @asynccontextmanager
    async def transaction(self, workflow_id: str) -> AsyncIterator[Any]:
        staged = Staged(self, workflow_id)
        try:
            yield staged
        except Exception:
            staged.undo()
            raise


class SwallowsTheError(Transacts):
    @asynccontextmanager
    async def transaction(self, workflow_id: str) -> AsyncIterator[Any]:
        with suppress(Exception):
            async with super().transaction(workflow_id) as staged:
                yield staged


class ReplacesTheError(Transacts):
    @asynccontextmanager
    async def transaction(self, workflow_id: str) -> AsyncIterator[Any]:
        try:
            async with super().transaction(workflow_id) as staged:
                yield staged
        except KeyError as error:
            raise CheckpointStoreError("rolled back") from error


class NeverCommits(Transacts):
    @asynccontextmanager
    async def transaction(self, workflow_id: str) -> AsyncIterator[Any]:
        staged = Staged(self, workflow_id)
        yield staged
        staged.undo()


class HasNoConnection(Transacts):
    @asynccontextmanager
    async def transaction(self, workflow_id: str) -> AsyncIterator[Any]:
        yield object()


class ComparesNothingInATransaction(Transacts):
    @asynccontextmanager
    async def transaction(self, workflow_id: str) -> AsyncIterator[Any]:
        class Loose(Staged):
            async def append(self, row: CheckpointRow) -> None:
                self.store.put(self.workflow_id, row)

        staged = Loose(self, workflow_id)
        try:
            yield staged
        except BaseException:
            staged.undo()
            raise


BROKEN: dict[int, list[type[Plain]]] = {
    1: [GivesNone, RaisesOnUnknown],
    2: [SortsAsText, TakesEmptyForNone, StoresText, GivesBytearrays, GivesPlainKinds, LosesVersions, GivesItsOwnList],
    3: [TakesAnything, CountsRows, TakesRepetitions, RefusesWithAnotherError, WritesWhatItRefuses],
    4: [WritesBehind],
    5: [KeepsReplaced, NeedsWhatItReplaces, DropsInOtherRuns, DropsAnyKind, DropsAllButEntries, ReplacesInTwoSteps],
    6: [DropsBeforeItRefuses],
    7: [ClearsByPrefix, ClearsEverything, ClearsOnlyTheKnown, GoesOnCountingAfterAClear],
    8: [FoldsCase, Trims, Normalizes, CutsLongIds, TakesWildcards, ChoosesOutOfTheId],
    9: [ChecksThenWaits, IsNotConcurrent],
    10: [LandsLater, CutInTwo, SwallowsCancellation],
    11: [
        ClaimsNothing,
        ClaimsAreForOneRun,
        ClaimsSurviveErrors,
        ClaimsSurviveCancellation,
        ClaimsEndWithARefusal,
        ClaimsLockTheLog,
        ClaimsRaiseAnotherError,
    ],
    12: [
        NeverRollsBack,
        RollsBackOnlyExceptions,
        SwallowsTheError,
        ReplacesTheError,
        NeverCommits,
        HasNoConnection,
        ComparesNothingInATransaction,
    ],
}


@pytest.mark.parametrize("clause", CLAUSES, ids=str)
@pytest.mark.asyncio
async def test_the_memory_store_keeps_every_clause(clause: Clause, nothing_left: None) -> None:
    await clause.check(MemoryCheckpointStore())


@pytest.mark.parametrize("synchronous", ["FULL", "NORMAL"])
@pytest.mark.parametrize("clause", CLAUSES, ids=str)
@pytest.mark.asyncio
async def test_the_sqlite_store_keeps_every_clause(clause: Clause, synchronous: Any, tmp_path: Path, nothing_left: None) -> None:
    await clause.check(lambda: SqliteCheckpointStore(tmp_path / "runs.db", synchronous=synchronous))


@pytest.mark.asyncio
async def test_one_sqlite_store_keeps_them_all_and_nothing_of_it_is_left(tmp_path: Path, nothing_left: None) -> None:
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    await store.append("mine", entry(0))
    await checkpoint_store_contract(store)
    assert await store.list_runs() == ["mine"]
    assert await store.load_run("mine") == [entry(0)]
    await store.close()


@pytest.mark.parametrize("store", [Plain, Claims, Transacts])
@pytest.mark.asyncio
async def test_a_right_store_passes_with_or_without_options(store: type[Plain], nothing_left: None) -> None:
    await checkpoint_store_contract(store)


@pytest.mark.parametrize(
    ("number", "broken"),
    [pytest.param(number, broken, id=f"{number}-{broken.__name__}") for number, stores in BROKEN.items() for broken in stores],
)
@pytest.mark.asyncio
async def test_a_store_that_breaks_a_clause_is_told_which(number: int, broken: type[Plain]) -> None:
    with pytest.raises(AssertionError) as caught:
        await CLAUSES[number - 1].check(broken)
    assert str(caught.value).startswith(f"clause {number} of the contract of checkpoint stores is broken: ")
    assert CLAUSES[number - 1].text in str(caught.value)
    assert broken.__name__ in str(caught.value)
    with pytest.raises(AssertionError, match="of the contract of checkpoint stores is broken"):
        await checkpoint_store_contract(broken)


def test_every_clause_is_broken_by_some_store_and_has_its_text_from_the_contract() -> None:
    assert [clause.number for clause in CLAUSES] == sorted(BROKEN) == list(range(1, 13))
    assert CLAUSES[0].text == "`load_run` of an id that was never written gives []."
    assert CLAUSES[2].text.endswith("Otherwise it raises `CheckpointConflictError` and writes nothing.")
    assert CLAUSES[11].text.endswith("or not at all if it raises.")


@pytest.mark.asyncio
async def test_a_store_that_hangs_breaks_the_clause(monkeypatch: pytest.MonkeyPatch, nothing_left: None) -> None:
    class Hangs(Plain):
        async def clear(self, workflow_id: str) -> None:
            if workflow_id not in self.logs:
                await asyncio.Event().wait()
            await super().clear(workflow_id)

    monkeypatch.setattr("cano.testing.contract._PATIENCE", 0.1)
    with pytest.raises(AssertionError, match="clause 7 .* it took longer"):
        await CLAUSES[6].check(Hangs)


@pytest.mark.asyncio
async def test_it_takes_a_store_or_whatever_gives_one_and_closes_what_it_was_given() -> None:
    events: list[str] = []

    class Closing(MemoryCheckpointStore):
        def __init__(self) -> None:
            super().__init__()
            events.append("made")

        async def close(self) -> None:
            events.append("closed")

    class Entered(Closing):
        async def __aenter__(self) -> Entered:
            events.append("entered")
            return self

        async def __aexit__(self, *details: object) -> None:
            events.append("left")

    async def later() -> Closing:
        return Closing()

    @asynccontextmanager
    async def within() -> AsyncIterator[Closing]:
        store = Closing()
        yield store
        events.append("left")

    for given, expected in [
        (Closing, ["made", "closed"]),
        (lambda: Closing(), ["made", "closed"]),
        (later, ["made", "closed"]),
        (within, ["made", "left"]),
        (Entered, ["made", "entered", "left"]),
    ]:
        await checkpoint_store_contract(given)
        assert events == expected * len(CLAUSES)
        events.clear()
    await checkpoint_store_contract(Closing())
    assert events == ["made"]


@pytest.mark.parametrize("given", [object(), None, lambda: None, dict, lambda: {"append": 1}])
@pytest.mark.asyncio
async def test_what_neither_is_nor_gives_a_store_is_refused(given: Any) -> None:
    with pytest.raises(TypeError, match="a checkpoint store has append, load_run and clear"):
        await checkpoint_store_contract(given)


@pytest.mark.asyncio
async def test_a_broken_clause_leaves_nothing_behind_and_names_what_was_seen() -> None:
    store = RefusesWithAnotherError()
    await store.append("mine", entry(0))
    with pytest.raises(AssertionError, match=r"clause 3 .*: it raised CheckpointStoreError: no") as caught:
        await checkpoint_store_contract(store)
    assert isinstance(caught.value.__cause__, CheckpointStoreError)
    assert list(store.logs) == ["mine"]


def test_it_checks_as_much_when_python_leaves_assertions_and_docstrings_out() -> None:
    script = """
from cano.testing import checkpoint_store_contract
class Loose(MemoryCheckpointStore):
    async def append(self, workflow_id, row):
        try:
            await super().append(workflow_id, row)
        except CheckpointConflictError:
            pass
if sys.argv[1] == "again":
    os.execv(sys.executable, [sys.executable, "-OO", "-c", sys.argv[2], "", sys.argv[2]])
try:
    asyncio.run(checkpoint_store_contract(Loose()))
except AssertionError as error:
    say(sys.flags.optimize, str(error).splitlines()[0])
"""

    with child(script, "again", PRELUDE + script) as started:
        out = started.end_well()
    assert out.startswith("2 clause 3 of the contract of checkpoint stores is broken: on an empty log an append of sequence 1")
