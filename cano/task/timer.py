"""TimerTask: wait until a moment, across restarts."""

from __future__ import annotations

from abc import abstractmethod
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from cano.clock import seconds
from cano.context import Context
from cano.errors import ConfigurationError, TaskExecutionError
from cano.task.config import TaskConfig
from cano.task.task import Hooks, Named

StateT = TypeVar("StateT")

Moment = float | int | timedelta | datetime
"""Seconds or a timedelta from now, or an aware datetime."""


class TimerTask(Named, Hooks, Generic[StateT]):
    """Wait until a moment, then go on. The moment is written down, so a resume waits only for what is left of it.

    config:  no retries by default; `attempt_timeout` bounds the wait too
    """

    config: TaskConfig = TaskConfig()

    @abstractmethod
    async def wait(self, ctx: Context[Any]) -> Moment:
        """Return for how long to wait (seconds or timedelta), or until when (an aware datetime). What is past waits for
        nothing.

        Not called again by a resume. Within one process the wait is measured on the monotonic clock.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`

    @abstractmethod
    async def after_wait(self, ctx: Context[Any]) -> StateT:
        """Return the next state."""
        raise NotImplementedError  # never called: an abstract hook is refused by `register`


def deadline_of(task: str, moment: Any, now: datetime) -> datetime:
    """The moment that `wait` named, in UTC.

    Raises:
        TaskExecutionError: it named none.
    """
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:
            raise TaskExecutionError(f"wait of {task} returned a naive datetime: give it a time zone, or return seconds")
        try:
            return moment.astimezone(UTC)
        except OverflowError:  # its own zone has that moment, UTC has not
            return (datetime.max if moment.year > now.year else datetime.min).replace(tzinfo=UTC)
    try:
        return now + timedelta(seconds=max(seconds(moment, "a wait"), 0.0))
    except ConfigurationError:
        raise TaskExecutionError(
            f"wait of {task} must return seconds of 0 or more, a timedelta or an aware datetime, not a {type(moment).__name__}"
        ) from None
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)
