"""What each clause of the contract of a checkpoint store demands: one function each, in the order of the clauses.

They raise AssertionError themselves, so that `python -O` checks as much.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any
from uuid import uuid4

from cano.errors import CheckpointConflictError, RunOwnedError
from cano.recovery.checkpoint import CheckpointRow, RowKind
from cano.recovery.store import CheckpointStore

_BYTES = (None, b"", b"0", b"\x00", b"\xff\xfe\x80", b"'; --", bytes(range(256)), b"\r\n", b"x" * 1_000_000)
_LOOKALIKES = (
    *("{}", "{} ", " {}", "{}a", "{}A", "{}0", "{}00", "{}\u00e9", "{}e\u0301", "{}ß", "{}ss", "{}\U0001f600"),
    *("{}%", "%{}", "{}_", "{}?", "{}*", "{}%s", "{}$1", "{}:x", "{}\\", "{}\\'", "{}'", "''{}", '{}"', "{}/../x"),
    *("{}; DROP TABLE x; --", "{}'); DROP TABLE x; --", "{}" + "x" * 200, "{}" + "x" * 199 + "y"),
)
_TURNS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 50, 80, 130, 210, 340, 550)
_AT_ONCE = 5.0
_LATER = 0.05


class _Crash(BaseException):
    pass


class Bench:
    """A store to be checked, and the ids used on it."""

    def __init__(self, store: CheckpointStore) -> None:
        self.store: Any = store
        self._ids: list[str] = []

    def id(self, pattern: str = "{}") -> str:
        """A new workflow id."""
        return self.ids([pattern])[0]

    def ids(self, patterns: Iterable[str]) -> list[str]:
        """New workflow ids that differ only as the patterns do."""
        unique = f"contract-{uuid4().hex}"
        made = [pattern.format(unique) for pattern in patterns]
        self._ids += made
        return made

    async def clear(self) -> None:
        """Remove the logs of all these ids as far as the store can; clause 7 tells if it cannot."""
        for workflow_id in self._ids:
            with suppress(Exception):
                await self.store.clear(workflow_id)

    async def fill(self, workflow_id: str, *rows: CheckpointRow) -> None:
        """Append rows, each of which has to be taken."""
        for row in rows:
            await self.store.append(workflow_id, row)

    async def holds(self, workflow_id: str, *rows: CheckpointRow, when: str) -> None:
        """Demand that the log is exactly these rows."""
        found = await self.store.load_run(workflow_id)
        _demand(list(found) == list(rows), f"{when} the log holds {_shown(found)}, not {_shown(rows)}")

    async def refuses(self, workflow_id: str, row: CheckpointRow, *, when: str) -> None:
        """Demand that an append is refused as a conflict."""
        try:
            await self.store.append(workflow_id, row)
        except CheckpointConflictError:
            return
        raise AssertionError(f"{when} an append of sequence {row.sequence} was taken")


def _demand(holds: bool, seen: str) -> None:
    if not holds:
        raise AssertionError(seen)


def _shown(rows: Iterable[Any]) -> str:
    return "[" + ", ".join(f"{row.sequence} {row.kind}" if isinstance(row, CheckpointRow) else repr(row) for row in rows) + "]"


def _entry(sequence: int, state: str = "STATE", **fields: Any) -> CheckpointRow:
    return CheckpointRow(sequence, RowKind.STATE_ENTRY, state, "task", **fields)


def _cursor(sequence: int, **fields: Any) -> CheckpointRow:
    return CheckpointRow(sequence, RowKind.STEP_CURSOR, "STATE", "task", **{"blob": b"%d" % sequence, **fields})


async def unknown_ids_have_no_rows(bench: Bench) -> None:
    """1: `load_run` of an id that was never written gives []."""
    found = await bench.store.load_run(bench.id())
    _demand(isinstance(found, list) and not found, f"an unknown id gives {found!r}")


async def rows_come_back_as_they_were(bench: Bench) -> None:
    """2: rows come back equal and in order, in a list of the caller's own."""
    workflow_id = bench.id()
    rows = [
        CheckpointRow(sequence, kind, f"state {kind}", "tâche ☃ '\"%_", blob=blob, data=data, next_state=next_state)
        for sequence, (kind, blob, data, next_state) in enumerate(
            [(kind, b"{}", None, None) for kind in RowKind]
            + [(RowKind.STEP_CURSOR, blob, None, None) for blob in _BYTES]
            + [(RowKind.STATE_ENTRY, None, data, None) for data in _BYTES]
            + [(RowKind.COMPENSATION, None, None, next_state) for next_state in ("", "NULL", "naïve", "  x ")]
        )
    ]
    rows.append(_entry(len(rows), "", visit=2**31, workflow_version=2**40))
    await bench.fill(workflow_id, *rows)
    found = await bench.store.load_run(workflow_id)
    _demand(isinstance(found, list), f"the rows came as a {type(found).__name__}")
    _demand(
        [row.sequence for row in found] == list(range(len(rows))), f"the rows are not ascending and complete: {_shown(found)}"
    )
    for written, read in zip(rows, found, strict=True):
        _demand(read == written, f"row {written!r} with blob {_size(written.blob)} came back as {read!r} with {_size(read.blob)}")
        for name in ("kind", "state", "blob", "next_state", "data"):
            kinds = type(getattr(read, name)), type(getattr(written, name))
            _demand(kinds[0] is kinds[1], f"the {name} of row {written!r} came back as {kinds[0].__name__}")
    await bench.fill(workflow_id, following := _entry(len(rows)))
    _demand(found == rows, "an append has changed a list that load_run had given")
    found.clear()
    await bench.holds(workflow_id, *rows, following, when="after a list that load_run had given was cleared")
    found = await bench.store.load_run(workflow_id)
    await bench.store.clear(workflow_id)
    _demand(found == [*rows, following], "a clear has changed a list that load_run had given")


