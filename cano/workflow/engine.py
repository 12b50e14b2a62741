"""The state machine: enter, record, dispatch, go on, until an exit state. And a run's life around it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, NoReturn

from cano.brake import Halt, Halted
from cano.clock import Turn, now
from cano.errors import (
    CanoError,
    CheckpointStoreError,
    RunFencedError,
    TaskExecutionError,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)
from cano.observer import ClearFailed, Event, Outcome, Resumed, RunEnded, RunStarted, TeardownFailed, TimedOut
from cano.recovery.journal import Journal, store_failure
from cano.task.retry import raised_by
from cano.workflow import rollback
from cano.workflow.dispatch import dispatch
from cano.workflow.resume import Start, find_start
from cano.workflow.run import Run

Expose = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]

_log = logging.getLogger("cano")


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for: a fresh run at `initial`, or a resume, or whichever fits."""

    initial: Any = None
    resume: bool = False
    if_exists: str = "error"


async def live(run: Run, request: Request) -> Any:
    """A run's whole life: claim it, find where it starts, set up the resources, drive it, and undo all that in
    reverse.
    """
    run.audience.tell("on_run_start", RunStarted, resumed=request.resume)
    began = now() if run.audience else 0.0
    outcome: Outcome = "crashed"
    kind: type[BaseException] | None = None
    try:
        end = await _live(run, request)
        outcome = "completed"
        return end
    except (Halted, asyncio.CancelledError) as error:  # stopped before the first state
        if not run.brake.on:
            outcome, kind = "failed", TaskExecutionError
            raise TaskExecutionError("getting ready raised CancelledError") from error
        outcome, kind = _stopped(run), type(run.stopped())
        raise run.stopped() from error.__cause__
    except BaseException as error:
        kind = type(error)
        if isinstance(error, Exception):
            outcome = _stopped(run) if error is run.halt else "failed"
        raise
    finally:
        if run.audience:
            _tell_end(run, outcome, now() - began, kind)


def _tell_end(run: Run, outcome: Outcome, seconds: float, kind: type[BaseException] | None) -> None:
    name = None if kind is None else kind.__name__
    category = kind.category if kind is not None and issubclass(kind, CanoError) else None
    run.audience.tell("on_run_end", RunEnded, outcome=outcome, seconds=seconds, error_type=name, category=category)


async def _live(run: Run, request: Request) -> Any:
    async with AsyncExitStack() as stack:
        claim = getattr(run.store, "claim", None)  # what `Claiming` offers; asking with isinstance takes a third of a run
        if claim is not None:
            await _ready(run, lambda expose: expose(_claimed(stack, claim, run.workflow_id)))
            if (introduce := getattr(run.store, "introduce", None)) is not None:
                introduce(run.workflow_id, run.workflow)
        start: Start = await _ready(
            run, lambda expose: expose(find_start(run, request.initial, request.resume, request.if_exists))
        )
        await _ready(run, run.resources.acquire)
        try:
            run.budget.start()
            return await _drive(run, start)
        except CanoError as error:
            await _note(run, error)
            raise
        finally:
            run.budget.stop()
            await _put_away(run)


async def _ready(run: Run, part: Callable[[Expose], Awaitable[Any]]) -> Any:
    """Do a part of getting ready; a stop ends it, unless the token asks that what the log holds is rolled back: that takes
    all of them.
    """
    try:
        return await part(run.brake.expose)
    except Halted:
        if run.store is None or not run.token.rollback:
            raise
        return await part(_unexposed)


async def _unexposed(operation: Coroutine[Any, Any, Any]) -> Any:
    return await operation


async def _claimed(stack: AsyncExitStack, claim: Callable[[str], Any], workflow_id: str) -> None:
    try:
        await stack.enter_async_context(claim(workflow_id))
    except (asyncio.CancelledError, Exception) as error:
        raise store_failure("claim a run", error) from error


