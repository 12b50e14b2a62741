"""Every error that cano raises.

    CanoError                              .category .state .attempt .path
    ├── ConfigurationError                 configuration
    ├── TaskExecutionError                 task_execution
    │   └── CursorError                    task_execution
    ├── AttemptTimeoutError                timeout
    ├── RetryExhaustedError                retry_exhausted             .attempts
    ├── WorkflowError                      workflow
    ├── WorkflowTimeoutError               workflow_timeout            .elapsed .limit
    ├── WorkflowCancelledError             cancelled
    ├── CircuitOpenError                   circuit_open                .retry_after
    ├── RateLimitedError                   rate_limited                .tier .retry_after
    ├── CheckpointStoreError               checkpoint_store
    │   ├── CheckpointConflictError        checkpoint_store
    │   ├── RunFencedError                 checkpoint_store
    │   └── RunOwnedError                  checkpoint_store
    ├── WorkflowVersionMismatchError       workflow_version_mismatch   .stored .expected
    ├── CompensationFailedError            compensation_failed         .errors
    ├── OrphanedCompensationError          orphaned_compensation       .task .output
    ├── ResourceNotFoundError              resource_not_found
    ├── ResourceTypeMismatchError          resource_type_mismatch
    └── StoreError                         store

An exception raised by user code is the ``__cause__`` of the error that reports it. No message holds an item, an
output, a cursor, ``ctx.data`` or a resource: messages name types, states, tasks and remedies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class CanoError(Exception):
    """The root of every error that cano raises.

    ``category`` is a stable string for alerts and metrics. ``state`` is the state in which the run failed, ``attempt``
    the 1-based attempt of its task and ``path`` the states entered so far, the failing one last; they are None, None
    and () for an error raised outside a run.
    """

    category: ClassVar[str] = "generic"
    message: str = ""
    state: Any = None
    attempt: int | None = None
    path: tuple[Any, ...] = ()

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        if self.state is None:
            return self.message
        return f"{self.message} (state {label_text(self.state)}, attempt {self.attempt})"

    def locate(self, state: Any, attempt: int, path: Sequence[Any]) -> None:
        """Say where the run failed; the first call wins, so a nested run's own place is kept."""
        if self.state is None:
            self.state, self.attempt, self.path = state, attempt, tuple(path)


def label_text(state: Any) -> str:
    """How a state is named in messages: an enum member's name, a string as it is, else only the type."""
    name = getattr(state, "name", None)
    if isinstance(name, str):
        return name
    return state[:80] if isinstance(state, str) else f"<{type(state).__name__}>"


class ConfigurationError(CanoError):
    """The program is wrong and has to be changed; nothing was run, read or written."""

    category = "configuration"


class TaskExecutionError(CanoError):
    """A hook of a task raised (``__cause__`` is what it raised) or broke its contract."""

    category = "task_execution"


class CursorError(TaskExecutionError):
    """A cursor cannot be stored exactly, or a stored one cannot be read back; names its type, never its value."""


class AttemptTimeoutError(CanoError):
    """One attempt outlived the ``attempt_timeout`` of its task."""

    category = "timeout"


class RetryExhaustedError(CanoError):
    """Every attempt failed; ``attempts`` counts them, the first included, and ``__cause__`` is the last failure."""

    category = "retry_exhausted"

    def __init__(self, message: str = "", *, attempts: int = 0) -> None:
        super().__init__(message)
        self.attempts = attempts


class WorkflowError(CanoError):
    """The machine cannot go on: a task chose a state that nobody registered, or a join was not met."""

    category = "workflow"


class WorkflowTimeoutError(CanoError):
    """The run outlived its ``total_timeout``; ``elapsed`` and ``limit`` are seconds."""

    category = "workflow_timeout"

    def __init__(self, message: str = "", *, elapsed: float = 0.0, limit: float = 0.0) -> None:
        super().__init__(message)
        self.elapsed = elapsed
        self.limit = limit


class WorkflowCancelledError(CanoError):
    """The run was cancelled through its token; with a store it is paused and ``resume_from`` goes on."""

    category = "cancelled"


class CircuitOpenError(CanoError):
    """A circuit breaker refused the call; ``retry_after`` is in seconds, 0 if it only had too many trials under way."""

    category = "circuit_open"

    def __init__(self, message: str = "", *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RateLimitedError(CanoError):
    """A rate limiter refused the call; ``retry_after`` is in seconds."""

    category = "rate_limited"

    def __init__(self, message: str = "", *, tier: str | None = None, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.tier = tier
        self.retry_after = retry_after


class CheckpointStoreError(CanoError):
    """The checkpoint store failed, or does not hold what was asked of it; the log is as it was."""

    category = "checkpoint_store"


class CheckpointConflictError(CheckpointStoreError):
    """An append was not the next one of its log, or a fresh run met the log of an unfinished one."""


class RunFencedError(CheckpointStoreError):
    """Another owner has written to this run's log; this run stopped at once and left the log alone."""


class RunOwnedError(CheckpointStoreError):
    """Somebody alive holds the claim on this run; nothing was read or written."""


class WorkflowVersionMismatchError(CanoError):
    """The log was written by another ``workflow_version``."""

    category = "workflow_version_mismatch"

    def __init__(self, message: str = "", *, stored: int = 0, expected: int = 0) -> None:
        super().__init__(message)
        self.stored = stored
        self.expected = expected


class CompensationFailedError(CanoError):
    """A rollback was not clean; ``errors`` holds the original failure first, then each compensation's."""

    category = "compensation_failed"

    def __init__(self, message: str = "", *, errors: Sequence[BaseException] = ()) -> None:
        super().__init__(message)
        self.errors = tuple(errors)


class OrphanedCompensationError(CanoError):
    """A completed step could not be compensated; ``task`` and ``output`` are kept for doing it by hand."""

    category = "orphaned_compensation"

    def __init__(self, message: str = "", *, task: str = "", output: Any = None) -> None:
        super().__init__(message)
        self.task = task
        self.output = output


class ResourceNotFoundError(CanoError):
    """No resource has that name."""

    category = "resource_not_found"


class ResourceTypeMismatchError(CanoError):
    """The resource of that name is of another type."""

    category = "resource_type_mismatch"


class StoreError(CanoError):
    """A ``MemoryStore`` holds no such key, or a value of another type."""

    category = "store"
