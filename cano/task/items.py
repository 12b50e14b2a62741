"""ItemHandler: what becomes of one item. Its attempts, and if they fail the policy, the dead letter and the cursor."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from cano.brake import Brake
from cano.context import Context
from cano.errors import AttemptTimeoutError, CanoError, RetryExhaustedError, TaskExecutionError
from cano.task.failure import hook_failure
from cano.task.policy import ErrorBudget
from cano.task.retry import Rules, run_attempts
from cano.task.stream import StreamSettings, StreamTask
from cano.task.watchdog import TimeoutExpired, Watchdog

PARKED_AT_LEAST = 100
"""How many dead letters there have to be before most of the items being parked fails the run."""


class NotAPair(Exception):
    """What `process_item` returned is no pair; names its type."""


class Fatal(Exception):
    """What came up with an item is not the item's failure: carries the error that fails the run, whatever the policy."""

    def __init__(self, failure: BaseException) -> None:
        super().__init__()
        self.failure = failure


def surely(function: Callable[[Any], Any], value: Any) -> Any:
    """Call a function whose failure is not the item's."""
    try:
        return function(value)
    except Exception as error:
        raise Fatal(error)


class Retrying:
    """The guard and host of one item's attempts: the hook is not interrupted, the waits between attempts are, and a
    failed attempt's changes to `ctx.data` are taken back.
    """

    def __init__(self, brake: Brake, ctx: Context[Any], host: Any) -> None:
        self._ctx = ctx
        self._host = host
        self._brake = brake
        self._saved = surely(host.copied, ctx.data)
        self.leaked: Callable[[], bool] = brake.leaked

    async def expose(self, operation: Any) -> Any:
        """Await an attempt."""
        return await operation

    async def pause(self, delay: float) -> None:
        """Wait between two attempts.

        Raises:
            Halted: the run was stopped.
        """
        await self._brake.pause(delay)

    def restore(self) -> None:
        """Take `ctx.data` back to what it was before the item."""
        self._ctx.data = self._host.copied(self._saved)

    def retrying(self, attempt: int, delay: float, error: Exception) -> None:
        """A wait follows."""
        self._host.retrying(attempt, delay, error)

    def refused(self) -> None:
        """A circuit breaker of the user's own refused the item."""


GuardOf = Callable[[Brake, Context[Any], Any], Retrying]


