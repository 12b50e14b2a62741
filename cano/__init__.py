"""cano: an asyncio-native workflow engine with resumable stream tasks."""

# the machine
from cano.workflow.workflow import Workflow
from cano.context import Context

# tasks
from cano.task.task import Task
from cano.task.config import TaskConfig
from cano.task.stream import CloseReason, Stop, StreamTask
from cano.task.window import Window
from cano.task.policy import FailFast, RetryOnError, SkipAndContinue

# resources
from cano.resources import Health, Resource, Resources
from cano.store import MemoryStore

# cancellation
from cano.cancel import CancellationToken, cancel_on_signals

# checkpoints
from cano.recovery.checkpoint import CheckpointRow, RowKind
from cano.recovery.memory import MemoryCheckpointStore
from cano.recovery.sqlite import SqliteCheckpointStore
from cano.recovery.store import CheckpointStore

# observers
from cano.observer import WorkflowObserver

# errors
from cano.errors import (
    AttemptTimeoutError,
    CanoError,
    CheckpointConflictError,
    CheckpointStoreError,
    CircuitOpenError,
    CompensationFailedError,
    ConfigurationError,
    CursorError,
    OrphanedCompensationError,
    RateLimitedError,
    ResourceNotFoundError,
    ResourceTypeMismatchError,
    RetryExhaustedError,
    RunFencedError,
    RunOwnedError,
    StoreError,
    TaskExecutionError,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowTimeoutError,
    WorkflowVersionMismatchError,
)

__all__ = [
    "AttemptTimeoutError",
    "CancellationToken",
    "CanoError",
    "CheckpointConflictError",
    "CheckpointRow",
    "CheckpointStore",
    "CheckpointStoreError",
    "CircuitOpenError",
    "CloseReason",
    "CompensationFailedError",
    "ConfigurationError",
    "Context",
    "CursorError",
    "FailFast",
    "Health",
    "MemoryCheckpointStore",
    "MemoryStore",
    "OrphanedCompensationError",
    "RateLimitedError",
    "Resource",
    "ResourceNotFoundError",
    "ResourceTypeMismatchError",
    "Resources",
    "RetryExhaustedError",
    "RetryOnError",
    "RowKind",
    "RunFencedError",
    "RunOwnedError",
    "SkipAndContinue",
    "SqliteCheckpointStore",
    "Stop",
    "StoreError",
    "StreamTask",
    "Task",
    "TaskConfig",
    "TaskExecutionError",
    "Window",
    "Workflow",
    "WorkflowCancelledError",
    "WorkflowError",
    "WorkflowObserver",
    "WorkflowTimeoutError",
    "WorkflowVersionMismatchError",
    "cancel_on_signals",
]
