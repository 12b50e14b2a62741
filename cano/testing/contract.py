"""checkpoint_store_contract: runs the numbered clauses of `cano.recovery.store` against any store.

    async def test_my_store():
        await checkpoint_store_contract(lambda: MyStore("postgresql:///test"))

or, to see each clause by itself:

    @pytest.mark.parametrize("clause", CLAUSES, ids=str)
    async def test_my_store(clause):
        await clause.check(lambda: MyStore("postgresql:///test"))

It asks only for what can be seen from within one event loop. That a row survives the death of the process (clause 4), and
that a claim holds between processes and dies with its own (clause 11), takes processes that are killed: see how
`tests/recovery` does it.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cano.recovery import store as contract
from cano.recovery.store import CheckpointStore, Claiming, Transactional
from cano.testing.clauses import DEMANDS, Bench

_PATIENCE = 60.0

Made = CheckpointStore | AbstractAsyncContextManager[CheckpointStore]
StoreOrFactory = CheckpointStore | Callable[[], Made | Awaitable[Made]]
"""A store, or what gives one: a function without arguments, whose result may have to be awaited, or entered, or both."""


async def checkpoint_store_contract(store: StoreOrFactory) -> None:
    """Check every clause of the contract of a checkpoint store, in order, up to the first that is broken.

    `store` is a store, or a function without arguments that gives one; that may also be an `async def`, or give an async
    context manager that gives the store. A function is called once for each clause; what it made is closed afterwards, by
    leaving the context manager or else by awaiting `close()`, if there is one. Give it an empty store or one in use: ids are
    new for each clause, and their logs are removed in the end. `claim` and `transaction` are checked if they are offered.

    Raises:
        AssertionError: a clause is broken. Says which, what it demands, and what was seen instead.
        TypeError: `store` neither is nor gives a checkpoint store.
    """
    for clause in CLAUSES:
        await clause.check(store)


@dataclass(frozen=True)
class Clause:
    """One clause: its `number` and `text` in `cano.recovery.store`, and how it is checked."""

    number: int
    text: str
    demand: Callable[[Bench], Awaitable[None]]
    capability: type | None = None

    def __str__(self) -> str:
        return f"{self.number}-{self.demand.__name__}"

    async def check(self, store: StoreOrFactory) -> None:
        """Check this clause alone; one about a capability that the store does not offer always holds.

        Raises:
            AssertionError, TypeError: as `checkpoint_store_contract` does.
        """
        async with made(store) as given:
            if self.capability is not None and not isinstance(given, self.capability):
                return
            bench = Bench(given)
            try:
                await self._demand(bench)
            finally:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_PATIENCE):
                        await bench.clear()

    async def _demand(self, bench: Bench) -> None:
        patience = asyncio.timeout(_PATIENCE)
        try:
            async with patience:
                await self.demand(bench)
        except Exception as error:
            if patience.expired():
                seen = f"it took longer than {_PATIENCE:.0f} s"
            elif isinstance(error, AssertionError):
                seen = str(error)
            else:
                seen = f"it raised {type(error).__name__}: {error}"
            raise AssertionError(
                f"clause {self.number} of the contract of checkpoint stores is broken: {seen}\n"
                f"{self.number}. {self.text}\n(store: {type(bench.store).__qualname__})"
            ) from error


@asynccontextmanager
async def made(store: StoreOrFactory) -> AsyncIterator[CheckpointStore]:
    """What `store` is or gives, closed afterwards if it was made here."""
    if isinstance(store, CheckpointStore) and not isinstance(store, type):
        yield store
        return
    given: Any = store() if callable(store) else store
    if inspect.isawaitable(given):
        given = await given
    if isinstance(given, AbstractAsyncContextManager):
        async with given as entered:
            yield _checked(entered)
        return
    try:
        yield _checked(given)
    finally:
        closing = given.close() if hasattr(given, "close") else None
        if inspect.isawaitable(closing):
            await closing


def _checked(made: Any) -> CheckpointStore:
    if not isinstance(made, CheckpointStore):
        raise TypeError(f"a checkpoint store has append, load_run and clear; this is a {type(made).__qualname__}")
    return made


def _texts() -> dict[int, str]:
    """The clauses as they are written down. Nothing with `python -OO`, which leaves docstrings out."""
    found = re.findall(r"^ *(\d+)\. (.+(?:\n(?! *\d+\.)    .+)*)", contract.__doc__ or "", re.MULTILINE)
    return {int(number): " ".join(text.split()) for number, text in found}


def _clauses() -> tuple[Clause, ...]:
    texts = _texts()
    capabilities = {11: Claiming, 12: Transactional}
    return tuple(
        Clause(number, texts.get(number, demand.__name__.replace("_", " ")), demand, capabilities.get(number))
        for number, demand in enumerate(DEMANDS, start=1)
    )


CLAUSES: tuple[Clause, ...] = _clauses()
"""The clauses in order."""