def _size(blob: bytes | None) -> str:
    return "None" if blob is None else f"{type(blob).__name__} of {len(blob)}"


async def append_is_a_compare_and_set(bench: Bench) -> None:
    """3: only the next sequence is taken, counted from the last stored row and not by how many there are."""
    workflow_id = bench.id()
    for sequence in (1, 7, -1):
        await bench.refuses(workflow_id, _entry(sequence), when="on an empty log")
    await bench.holds(workflow_id, when="after refused appends")
    first, second, third, fourth = _entry(0), _cursor(1), _cursor(2, replaces=1), _cursor(3, replaces=2)
    await bench.fill(workflow_id, first)
    for sequence in (0, 2, -1):
        await bench.refuses(workflow_id, _entry(sequence, "OTHER"), when="after row 0")
    await bench.refuses(workflow_id, first, when="as a repetition of row 0")
    await bench.holds(workflow_id, first, when="after refused appends")
    await bench.fill(workflow_id, second, third)
    for sequence in (1, 2, 4):
        await bench.refuses(workflow_id, _entry(sequence), when="after row 2, which replaced row 1,")
    await bench.fill(workflow_id, fourth)
    await bench.holds(workflow_id, first, fourth, when="after row 3, which replaced row 2,")


async def a_row_is_there_when_append_returns(bench: Bench) -> None:
    """4: as far as it can be seen without killing the process."""
    workflow_id = bench.id()
    rows = [_entry(sequence) for sequence in range(10)]
    for count, row in enumerate(rows, start=1):
        await bench.fill(workflow_id, row)
        await bench.holds(workflow_id, *rows[:count], when=f"directly after append {count}")


async def a_replaced_cursor_is_dropped_with_the_append(bench: Bench) -> None:
    """5: an older cursor row is dropped, nothing else is, and nobody sees both or neither."""
    workflow_id, other = bench.id(), bench.id()
    entry, step = _entry(0), CheckpointRow(1, RowKind.COMPENSATION, "STATE", "task", blob=b"output")
    await bench.fill(workflow_id, entry, step)
    await bench.fill(other, _entry(0), _entry(1), _cursor(2))
    for sequence, replaces in ((2, None), (3, 99), (4, 1000), (5, None), (6, -1)):
        await bench.fill(workflow_id, _cursor(sequence, replaces=replaces))
    kept = [_cursor(sequence) for sequence in range(2, 7)]
    await bench.holds(workflow_id, entry, step, *kept, when="after cursors that replace no older cursor")
    await bench.fill(workflow_id, _cursor(7, replaces=2), _entry(8, replaces=3))
    await bench.holds(workflow_id, entry, step, *kept[2:], _cursor(7), _entry(8), when="after rows that replace 2 and 3")
    await bench.holds(other, _entry(0), _entry(1), _cursor(2), when="in another run")
    await _replaces_cursors_only(bench)
    await _replaces_at_once(bench)


async def _replaces_cursors_only(bench: Bench) -> None:
    for kind in RowKind:
        if kind is not RowKind.STEP_CURSOR:
            workflow_id, row = bench.id(), CheckpointRow(0, kind, "STATE", "task", blob=b"{}")
            await bench.fill(workflow_id, row, _cursor(1, replaces=0))
            await bench.holds(workflow_id, row, _cursor(1), when=f"after a cursor that names a row of kind {kind}")