class ItemHandler:
    """Handles the items of one opened stream, one at a time."""

    def __init__(self, task: StreamTask[Any, Any, Any, Any], settings: StreamSettings, brake: Brake, host: Any) -> None:
        self._task = task
        self._settings = settings
        self._brake = brake
        self._host = host
        self._budget = ErrorBudget(settings.on_item_error)
        self._watchdog = None if settings.attempt_timeout is None else Watchdog(settings.attempt_timeout)
        self._repeats = settings.item_retry.delay(1) is not None
        self.parked = 0
        self.flood: TaskExecutionError | None = None

    def process(self, *, guard_of: GuardOf = Retrying) -> Callable[[Context[Any], Any], Any]:
        """What is called with each item: the hook itself, unless its attempts are bounded or repeated."""
        hook, watchdog = self._task.process_item, self._watchdog
        if self._repeats:
            return partial(self._with_retries, guard_of)
        if watchdog is None:
            return hook

        async def bounded(ctx: Context[Any], item: Any) -> Any:
            result = hook(ctx, item)
            return await watchdog.bound(result) if inspect.isawaitable(result) else result

        return bounded

    async def _with_retries(self, guard_of: GuardOf, ctx: Context[Any], item: Any) -> Any:
        hook, guard = self._task.process_item, guard_of(self._brake, ctx, self._host)
        rules = Rules(self._settings.item_retry, self._settings.retry_on, self._settings.attempt_timeout)

        async def attempt() -> Any:
            result = hook(ctx, item)
            return await result if inspect.isawaitable(result) else result

        try:
            return await run_attempts(attempt, ctx=ctx, hook="process_item", rules=rules, guard=guard, host=guard)
        finally:
            ctx.attempt = 1

    async def failed(self, item: Any, error: BaseException, successes: int) -> Any:
        """An item failed: raise the error that fails the run, or drop the item and give the cursor it advances to.

        The letter is durable before this returns. None if the cursor stays where it is.
        """
        if isinstance(error, Fatal):
            raise error.failure from error.failure.__cause__
        if isinstance(error, asyncio.CancelledError):
            failure = self.failure(error)
            if failure is error and not self._brake.aborted:
                return None  # the asyncio task itself was cancelled: a stop, and the item is left for a resume
            raise failure
        if isinstance(error, NotAPair):
            raise self.no_pair(str(error)) from None
        raised, failure = self._told(error)
        if not isinstance(raised, Exception) or not self._budget.tolerates(successes):
            raise failure
        cursor = self._cursor_of(item)
        if self._settings.dead_letters is not None:
            await self._park(item, raised, cursor)
            self.flood = self._flood(successes, raised)
        self._host.dropped(raised, self._settings.dead_letters is not None)
        return cursor

    def _told(self, error: BaseException) -> tuple[BaseException, BaseException]:
        """What the item failed with, which is the user's exception or our timeout; and the error to raise for it."""
        if isinstance(error, TimeoutExpired):
            limit = self._settings.attempt_timeout
            timeout = AttemptTimeoutError(f"process_item of {self._task.name} took longer than its attempt_timeout of {limit} s")
            timeout.__cause__ = None if isinstance(error.__cause__, asyncio.CancelledError) else error.__cause__
            return timeout, timeout
        if not self._repeats or not isinstance(error, CanoError):
            return error, self.failure(error)
        wrapped = type(error) in (TaskExecutionError, RetryExhaustedError)  # by the attempts
        return (error.__cause__ or error) if wrapped else error, error

    def failure(self, error: BaseException) -> BaseException:
        """What to raise for what `process_item` raised."""
        if isinstance(error, asyncio.CancelledError) and not self._brake.leaked():
            return error
        return hook_failure(self._task.name, "process_item", error)

    def no_pair(self, found: str) -> TaskExecutionError:
        """The error for a `process_item` that broke its contract; no policy tolerates that."""
        return TaskExecutionError(f"process_item of {self._task.name} must return a pair (output, cursor), not a {found}")

    def _cursor_of(self, item: Any) -> Any:
        if not self._settings.has_cursor_of:
            return None
        try:
            return self._task.cursor_of(item)
        except (asyncio.CancelledError, Exception) as error:  # it waits for nothing, so nobody cancelled it
            raise hook_failure(self._task.name, "cursor_of", error)

    async def _park(self, item: Any, error: Exception, cursor: Any) -> None:
        sink = self._settings.dead_letters
        assert sink is not None
        try:
            await sink.write(self._host.letter(item, error, cursor))
        except (asyncio.CancelledError, Exception) as failure:
            if isinstance(failure, asyncio.CancelledError) and not self._brake.leaked():
                raise
            raise TaskExecutionError(
                f"{self._task.name} could not write a dead letter ({type(failure).__name__}) for an item that failed with "
                f"{type(error).__name__}"
            ) from error
        self.parked += 1

    def _flood(self, successes: int, error: Exception) -> TaskExecutionError | None:
        """The error that fails a run of whose items most are parked; None as long as they are not."""
        if self.parked < PARKED_AT_LEAST or self.parked <= successes:
            return None
        flood = TaskExecutionError(
            f"{self._task.name} parks most of its items: {self.parked} dead letters, {successes} items that went well since it "
            "was opened; mend the cause and resume, or define cursor_of, with which a resume goes on behind them"
        )
        flood.__cause__ = error
        return flood

    def release(self) -> None:
        """No item follows."""
        if self._watchdog is not None:
            self._watchdog.release()


async def resolve(result: Any) -> tuple[Any, Any]:
    """What `process_item` returned, if that was no plain tuple."""
    if inspect.isawaitable(result):
        result = await result
    if not isinstance(result, tuple):
        raise NotAPair(type(result).__name__)
    return result
