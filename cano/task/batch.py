"""BatchTask: load items, process them side by side, finish with all their outcomes."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Generic, TypeVar

from cano.context import Context
from cano.errors import CanoError, ConfigurationError, TaskExecutionError
from cano.task.config import TaskConfig
from cano.task.crew import Crew
from cano.task.crew import Outcome as Ended
from cano.task.retry import Member, NoRetry, RetryPolicy, Rules, check_retry, raised_by, run_attempts
from cano.task.task import Hooks, Named

StateT = TypeVar("StateT")
ItemT = TypeVar("ItemT")
OutputT = TypeVar("OutputT")


@dataclass(frozen=True, slots=True)
class Ok(Generic[OutputT]):
    """An item's output."""

    value: OutputT = field(repr=False)


@dataclass(frozen=True, slots=True)
class Err:
    """What an item failed with in the end: the exception it raised, or an AttemptTimeoutError."""

    error: Exception = field(repr=False)


Outcome = Ok[OutputT] | Err


class BatchTask(Named, Hooks, Generic[StateT, ItemT, OutputT]):
    """Load items, process them side by side, and finish with their outcomes in the order of the items.

    concurrency:  how many items are processed at once; below 1 counts as 1
    item_retry:   retries of one item; default `NoRetry()`
    config:       the attempts of the whole (load, all items, finish)

    Nothing of a batch is durable before it is finished; a resume does it again. For that there is `StreamTask`.
    """

    concurrency: int = 1
    item_retry: RetryPolicy = NoRetry()
    config: TaskConfig = TaskConfig()

    @abstractmethod
    async def load(self, ctx: Context[Any]) -> Iterable[ItemT] | AsyncIterable[ItemT]:
        """Return the items.

        Raises: an Exception fails the attempt; `finish` is not called.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`

    @abstractmethod
    async def process_item(self, ctx: Context[Any], item: ItemT) -> OutputT:
        """Return one item's output. Runs in an asyncio task of its own, beside others.

        Raises: an Exception becomes the item's `Err`, once its retries are used up.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`

    @abstractmethod
    async def finish(self, ctx: Context[Any], outcomes: list[Ok[OutputT] | Err]) -> StateT:
        """Return the next state. The outcomes are in the order of the items."""
        raise NotImplementedError  # never called: an abstract hook is refused by `register`


def check_batch(task: BatchTask[Any, Any, Any]) -> None:
    """Raise ConfigurationError if an attribute is of the wrong type."""
    name = type(task).__name__
    if isinstance(task.concurrency, bool) or not isinstance(task.concurrency, int):
        raise ConfigurationError(f"{name}.concurrency must be an int, not a {type(task.concurrency).__name__}")
    check_retry(task.item_retry, f"{name}.item_retry")


async def work_off(task: BatchTask[Any, Any, Any], ctx: Context[Any]) -> Any:
    """One attempt of a batch."""
    items = await _listed(task, await task.load(ctx))
    outcomes: list[Any] = [None] * len(items)
    ahead = iter(enumerate(items))
    rules = Rules(task.item_retry, lambda error: True, None)
    working: dict[asyncio.Task[Ended], int] = {}

    async with Crew() as crew:
        while True:
            for place, item in islice(ahead, max(task.concurrency, 1) - len(working)):
                working[crew.start(_processed(task, ctx, item, rules))] = place
            if not working:
                break
            done, _ = await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            for member in done:
                outcome = member.result()
                if outcome.error is not None:
                    raise outcome.error
                outcomes[working.pop(member)] = outcome.value
    return await task.finish(ctx, outcomes)


async def _listed(task: BatchTask[Any, Any, Any], loaded: Any) -> list[Any]:
    if hasattr(type(loaded), "__aiter__"):
        return [item async for item in loaded]
    if not hasattr(type(loaded), "__iter__"):
        raise TaskExecutionError(f"load of {task.name} must return an iterable of items, not a {type(loaded).__name__}")
    return list(loaded)


async def _processed(task: BatchTask[Any, Any, Any], ctx: Context[Any], item: Any, rules: Rules) -> Ok[Any] | Err:
    """What comes of one item, in an asyncio task and with context variables of its own."""
    own = ctx.sibling()
    body = partial(task.process_item, own, item)
    try:
        return Ok(await run_attempts(body, ctx=own, hook="process_item", rules=rules, guard=Member(), host=_NoData()))
    except CanoError as error:
        raised = raised_by(error)
        if not isinstance(raised, Exception):
            raise  # a leaked CancelledError: never an outcome
        return Err(raised)


class _NoData:
    """Items share `ctx.data`, so a failed attempt of one takes nothing back."""

    def restore(self) -> None: ...

    def retrying(self, attempt: int, delay: float, error: Exception) -> None: ...

    def refused(self) -> None: ...
