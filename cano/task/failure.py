"""How what user code raises is turned into an error of ours."""

from __future__ import annotations

import asyncio

from cano.errors import (
    AttemptTimeoutError,
    CanoError,
    CheckpointStoreError,
    TaskExecutionError,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)

_OF_A_RUN = (WorkflowCancelledError, WorkflowTimeoutError, CheckpointStoreError, AttemptTimeoutError)


def hook_failure(task: str, hook: str, error: BaseException) -> CanoError:
    """The error for an exception of a hook.

    An error of ours that the hook raised, say by looking up a resource, stands for itself. One that tells of another
    run, or of a cancel or timeout that is not this run's, is a failure like any other: only the engine says that of
    its own run.
    """
    if isinstance(error, CanoError) and error.state is None and not isinstance(error, _OF_A_RUN):
        return error
    failure = TaskExecutionError(f"{hook} of {task} raised {type(error).__qualname__}")
    failure.__cause__ = error
    return failure


def crashes(error: BaseException) -> bool:
    """Whether something passes through a run as a crash does: it is no Exception, and no cancellation."""
    return not isinstance(error, Exception | asyncio.CancelledError)
