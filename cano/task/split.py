"""Split: several tasks side by side, and what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cano.clock import Duration, optional_seconds
from cano.errors import CanoError, ConfigurationError, TaskExecutionError, WorkflowError
from cano.task.crew import Crew, Outcome
from cano.task.join import All, AnyOf, Join, PartialResults, PartialTimeout, Percentage, Quorum, decide, needed

StateT = TypeVar("StateT")


@dataclass(frozen=True, slots=True)
class BranchResult:
    """What came of one branch: its `value`, or its `error`, or neither if it was `cancelled` because the join was
    decided.

    After a resume `error` is a CanoError with the same message; the exception that caused it is gone.
    """

    name: str
    value: Any = field(default=None, repr=False)
    error: CanoError | None = None
    cancelled: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether there is a value."""
        return self.error is None and not self.cancelled


class Branches(tuple[BranchResult, ...]):
    """The results of a split, in the order of its branches; also by name: `ctx.branches["fetch[0]"]`."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for result in self:
            if result.name == key:
                return result
        raise KeyError(key)

    @property
    def values(self) -> list[Any]:
        """The values of the branches that succeeded."""
        return [result.value for result in self if result.succeeded]


class Split(Generic[StateT]):
    """Run tasks side by side, wait until the join is decided, and go on with `then`, which finds the results in
    `ctx.branches`.

    branches:         `async def f(ctx)` functions, or `Task`, `RouterTask`, `PollTask` and `BatchTask` objects, of any
                      mixture. What a branch returns is its value. Its name is that of its task with its place:
                      `fetch[0]`. It works on a copy of `ctx.data`, which is then dropped
    join:             `All()`, `AnyOf()`, `Quorum(n)`, `Percentage(p)`, `PartialResults(n)` or `PartialTimeout()`
    then:             the next state
    timeout:          seconds or timedelta for all of it; if the join is met by then that is a success
    max_concurrency:  how many branches run at once; None for all

    As soon as the join is decided either way the other branches are cancelled and awaited.

    Raises:
        ConfigurationError: the join cannot be met or an argument is of the wrong type.
    """

    name = "split"

    def __init__(
        self,
        branches: Iterable[Any],
        *,
        join: Join,
        then: StateT,
        timeout: Duration | None = None,
        max_concurrency: int | None = None,
    ) -> None:
        if not isinstance(branches, Iterable):
            raise ConfigurationError(f"Split(branches) must be an iterable of branches, not a {type(branches).__name__}")
        self.branches = list(branches)
        self.join = join
        self.then = then
        self.timeout = optional_seconds(timeout, "Split(timeout=...)")
        self.max_concurrency = max_concurrency
        if not isinstance(join, All | AnyOf | Quorum | Percentage | PartialResults | PartialTimeout):
            raise ConfigurationError(f"Split(join=...) must be a join such as All() or Quorum(n), not a {type(join).__name__}")
        if isinstance(join, PartialTimeout) and self.timeout is None:
            raise ConfigurationError("PartialTimeout() requires a timeout: Split(..., timeout=...)")
        if isinstance(join, Quorum | PartialResults) and join.n > len(self.branches):
            raise ConfigurationError(f"the join needs {join.n} branches and there are {len(self.branches)}")
        limit = max_concurrency
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ConfigurationError("Split(max_concurrency=...) must be an int of 1 or more")


async def fan_out(split: Split[Any], names: Sequence[str], bodies: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> Branches:
    """Run the branches until the join is decided.

    Raises:
        WorkflowError: the join was not met. The cause is what the only failed branch raised, or a group of what several
            did.
    """
    loop = asyncio.get_running_loop()
    total, limit = len(bodies), split.max_concurrency or len(bodies)
    deadline = None if split.timeout is None else loop.time() + split.timeout
    results: dict[int, Outcome] = {}
    working: dict[asyncio.Task[Outcome], int] = {}
    todo = iter(range(total))
    expired = False
    async with Crew() as crew:
        while (verdict := _verdict(split.join, results, total, expired)) is None:
            while len(working) < limit and (place := next(todo, None)) is not None:
                working[crew.start(bodies[place]())] = place
            left = None if deadline is None else max(deadline - loop.time(), 0.0)
            done, _ = await asyncio.wait(working, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for member in done:
                place = working.pop(member)
                results[place] = _settled(names[place], member.result())
            expired = deadline is not None and loop.time() >= deadline
    if not verdict:
        raise _not_met(split.join, names, results, total, expired)
    return Branches(_result(name, results.get(place)) for place, name in enumerate(names))


def _settled(name: str, outcome: Outcome) -> Outcome:
    """How a branch that nobody cancelled ended: with a value, or with an error that the join counts."""
    error = outcome.error
    if isinstance(error, asyncio.CancelledError):
        failure = TaskExecutionError(f"{name} cancelled its own asyncio task")
        failure.__cause__ = error
        return Outcome(None, failure)
    if error is not None and not isinstance(error, CanoError):
        raise error
    return outcome


def _verdict(join: Join, results: dict[int, Outcome], total: int, expired: bool) -> bool | None:
    failed = sum(outcome.error is not None for outcome in results.values())
    return decide(join, succeeded=len(results) - failed, failed=failed, total=total, expired=expired)


def _result(name: str, outcome: Outcome | None) -> BranchResult:
    if outcome is None:
        return BranchResult(name, cancelled=True)
    return BranchResult(name, outcome.value, outcome.error if isinstance(outcome.error, CanoError) else None)


def _not_met(join: Join, names: Sequence[str], results: dict[int, Outcome], total: int, expired: bool) -> WorkflowError:
    failures = {place: outcome.error for place, outcome in sorted(results.items()) if isinstance(outcome.error, CanoError)}
    met = len(results) - len(failures)
    why = "; ".join(f"{names[place]}: {error.message}" for place, error in failures.items())
    timeout = " at the timeout" if expired else ""
    failure = WorkflowError(
        f"the join {type(join).__name__} was not met{timeout}: {met} of {total} branches succeeded, {needed(join, total)} had to"
        + (f"; {why}" if why else "")
    )
    causes = [error.__cause__ or error for error in failures.values()]
    if len(causes) == 1:
        failure.__cause__ = causes[0]
    elif causes:
        failure.__cause__ = BaseExceptionGroup("the branches that failed", causes)
    return failure
