"""Run a stream: what its session gets from the run, and how it ends."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from cano.brake import Halted
from cano.context import Context
from cano.errors import TaskExecutionError
from cano.observer import ItemDropped, WindowFlushed
from cano.recovery.codec import UNDECLARED, Codec
from cano.task.failure import crashes
from cano.task.letter import DeadLetter
from cano.task.loop import Ending, run_windows
from cano.task.pull import open_source
from cano.task.session import StreamSession
from cano.task.stream import Stop, StreamTask, item_type, settings_of
from cano.workflow.plan import Registration
from cano.workflow.run import Run


async def run_stream(run: Run, registered: Registration, ctx: Context[Any], cursor: Any) -> Any:
    """Open the stream at a cursor, run it, and give the state it chose."""
    task: StreamTask[Any, Any, Any, Any] = registered.task
    settings = settings_of(task)
    if run.brake.on:
        raise Halted
    source = await open_source(task, ctx, cursor, run.brake)
    ending = await _run_session(StreamSession(task, settings, ctx, run.brake, source, StreamHost(run, registered)))
    if ending.drained:
        raise Halted
    return ending.state


async def _run_session(session: StreamSession) -> Ending:
    """Run an opened stream and put it away. What is no Exception, wherever it came up, hides behind nothing else."""
    ending, crash = Ending(), None
    try:
        try:
            ending = await run_windows(session)
        except BaseException as error:
            crash = error if crashes(error) else None
            raise
        finally:
            crash = crash or session.crash
            if crash is not None:
                session.brake.crash()
            await session.release()
    except BaseException:
        if crash is None:
            raise
    try:
        if crash is not None:
            raise crash
        return ending
    finally:
        del crash  # or it would keep this frame alive


class StreamHost:
    """What a stream gets from its run (`cano.task.host.Host`): the codec, the journal and the observers."""

    def __init__(self, run: Run, registered: Registration) -> None:
        assert registered.codec is not None
        self._run = run
        self._registered = registered
        self._codec = registered.codec
        self.fix = registered.codec.fix

    def encode(self, cursor: Any) -> bytes:
        """Encode a cursor, or raise CursorError."""
        return self._codec.encode(cursor)

    def window_id(self) -> str:
        """Run, state and visit, and the sequence of the cursor row that the window goes on from."""
        run = self._run
        base = "start" if run.journal.cursor_row is None else run.journal.cursor_row
        return f"{run.workflow_id}:{self._registered.label}:{run.visit}:{base}"

    async def commit(self, cursor: bytes, stop: Stop[Any] | None) -> None:
        """Append the cursor, the data and the decision as one row."""
        run, name = self._run, self._registered.name
        next_state = None if stop is None else run.plan.next_label(stop.state, name)
        await run.journal.cursor(self._registered.label, name, cursor, next_state=next_state, visit=run.visit, data=run.save())

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A transaction of the store, which `commit` takes part in."""
        if self._run.store is None:
            raise TaskExecutionError(f"{self._registered.name} is transactional and there is no checkpoint store")
        return self._run.journal.transaction()

    def flushed(self, count: int, seconds: float, stopped: bool) -> None:
        """Tell the observers of a window."""
        if self._run.audience:
            self._run.audience.tell(
                "on_window", WindowFlushed, task=self._registered.name, count=count, seconds=seconds, stopped=stopped
            )

    def dropped(self, error: BaseException, dead_lettered: bool) -> None:
        """Tell the observers of an item that the policy dropped."""
        self._run.audience.tell(
            "on_item_dropped",
            ItemDropped,
            task=self._registered.name,
            error_type=type(error).__name__,
            dead_lettered=dead_lettered,
        )

    def retrying(self, attempt: int, delay: float, error: Exception) -> None:
        """Tell the observers that an attempt at an item failed and another follows."""
        self._run.retrying(attempt, delay, error)

    def letter(self, item: Any, error: Exception, cursor: Any) -> DeadLetter:
        """A dead letter, which can encode its item by the declared type."""
        run, name = self._run, self._registered.name
        declared = item_type(self._registered.task)
        codec = Codec(
            UNDECLARED if declared is None else declared,
            what=f"an item of {name}",
            remedy="declare the items' type: StreamTask[State, Item, Output, Cursor]",
        )
        return DeadLetter(
            item,
            error,
            cursor,
            workflow_id=run.workflow_id,
            state=self._registered.label,
            task=name,
            encode_item=lambda: bytes(codec.encode(item)),
            encode_cursor=lambda: None if cursor is None else bytes(self._codec.encode(cursor)),
        )

    def copied(self, data: Any) -> Any:
        """A copy of a value of `ctx.data`."""
        codec = self._run.plan.data
        return None if data is None else codec.decode(codec.encode(data))
