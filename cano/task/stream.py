"""StreamTask: the hooks of a resumable stream and their contract. The engine that calls them is in `loop` and
`session`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, TypeVar

from cano.clock import optional_seconds
from cano.context import Context
from cano.errors import ConfigurationError
from cano.task.config import TaskConfig
from cano.task.declared import optional_parameter, returned_pair, type_argument
from cano.task.letter import DeadLetterSink
from cano.task.policy import ErrorPolicy, FailFast, RetryOnError, SkipAndContinue
from cano.task.retry import NoRetry, RetryPolicy, check_retry, count
from cano.task.task import Hooks, Named
from cano.task.window import Window

StateT = TypeVar("StateT")
ItemT = TypeVar("ItemT")
OutputT = TypeVar("OutputT")
CursorT = TypeVar("CursorT")
StateT_co = TypeVar("StateT_co", covariant=True)


class CloseReason(Enum):
    """Why a stream ends."""

    EXHAUSTED = auto()
    """The source has no more items."""
    CANCELLED = auto()
    """The run was cancelled or ran into its total timeout."""


@dataclass(frozen=True, slots=True)
class Stop(Generic[StateT_co]):
    """Returned by `flush_window` to leave the stream for `state`. The decision is committed with the window's cursor."""

    state: StateT_co


class StreamTask(Named, Hooks, Generic[StateT, ItemT, OutputT, CursorT]):
    """A stream of items, processed one by one, flushed in windows, resumable at the cursor of the last committed
    window.

    For each window, always in this order: the cursor is encoded, `flush_window` returns, the cursor is durable together
    with `ctx.data`, and only then comes the next item. A crash in between replays the window: at least once for each
    window, or exactly once with `transactional`.

    Attributes, which may also be properties or set on the instance; they are read when the stream is opened:

    window:         when outputs are flushed; default `Window(count=1)`
    on_item_error:  `FailFast()` (default), `SkipAndContinue()` or `RetryOnError(max_errors)`. What a dropped item did to
                    `ctx.data` stays, unless it has retries: so change that last, or in `flush_window`
    item_retry:     real retries of one item, before the policy is asked; default `NoRetry()`
    dead_letters:   a `DeadLetterSink`; an item that the policy drops is durably there before any cursor passes it. If
                    most items since the stream was opened end there, and no fewer than 100, the run fails; with
                    `cursor_of` it has then committed what was set aside, so a resume goes on behind that
    max_in_flight:  how many items are processed at once; default 1. Outputs keep the order of the source, and the
                    cursor is that of the longest finished prefix. With more than 1, `process_item` works on a copy of
                    `ctx.data` that is dropped: keep totals in `flush_window`
    transactional:  run `flush_window` inside the store's transaction, `ctx.transaction`, and commit the cursor with it
    config:         only `attempt_timeout` applies, to each attempt of `process_item`, and `retry_on`, to `item_retry`
    name:           the task's name in rows, events and metrics; default the class name

    The cursor type is taken from `StreamTask[State, Item, Output, Cursor]`, or from `process_item(...) ->
    tuple[Output, Cursor]`; without either cursors must be JSON-native.

    All hooks run in the asyncio task of the run, except that a time window that ends while the source is silent is
    flushed beside the waiting read, and that `process_item` runs in a worker if `max_in_flight` is more than 1. Neither
    a cancel nor a deadline interrupts `process_item`, `flush_window` or `on_close`; a `drain_timeout` that has passed
    interrupts anything, and a `Stop` or a failure what is in flight after it.
    """

    window: Window = Window(count=1)
    on_item_error: ErrorPolicy = FailFast()
    item_retry: RetryPolicy = NoRetry()
    dead_letters: DeadLetterSink | None = None
    max_in_flight: int = 1
    transactional: bool = False
    config: TaskConfig = TaskConfig()

    @abstractmethod
    def open(
        self, ctx: Context[Any], cursor: CursorT | None
    ) -> AsyncIterable[ItemT] | Iterable[ItemT] | Awaitable[AsyncIterable[ItemT] | Iterable[ItemT]]:
        """Return the items after `cursor`, or all of them if it is None.

        An async generator will do, or a coroutine or function that returns any iterable or async iterable. Opening,
        every step and closing happen in one asyncio task; the source is closed (`aclose`, or `close`) on every way
        out. It must be able to start after any cursor it was ever given.

        Raises: anything; no error policy applies to the source, the run fails and can be resumed.
        Cancellation: interrupts a waiting read; while `open` itself waits, `on_close` is then not called.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`

    @abstractmethod
    def process_item(self, ctx: Context[Any], item: ItemT) -> tuple[OutputT, CursorT] | Awaitable[tuple[OutputT, CursorT]]:
        """Return the item's output and the cursor reached by having consumed it.

        Idempotency: an item whose window was not committed comes again.
        Raises: an Exception is an item error, for `on_item_error` to judge.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`

    @abstractmethod
    def flush_window(self, ctx: Context[Any], outputs: list[OutputT]) -> Stop[StateT] | Awaitable[Stop[StateT] | None] | None:
        """Make one window's effects. Return None to go on, or `Stop(state)` to leave, without `on_close`.

        `outputs` is never empty, in source order, and the hook's to keep. `ctx.window_id` names the window.

        Idempotency: a window whose cursor did not become durable is flushed again, perhaps with more or fewer items.
        Raises: the window is discarded, nothing is committed, the run fails and can be resumed.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`

    @abstractmethod
    def on_close(self, ctx: Context[Any], reason: CloseReason) -> StateT | Awaitable[StateT]:
        """The source is closed and every window committed: return the next state.

        After `CloseReason.CANCELLED` the result is ignored. Not called after a `Stop`, a failure, or a cancel of a
        waiting `open`.

        Idempotency: may be called again by a resume.
        """
        raise NotImplementedError  # never called: an abstract hook is refused by `register`

    def cursor_of(self, item: ItemT) -> CursorT:
        """The cursor reached by having consumed an item. Optional: lets an item that was dropped advance the cursor, so
        that a long bad stretch is not read again by every resume.
        """
        raise NotImplementedError  # asked for only where a class defines it


