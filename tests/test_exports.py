"""The front door: exactly the names of the public contract that are built, and what importing them costs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import cano

MACHINE = {"Workflow", "Context"}
TASKS = {"Task", "TaskConfig", "StreamTask", "Window", "Stop", "CloseReason", "FailFast", "SkipAndContinue", "RetryOnError"}
MODELS = {
    "RouterTask",
    "PollTask",
    "Ready",
    "Pending",
    "TimerTask",
    "BatchTask",
    "Ok",
    "Err",
    "SteppedTask",
    "More",
    "Done",
    "CompensatableTask",
    "SubWorkflow",
}
RETRIES = {"NoRetry", "FixedRetry", "ExponentialBackoff", "DoNotRetry"}
SPLITS = {"Split", "All", "AnyOf", "Quorum", "Percentage", "PartialResults", "PartialTimeout", "Branches", "BranchResult"}
LETTERS = {"DeadLetter", "DeadLetterSink"}
RESOURCES = {"Resources", "Resource", "Health", "MemoryStore"}
CANCELLATION = {"CancellationToken", "cancel_on_signals"}
CHECKPOINTS = {"CheckpointRow", "RowKind", "CheckpointStore", "MemoryCheckpointStore", "SqliteCheckpointStore"}
OBSERVERS = {"WorkflowObserver"}
RESILIENCE = {"CircuitBreaker", "RateLimiter", "WindowedRateLimiter", "MultiRateLimiter"}
CATEGORIES = {
    "CanoError": "generic",
    "ConfigurationError": "configuration",
    "TaskExecutionError": "task_execution",
    "CursorError": "task_execution",
    "AttemptTimeoutError": "timeout",
    "RetryExhaustedError": "retry_exhausted",
    "WorkflowError": "workflow",
    "WorkflowTimeoutError": "workflow_timeout",
    "WorkflowCancelledError": "cancelled",
    "CircuitOpenError": "circuit_open",
    "RateLimitedError": "rate_limited",
    "CheckpointStoreError": "checkpoint_store",
    "CheckpointConflictError": "checkpoint_store",
    "RunFencedError": "checkpoint_store",
    "RunOwnedError": "checkpoint_store",
    "WorkflowVersionMismatchError": "workflow_version_mismatch",
    "CompensationFailedError": "compensation_failed",
    "OrphanedCompensationError": "orphaned_compensation",
    "ResourceNotFoundError": "resource_not_found",
    "ResourceTypeMismatchError": "resource_type_mismatch",
    "StoreError": "store",
}


def test_the_front_door_exports_these_names_and_no_others() -> None:
    wanted = (
        MACHINE
        | TASKS
        | MODELS
        | RETRIES
        | SPLITS
        | LETTERS
        | RESOURCES
        | CANCELLATION
        | CHECKPOINTS
        | OBSERVERS
        | RESILIENCE
        | set(CATEGORIES)
    )
    assert set(cano.__all__) == wanted
    assert len(cano.__all__) == len(wanted)
    for name in wanted:
        assert getattr(cano, name) is not None


def test_every_error_has_its_category_and_its_place_in_the_tree() -> None:
    for name, category in CATEGORIES.items():
        error: Any = getattr(cano, name)
        assert issubclass(error, cano.CanoError)
        assert error.category == category
    for name in ("CheckpointConflictError", "RunFencedError", "RunOwnedError"):
        assert issubclass(getattr(cano, name), cano.CheckpointStoreError)
    assert issubclass(cano.CursorError, cano.TaskExecutionError)


def test_public_names_are_documented() -> None:
    for name in cano.__all__:
        thing = getattr(cano, name)
        assert thing.__doc__, name
        for attribute, value in vars(thing).items() if isinstance(thing, type) else ():
            if not attribute.startswith("_") and callable(value):
                assert value.__doc__, f"{name}.{attribute}"


def test_importing_cano_loads_no_extra_and_no_test_code() -> None:
    program = "import sys, cano; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"rich", "prometheus_client", "opentelemetry", "pytest", "hypothesis", "starlette"} & set(done.stdout.split())
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, cano; print('cano.testing' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.strip() == "False"