async def _replaces_at_once(bench: Bench) -> None:
    workflow_id = bench.id()
    await bench.fill(workflow_id, _entry(0), _cursor(1))

    async def write() -> None:
        for sequence in range(2, 30):
            await bench.fill(workflow_id, _cursor(sequence, replaces=sequence - 1))

    writing = asyncio.ensure_future(write())
    try:
        while not writing.done():
            found = await bench.store.load_run(workflow_id)
            _demand(len(found) == 2, f"a reader saw a cursor and the one it replaces, or neither: {_shown(found)}")
            await asyncio.sleep(0)
    finally:
        writing.cancel()
        await asyncio.wait((writing,))
    writing.result()


async def a_refused_append_drops_nothing(bench: Bench) -> None:
    """6: `replaces` of a row that is refused has no effect."""
    workflow_id = bench.id()
    await bench.fill(workflow_id, _entry(0), _cursor(1))
    for sequence in (0, 1, 3):
        await bench.refuses(workflow_id, _cursor(sequence, replaces=1), when="after row 1")
        await bench.holds(workflow_id, _entry(0), _cursor(1), when=f"after a refused append of {sequence} that replaces 1")


async def clear_forgets_one_run(bench: Bench) -> None:
    """7: one and no other; and it is idempotent."""
    unknown = bench.id()
    await bench.store.clear(unknown)
    await bench.holds(unknown, when="after a clear of an unknown id")
    one, longer, *rest = bench.ids(["{}", "{}-longer", "longer-{}", "{}%"])
    for workflow_id in (one, longer, *rest):
        await bench.fill(workflow_id, _entry(0), _cursor(1))
    await bench.store.clear(one)
    await bench.store.clear(one)
    await bench.holds(one, when="after a clear")
    for workflow_id in (longer, *rest):
        await bench.holds(workflow_id, _entry(0), _cursor(1), when="after a clear of another id")
    await bench.refuses(one, _entry(2), when="after a clear")
    await bench.fill(one, _entry(0, "AGAIN"))
    await bench.holds(one, _entry(0, "AGAIN"), when="begun again after a clear")


async def ids_are_compared_exactly(bench: Bench) -> None:
    """8: no wildcard, no case folding, no trimming, no meaning in quotes."""
    ids = bench.ids(_LOOKALIKES)
    for number, workflow_id in enumerate(ids):
        await bench.fill(workflow_id, _entry(0, f"of {number}"))
    for number, workflow_id in enumerate(ids):
        await bench.holds(workflow_id, _entry(0, f"of {number}"), when=f"under the id {workflow_id!r}")
    for number, workflow_id in enumerate(ids):
        await bench.holds(workflow_id, _entry(0, f"of {number}"), when=f"after clears of other ids than {workflow_id!r}")
        await bench.store.clear(workflow_id)


async def one_of_many_appends_wins(bench: Bench) -> None:
    """9: everything may be called concurrently."""
    contested, busy = bench.id(), [bench.id() for _ in range(10)]
    for sequence in range(3):
        rows = [_entry(sequence, f"writer {writer}") for writer in range(12)]
        outcomes = await asyncio.gather(*(bench.store.append(contested, row) for row in rows), return_exceptions=True)
        won = [row for row, outcome in zip(rows, outcomes, strict=True) if outcome is None]
        _demand(len(won) == 1, f"{len(won)} of 12 concurrent appends of sequence {sequence} were taken")
        lost = [outcome for outcome in outcomes if outcome is not None]
        _demand(all(isinstance(error, CheckpointConflictError) for error in lost), f"losers got {_kinds(lost)}")
        found = await bench.store.load_run(contested)
        _demand(list(found[sequence:]) == won, "the row that is stored is not that of the append that won")

    async def work(workflow_id: str) -> None:
        await bench.fill(workflow_id, _entry(0), _cursor(1))
        for sequence in range(2, 8):
            await bench.fill(workflow_id, _cursor(sequence, replaces=sequence - 1))
            await bench.holds(workflow_id, _entry(0), _cursor(sequence), when="beside other runs")
        await bench.store.clear(workflow_id)
        await bench.holds(workflow_id, when="cleared beside other runs")

    await asyncio.gather(*map(work, busy))


def _kinds(errors: Iterable[Any]) -> str:
    return ", ".join(sorted({type(error).__name__ for error in errors}))


async def a_cancelled_append_is_whole_or_nothing(bench: Bench) -> None:
    """10: cancelled after any number of the event loop's turns; and nothing comes later."""
    left = [(workflow_id := bench.id(), await _cancel_an_append(bench, workflow_id, turns)) for turns in _TURNS]
    await asyncio.sleep(_LATER)
    for workflow_id, found in left:
        await bench.holds(workflow_id, *found, when="some time after a cancelled append")
        following = _entry(found[-1].sequence + 1, "FOLLOWING")
        await bench.fill(workflow_id, following)
        await bench.holds(workflow_id, *found, following, when="after the append that followed a cancelled one")


