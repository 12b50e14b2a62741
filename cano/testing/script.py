"""ScriptedSource: a source that gives, waits, fails and crashes as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cano.clock import Duration, seconds
from cano.errors import ConfigurationError
from cano.testing.crash import Crashed

T = TypeVar("T")


@dataclass(frozen=True)
class Pause:
    """In a script: nothing comes for some seconds, or a timedelta, virtual or real. Every time it is passed."""

    duration: Duration

    def __post_init__(self) -> None:
        seconds(self.duration, "a pause")


@dataclass(frozen=True)
class Fail:
    """In a script: the read raises `error`, the first `times` times that it comes to it."""

    error: Exception
    times: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.error, Exception):
            raise ConfigurationError("Fail(error) must be given an Exception, such as OSError(); a death is Crash()")
        if isinstance(self.times, bool) or not isinstance(self.times, int) or self.times < 1:
            raise ConfigurationError("Fail(times=...) must be an int of 1 or more")


@dataclass(frozen=True)
class Crash:
    """In a script: the process dies, the first time that a read comes to it."""


class ScriptedSource(Generic[T]):
    """Items, among them `Pause`, `Fail` and `Crash`, for a StreamTask to read.

        source = ScriptedSource[str](["a", "b", Pause(3600), "c", Crash(), "d"])

        class Read(StreamTask[str, tuple[int, str], str, int]):
            def open(self, ctx, cursor):
                return source.after(cursor)

            async def process_item(self, ctx, item):
                cursor, value = item
                return value, cursor

    An item comes as a pair: the cursor reached with it, which is how many items that makes (the first gives 1), and the
    item. What a script did once it does not do again, so a resume gets past a `Crash`. An error or an interruption ends
    an iterator for good, as it ends a generator; ask for another with `after`.

    reads:   for each call of `after`, the items that were read from what it gave
    cursors: for each call of `after`, the cursor it was called with
    closed:  how many of those iterators have ended or been closed

    Raises:
        ConfigurationError: the script is no iterable, or has one of these three classes in it instead of an object.
    """

    def __init__(self, script: Iterable[T | Pause | Fail | Crash]) -> None:
        if not isinstance(script, Iterable):
            raise ConfigurationError(f"a script is an iterable of items, not a {type(script).__name__}")
        self._script: list[Any] = list(script)
        for step in (Pause, Fail, Crash):
            if step in [each for each in self._script if isinstance(each, type)]:
                raise ConfigurationError(f"a script has {step.__name__}(...) in it, not the class")
        self._left = [step.times if isinstance(step, Fail) else 1 for step in self._script]
        self.reads: list[list[T]] = []
        self.cursors: list[int | None] = []
        self.closed = 0

    @property
    def items(self) -> list[T]:
        """The items of the script, in order."""
        return [step for step in self._script if not isinstance(step, Pause | Fail | Crash)]

    def after(self, cursor: int | None) -> AsyncGenerator[tuple[int, T], None]:
        """What follows item number `cursor`; everything if it is None.

        Raises:
            ConfigurationError: the script has no such item.
        """
        number = isinstance(cursor, int) and not isinstance(cursor, bool)
        if cursor is not None and not (number and 0 <= cursor <= len(self.items)):
            raise ConfigurationError(f"a cursor of this script is a number from 0 to {len(self.items)}, or None")
        read: list[T] = []
        self.reads.append(read)
        self.cursors.append(cursor)
        return self._follow(cursor or 0, read)

    async def _follow(self, passed: int, read: list[T]) -> AsyncGenerator[tuple[int, T], None]:
        number = 0
        try:
            for place, step in enumerate(self._script):
                if isinstance(step, Pause | Fail | Crash):
                    if number >= passed:
                        await self._do(place, step)
                    continue
                number += 1
                if number > passed:
                    read.append(step)
                    yield number, step
        finally:
            self.closed += 1

    async def _do(self, place: int, step: Pause | Fail | Crash) -> None:
        if isinstance(step, Pause):
            await asyncio.sleep(seconds(step.duration, "a pause"))
        elif self._left[place] > 0:
            self._left[place] -= 1
            raise step.error if isinstance(step, Fail) else Crashed