def cursor_type(task: StreamTask[Any, Any, Any, Any]) -> Any:
    """The declared cursor type, or None if none was declared."""
    declared = type_argument(task, StreamTask, 3)
    if declared is None:
        declared = returned_pair(task.process_item)
    return declared if declared is not None else optional_parameter(task.open, "cursor")


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """A stream's attributes as they were when it was opened."""

    window: Window
    on_item_error: ErrorPolicy
    item_retry: RetryPolicy
    dead_letters: DeadLetterSink | None
    max_in_flight: int
    transactional: bool
    attempt_timeout: float | None
    retry_on: Callable[[BaseException], bool]
    has_cursor_of: bool


def settings_of(task: StreamTask[Any, Any, Any, Any]) -> StreamSettings:
    """Read and check a stream's attributes.

    Raises:
        ConfigurationError: one is of the wrong type.
    """
    name = type(task).__name__
    wanted = {
        "window": (Window, "Window(count=...) or Window(seconds=...)"),
        "on_item_error": (
            (FailFast, SkipAndContinue, RetryOnError),
            "FailFast(), SkipAndContinue() or RetryOnError(n)",
        ),
        "transactional": (bool, "True or False"),
        "config": (TaskConfig, "TaskConfig(...)"),
    }
    values: dict[str, Any] = {}
    for attribute, (kind, remedy) in wanted.items():
        values[attribute] = getattr(task, attribute)
        if not isinstance(values[attribute], kind):  # type: ignore[arg-type]  # the dict's values are one union
            found = type(values[attribute]).__name__
            raise ConfigurationError(f"{name}.{attribute} must be {remedy}, not a {found}")
    config: TaskConfig = values.pop("config")
    if config.circuit_breaker is not None:
        raise ConfigurationError(f"{name}.config has a circuit_breaker, which a stream does not ask; use it in process_item")
    check_retry(task.item_retry, f"{name}.item_retry")
    if count(task.max_in_flight, f"{name}.max_in_flight") < 1:
        raise ConfigurationError(f"{name}.max_in_flight must be at least 1")
    if task.dead_letters is not None and not isinstance(task.dead_letters, DeadLetterSink):
        found = type(task.dead_letters).__name__
        raise ConfigurationError(f"{name}.dead_letters must have async write(letter), which a {found} has not")
    return StreamSettings(
        item_retry=task.item_retry,
        dead_letters=task.dead_letters,
        max_in_flight=task.max_in_flight,
        attempt_timeout=optional_seconds(config.attempt_timeout, "attempt_timeout"),
        retry_on=config.rules(NoRetry()).retry_on,
        has_cursor_of=getattr(task.cursor_of, "__func__", None) is not StreamTask.cursor_of,
        **values,
    )


def item_type(task: StreamTask[Any, Any, Any, Any]) -> Any:
    """The declared item type, or None if none was declared."""
    return type_argument(task, StreamTask, 1)
