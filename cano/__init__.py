"""cano: an asyncio-native workflow engine with resumable stream tasks."""

# the machine
from cano.workflow.workflow import Workflow
from cano.workflow.nested import SubWorkflow
from cano.context import Context

# tasks
from cano.task.task import Task
from cano.task.router import RouterTask
from cano.task.poll import Pending, PollTask, Ready
from cano.task.timer import TimerTask
from cano.task.batch import BatchTask, Err, Ok
from cano.task.stepped import Done, More, SteppedTask
from cano.task.compensatable import CompensatableTask
from cano.task.config import TaskConfig
from cano.task.retry import DoNotRetry, ExponentialBackoff, FixedRetry, NoRetry

# split and join
from cano.task.split import BranchResult, Branches, Split
from cano.task.join import All, AnyOf, PartialResults, PartialTimeout, Percentage, Quorum

# streams
from cano.task.letter import DeadLetter, DeadLetterSink
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

# resilience
from cano.resilience.breaker import CircuitBreaker
from cano.resilience.limiter import RateLimiter, WindowedRateLimiter
from cano.resilience.tiers import MultiRateLimiter

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
    "All",
    "AnyOf",
    "AttemptTimeoutError",
    "BatchTask",
    "BranchResult",
    "Branches",
    "CancellationToken",
    "CanoError",
    "CheckpointConflictError",
    "CheckpointRow",
    "CheckpointStore",
    "CheckpointStoreError",
    "CircuitBreaker",
    "CircuitOpenError",
    "CloseReason",
    "CompensatableTask",
    "CompensationFailedError",
    "ConfigurationError",
    "Context",
    "CursorError",
    "DeadLetter",
    "DeadLetterSink",
    "DoNotRetry",
    "Done",
    "Err",
    "ExponentialBackoff",
    "FailFast",
    "FixedRetry",
    "Health",
    "MemoryCheckpointStore",
    "MemoryStore",
    "More",
    "MultiRateLimiter",
    "NoRetry",
    "Ok",
    "OrphanedCompensationError",
    "PartialResults",
    "PartialTimeout",
    "Pending",
    "Percentage",
    "PollTask",
    "Quorum",
    "RateLimitedError",
    "RateLimiter",
    "Ready",
    "Resource",
    "ResourceNotFoundError",
    "ResourceTypeMismatchError",
    "Resources",
    "RetryExhaustedError",
    "RetryOnError",
    "RouterTask",
    "RowKind",
    "RunFencedError",
    "RunOwnedError",
    "SkipAndContinue",
    "Split",
    "SqliteCheckpointStore",
    "SteppedTask",
    "Stop",
    "StoreError",
    "StreamTask",
    "SubWorkflow",
    "Task",
    "TaskConfig",
    "TaskExecutionError",
    "TimerTask",
    "Window",
    "WindowedRateLimiter",
    "Workflow",
    "WorkflowCancelledError",
    "WorkflowError",
    "WorkflowObserver",
    "WorkflowTimeoutError",
    "WorkflowVersionMismatchError",
    "cancel_on_signals",
]
