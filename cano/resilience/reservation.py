"""Reservation: units taken from a rate limiter that can still be given back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from cano.resilience.gate import LOCK, LOST, Debit, put_right, refund


class Reservation:
    """Units that are given back unless they are committed.

    `with reservation:` gives them back at its end, however it ends, if `commit` was not called in it. So does a
    reservation that is garbage-collected. What the limiter has got back by itself in the meantime is not given twice:
    never above its capacity, and never into another window.
    """

    __slots__ = ("__weakref__", "_debits", "_settled")

    def __init__(self, debits: Sequence[Debit]) -> None:
        self._debits = debits
        self._settled = False

    def commit(self) -> None:
        """Keep the units. Does nothing if they were given back."""
        self._settled = True

    def refund(self) -> None:
        """Give the units back, to those who wait first. Does nothing the second time, or after `commit`."""
        with LOCK:
            put_right()
            if not self._settled:
                self._settled = True
                refund(self._debits)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.refund()

    def __del__(self) -> None:
        # May run in the middle of anything, even with the lock held: so it takes no lock.
        if not self._settled:
            self._settled = True
            LOST.append(partial(refund, self._debits))
            for debit in self._debits:
                debit.gate.wake_all()
