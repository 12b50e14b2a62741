"""TaskConfig: how a task's attempts are run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cano.clock import Duration, optional_seconds, seconds
from cano.errors import ConfigurationError
from cano.task.breaker import Breaker, checked_breaker
from cano.task.retry import RetryPolicy, Rules, check_retry

RetryOn = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """How a task's attempts are run.

    retry:           `NoRetry()`, `FixedRetry(...)` or `ExponentialBackoff(...)`; None for the default of the kind of
                     task
    attempt_timeout: the longest one attempt may take, in seconds or as a timedelta; None for no limit. Expiry is a
    failure like others
    circuit_breaker: a `CircuitBreaker`, which may be shared with others. It is asked before each attempt; if it refuses,
                     the attempts end with its CircuitOpenError. A failure, a timeout too, counts against it; a cancel
                     does not
    retry_on:        which failures are worth another attempt: an exception type, a tuple of them, or a function of the
                     exception. What is no Exception is never retried, nor is `DoNotRetry`

    Of a stream only `attempt_timeout` applies, to each attempt of `process_item`, and `retry_on`, to its `item_retry`. A
    breaker guards each `step` of a stepped task, each `poll`, and of a timer `wait` and `after_wait` but not the wait.

    Raises:
        ConfigurationError: one of them is of the wrong type, or the timeout is negative.
    """

    retry: RetryPolicy | None = None
    attempt_timeout: Duration | None = None
    circuit_breaker: Breaker | None = None
    retry_on: RetryOn = Exception

    def __post_init__(self) -> None:
        if self.attempt_timeout is not None:
            seconds(self.attempt_timeout, "attempt_timeout")
        if self.retry is not None:
            check_retry(self.retry, "retry")
        if self.circuit_breaker is not None:
            checked_breaker(self.circuit_breaker)
        _predicate(self.retry_on)

    def rules(self, default: RetryPolicy) -> Rules:
        """The rules for a kind of task whose default retry is given."""
        limit = optional_seconds(self.attempt_timeout, "attempt_timeout")
        return Rules(self.retry or default, _predicate(self.retry_on), limit, self.circuit_breaker)


def _predicate(retry_on: Any) -> Callable[[BaseException], bool]:
    kinds = retry_on if isinstance(retry_on, tuple) else (retry_on,)
    if all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
        return lambda error: isinstance(error, kinds)
    if isinstance(retry_on, tuple | type) or not callable(retry_on):
        raise ConfigurationError("retry_on must be an exception type, a tuple of them, or a function of the exception")
    if inspect.iscoroutinefunction(retry_on):
        raise ConfigurationError("retry_on must be a plain function, not async")
    return lambda error: bool(retry_on(error))
