"""PollTask: ask again and again until something is ready."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from cano.clock import Duration, seconds
from cano.context import Context
from cano.errors import TaskExecutionError
from cano.task.breaker import guarded
from cano.task.config import TaskConfig
from cano.task.policy import ErrorBudget, FailFast, RetryOnError
from cano.task.retry import Member, hopeless
from cano.task.task import Hooks, Named

StateT = TypeVar("StateT")
StateT_co = TypeVar("StateT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ready(Generic[StateT_co]):
    """Returned by `poll`: go on with `state`."""

    state: StateT_co


@dataclass(frozen=True, slots=True)
class Pending:
    """Returned by `poll`: ask again after `delay` (seconds or timedelta); 0 only gives others a turn.

    Raises:
        ConfigurationError: the delay is negative or no duration.
    """

    delay: Duration = 0.0

    def __post_init__(self) -> None:
        seconds(self.delay, "Pending(delay)")


class PollTask(Named, Hooks, Generic[StateT]):
    """Ask again and again until something is ready. A resume starts to ask anew.

    on_poll_error:  `FailFast()` (default), or `RetryOnError(n)` = tolerate that many errors in a row; a `Pending`
                    resets the count
    config:         no retries by default; `attempt_timeout` bounds the whole of the asking
    """

    on_poll_error: FailFast | RetryOnError = FailFast()
    config: TaskConfig = TaskConfig()

    @abstractmethod
    async def poll(self, ctx: Context[Any]) -> Ready[StateT] | Pending:
        """Return `Ready(state)` to go on, or `Pending(delay)` to be asked again.

        Raises: an Exception is judged by `on_poll_error`; if tolerated, the last delay is waited for again.
        `DoNotRetry` is not tolerated, nor what is wrong with the program (a missing resource, say).
        Cancellation: interrupted at its next await, and between two polls.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`


async def ask(task: PollTask[Any], ctx: Context[Any]) -> Any:
    """Poll until ready, and return the state.

    Cancellation: one that a poll made a `Pending` or an error of counts all the same.
    """
    budget, polls, delay, guard = ErrorBudget(task.on_poll_error), 0, 0.0, Member()
    breaker, poll = task.config.circuit_breaker, partial(task.poll, ctx)
    while True:
        try:
            answer = await (poll() if breaker is None else guarded(breaker, poll))
        except Exception as error:
            if hopeless(error) or not guard.leaked() or not budget.tolerates(polls):
                raise
        else:
            polls += 1
            if isinstance(answer, Ready):
                return answer.state
            if not isinstance(answer, Pending):
                raise TaskExecutionError(f"poll of {task.name} must return Ready(state) or Pending(delay), not a {_kind(answer)}")
            if not guard.leaked():
                raise asyncio.CancelledError
            delay = seconds(answer.delay, "Pending(delay)")
        await asyncio.sleep(delay)


def _kind(value: Any) -> str:
    return type(value).__name__