async def _drive(run: Run, start: Start) -> Any:
    """Go from state to state."""
    if start.sequence is None:
        run.save()
    else:
        run.audience.tell("on_resume", Resumed, sequence=start.sequence)
    if start.original is not None:
        await _undone(run, start.original, again=True)
    state, again, cursor = start.state, start.again, start.cursor
    turn = Turn(asyncio.get_running_loop().time)
    left = 1
    try:
        while True:
            run.budget.check()
            if run.brake.on:
                raise run.stopped()
            left -= 1
            if not left:
                left = await turn.give()
            registered = await run.enter(state, again=again)
            if registered is None or not registered.leaves_no_row:
                await _forget_inner(run)
            if registered is None:
                if not run.keeps_log:
                    await _complete(run)
                return state
            state = await dispatch(run, registered, cursor)
            again, cursor = False, None
    except (asyncio.CancelledError, CanoError) as error:
        failure = error if isinstance(error, CanoError) else run.stopped()
        failure.locate(run.state, 1, run.path)
        if rollback.wanted(run, failure):
            await _undone(run, failure)
        raise failure from error.__cause__


async def _undone(run: Run, original: CanoError, *, again: bool = False) -> NoReturn:
    """Roll back, and raise what that gives. A clean rollback has no use for its log any more."""
    try:
        failure = await rollback.roll_back(run, original, again=again)
    except RunFencedError as fenced:
        fenced.locate(original.state, original.attempt or 1, original.path)
        raise
    if failure is original:
        await _forget_inner(run)
        await _complete(run)
        original.message = original.message.removesuffix(run.hint)
    failure.locate(original.state, original.attempt or 1, original.path)
    raise failure from original.__cause__ if failure is original else original


async def _note(run: Run, error: CanoError) -> None:
    """Let a store that keeps notes know what the run failed with. One that was only stopped has not; one that was fenced, or
    whose store failed, leaves that store alone.
    """
    note = getattr(run.store, "note_failure", None)
    if note is None or run.brake.aborted or isinstance(error, CheckpointStoreError | WorkflowCancelledError):
        return
    try:
        await note(run.workflow_id, type(raised_by(error)).__name__, error.category)
    except (asyncio.CancelledError, Exception) as failure:
        _log.warning("the failure of run %s could not be noted: %s", run.workflow_id, type(failure).__name__)


async def _complete(run: Run) -> None:
    """The log has served. That it cannot be removed does not change how the run ended."""
    try:
        await run.journal.clear()
    except asyncio.CancelledError:  # an aborted drain: the run has ended all the same
        _log.warning("the log of run %s may not have been removed", run.workflow_id)
    except CheckpointStoreError as error:
        _log.warning("the log of run %s could not be removed", run.workflow_id)
        run.audience.tell("on_checkpoint_clear_failed", ClearFailed, error=error)


async def _forget_inner(run: Run) -> None:
    """A row says what followed from the inner runs so far: their logs have served too."""
    for store, workflow_id in run.inner_logs:
        try:
            await Journal(store, workflow_id, 0).clear()
        except CheckpointStoreError as error:
            _log.warning("the log of run %s could not be removed", workflow_id)
            run.audience.tell("on_checkpoint_clear_failed", ClearFailed, error=error)
    run.inner_logs.clear()


def _stopped(run: Run) -> Outcome:
    """Tell the observers why the brake was pressed."""
    error = run.stopped()
    if run.brake.reason is Halt.TIMED_OUT:
        assert isinstance(error, WorkflowTimeoutError)
        run.audience.tell("on_workflow_timeout", TimedOut, elapsed=error.elapsed, limit=error.limit)
        return "timeout"
    assert isinstance(error, WorkflowCancelledError)
    run.audience.tell("on_cancelled", Event)
    return "cancelled"


async def _put_away(run: Run) -> None:
    """Tear the resources down. An aborted drain cuts that short, but does not undo what the run has achieved."""
    try:
        await run.resources.release(lambda name, error: _teardown_failed(run, name, error))
    except asyncio.CancelledError:
        if not run.brake.aborted:
            raise
        _log.warning("the teardown of run %s was cut short", run.workflow_id)


def _teardown_failed(run: Run, name: str, error: BaseException) -> None:
    run.audience.tell("on_teardown_failed", TeardownFailed, resource=name, error_type=type(error).__name__)