async def _cancel_an_append(bench: Bench, workflow_id: str, turns: int) -> list[CheckpointRow]:
    before, after = [_entry(0), _cursor(1)], [_entry(0), _cursor(2)]
    await bench.fill(workflow_id, *before)
    append = asyncio.ensure_future(bench.store.append(workflow_id, _cursor(2, replaces=1)))
    for _ in range(turns):
        await asyncio.sleep(0)
    append.cancel()
    await asyncio.wait((append,))
    found = list(await bench.store.load_run(workflow_id))
    _demand(found in (before, after), f"a cancelled append left {_shown(found)}")
    if not append.cancelled():
        append.result()
        _demand(found == after, "an append that returned although it was cancelled has not written its row")
    return found


async def a_claim_is_exclusive(bench: Bench) -> None:
    """11: while it is held, any other is refused at once; it ends with its block, however that ends."""
    workflow_id, other = bench.id(), bench.id()

    async def hold(held: asyncio.Event) -> None:
        async with bench.store.claim(workflow_id):
            held.set()
            await asyncio.Event().wait()

    async def refused(when: str) -> None:
        try:
            async with asyncio.timeout(_AT_ONCE), bench.store.claim(workflow_id):
                seen = "was given"
        except RunOwnedError:
            return
        except TimeoutError:
            seen = "waited"
        raise AssertionError(f"{when} another claim {seen}")

    async with bench.store.claim(workflow_id):
        await refused("in the same task")
        await asyncio.ensure_future(refused("in another task"))
        async with bench.store.claim(other):
            await bench.fill(workflow_id, _entry(0))
            await bench.holds(workflow_id, _entry(0), when="while it is claimed")
        await refused("after other claims have ended")
    try:
        async with bench.store.claim(workflow_id):
            raise KeyError
    except KeyError:
        pass
    held = asyncio.Event()
    holder = asyncio.ensure_future(hold(held))
    waiting = asyncio.ensure_future(held.wait())
    await asyncio.wait((holder, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if not holder.done():
        await refused("while another task holds it")
    holder.cancel()
    await asyncio.wait((holder,))
    if not holder.cancelled():
        holder.result()
    async with bench.store.claim(workflow_id):
        pass


async def a_transaction_is_one(bench: Bench) -> None:
    """12: as far as it can be seen without knowing what the connection is."""
    workflow_id = bench.id()
    async with bench.store.transaction(workflow_id) as transaction:
        _demand(hasattr(transaction, "connection"), "there is no .connection")
        await transaction.append(_entry(0))
        await transaction.append(_cursor(1))
    await bench.holds(workflow_id, _entry(0), _cursor(1), when="after a transaction")
    for error in (KeyError(), _Crash()):
        try:
            async with bench.store.transaction(workflow_id) as transaction:
                await transaction.append(_cursor(2, replaces=1))
                raise error
        except (KeyError, _Crash) as surfaced:
            _demand(surfaced is error, "what the block raised was replaced by another error")
        else:
            raise AssertionError("what the block raised was swallowed")
        await bench.holds(workflow_id, _entry(0), _cursor(1), when="after a transaction whose block raised")
    try:
        async with bench.store.transaction(workflow_id) as transaction:
            await transaction.append(_cursor(2, replaces=1))
            await transaction.append(_cursor(2, replaces=2))
    except CheckpointConflictError:
        pass
    else:
        raise AssertionError("an append that is not the next one was taken in a transaction")
    await bench.holds(workflow_id, _entry(0), _cursor(1), when="after a transaction that met a conflict")
    async with bench.store.transaction(workflow_id) as transaction:
        await transaction.append(_cursor(2, replaces=1))
    await bench.fill(workflow_id, _entry(3))
    await bench.holds(workflow_id, _entry(0), _cursor(2), _entry(3), when="after a transaction that replaced a cursor")


DEMANDS: tuple[Callable[[Bench], Awaitable[None]], ...] = (
    unknown_ids_have_no_rows,
    rows_come_back_as_they_were,
    append_is_a_compare_and_set,
    a_row_is_there_when_append_returns,
    a_replaced_cursor_is_dropped_with_the_append,
    a_refused_append_drops_nothing,
    clear_forgets_one_run,
    ids_are_compared_exactly,
    one_of_many_appends_wins,
    a_cancelled_append_is_whole_or_nothing,
    a_claim_is_exclusive,
    a_transaction_is_one,
)
