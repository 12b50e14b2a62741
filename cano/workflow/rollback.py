"""Rollback: undo the completed steps of a saga, last first, durably, whatever the token says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import cano.errors as tree
from cano.brake import Halt
from cano.errors import (
    AttemptTimeoutError,
    CanoError,
    CheckpointStoreError,
    CompensationFailedError,
    OrphanedCompensationError,
    RunFencedError,
    TaskExecutionError,
)
from cano.observer import Compensated
from cano.recovery.replay import Completed
from cano.task.compensatable import CompensatableTask
from cano.task.retry import NoRetry, Rules, Sheltered, run_attempts
from cano.workflow.drivers import rules_of
from cano.workflow.run import Run

_KINDS = {kind.__name__: kind for kind in vars(tree).values() if isinstance(kind, type) and issubclass(kind, CanoError)}


def wanted(run: Run, failure: CanoError) -> bool:
    """Whether a run that ends with `failure` has something to undo, and shall.

    A run that was fenced undoes nothing. One that was stopped, but could be resumed, is only paused, unless its token
    asked for a rollback.
    """
    if not run.completed or isinstance(failure, RunFencedError):
        return False
    if failure is run.halt and run.store is not None:
        return run.brake.reason is Halt.CANCELLED and run.token.rollback
    return True


async def roll_back(run: Run, original: CanoError, *, again: bool = False) -> CanoError:
    """Undo the completed steps and give the error to raise: the original one if all went well.

    `again` when a resume goes on with a rollback that is on record. Each step's row follows its compensation, so a
    crash in between compensates that step again.

    Nothing is undone before it is on record that the run only rolls back from here on: a resume would go forward from
    steps that were undone.

    Raises:
        RunFencedError: somebody else has taken over; nothing more is undone.
    """
    run.brake.shelter()
    try:
        run.restore()
        run.branches = None
        if not again and (failure := await _begin(run, original)) is not None:
            return _failed(original, [failure], "nothing was undone, for that could not be recorded; resume_from goes forward")
        errors = await _undo_all(run)
    finally:
        run.brake.expose_again()
    if not errors:
        return original
    return _failed(original, errors, "the log is kept, resume_from tries them again" if run.store is not None else "")


async def _begin(run: Run, original: CanoError) -> CheckpointStoreError | None:
    """Record that the run only rolls back from here on; what went wrong with that."""
    label = run.plan.known(run.state) or ""
    try:
        await run.journal.rollback_started(label, "", dump_error(run, original), visit=run.visit, data=run.saved)
    except RunFencedError:
        raise
    except CheckpointStoreError as error:
        return error
    return None


def _failed(original: CanoError, errors: Sequence[CanoError], what_now: str) -> CompensationFailedError:
    message = f"the rollback after {type(original).__name__} had {len(errors)} {'failure' if len(errors) == 1 else 'failures'}: "
    message += ", ".join(dict.fromkeys(type(error).__name__ for error in errors))
    return CompensationFailedError(f"{message}; {what_now}" if what_now else message, errors=(original, *errors))


async def _undo_all(run: Run) -> list[CanoError]:
    """Undo the completed steps, each followed by its row; what went wrong."""
    loop = asyncio.get_running_loop()
    deadline = None if run.compensation_timeout is None else loop.time() + run.compensation_timeout
    recorded = run.journal.sequence - 1  # steps from here on have no row
    errors: list[CanoError] = []
    while run.completed:
        step = run.completed.pop()
        failures = await _undo(run, step, None if deadline is None else deadline - loop.time())
        errors += failures
        run.audience.tell("on_compensation", Compensated, task=step.task, error=failures[0] if failures else None)
        if step.sequence < recorded:
            if not failures:
                await _record(run, step, errors)
        elif failures and run.store is not None and not any(isinstance(error, OrphanedCompensationError) for error in failures):
            errors.append(
                _orphaned(step, step.value if step.output is None else step.output, "it is in no log, so do it by hand")
            )
    return errors


async def _record(run: Run, step: Completed, errors: list[CanoError]) -> None:
    """Append the row of a compensated step. If that fails the step is compensated again by a resume, and the rest are
    undone all the same.
    """
    try:
        data = run.save()
    except CanoError as error:
        errors.append(error)
        run.restore()
        data = run.saved
    try:
        await run.journal.compensated(step.state, step.task, step.sequence, visit=step.visit, data=data)
    except RunFencedError:
        raise
    except CheckpointStoreError as error:
        errors.append(error)


async def _undo(run: Run, step: Completed, left: float | None) -> list[CanoError]:
    """Compensate one step; what went wrong, if anything."""
    registered = run.plan.states.get(run.plan.label(step.state))
    if registered is None or not isinstance(registered.task, CompensatableTask):
        return [_orphaned(step, step.output, "nothing compensatable is registered for its state")]
    assert registered.codec is not None
    try:
        output = step.value if step.output is None else registered.codec.decode(step.output)
    except CanoError as error:
        return [error]
    if left is not None and left <= 0:
        return [_orphaned(step, output, "compensation_timeout had passed")]
    ctx = run.context(registered, state=registered.state)
    limit = rules_of(registered.task).attempt_timeout
    cut = left is not None and (limit is None or left < limit)
    rules = Rules(NoRetry(), lambda error: False, left if cut else limit)
    try:
        await run_attempts(
            lambda: registered.task.compensate(ctx, output),
            ctx=ctx,
            hook="compensate",
            rules=rules,
            guard=Sheltered(run.brake),
            host=run,
        )
    except CanoError as error:
        error.locate(registered.state, 1, run.path)
        return [error, _orphaned(step, output, "compensation_timeout cut it off")] if cut and _expired(error) else [error]
    return []


def _expired(error: CanoError) -> bool:
    return isinstance(error, AttemptTimeoutError)


def _orphaned(step: Completed, output: Any, why: str) -> OrphanedCompensationError:
    return OrphanedCompensationError(f"step {step.task} was not compensated: {why}", task=step.task, output=output)


def dump_error(run: Run, error: CanoError) -> bytes:
    """The original error as the log keeps it: its class, its message (which holds no user's value) and its place."""
    known = next(kind for kind in type(error).__mro__ if kind is _KINDS.get(kind.__name__))
    fields = {name: value for name, value in vars(error).items() if name not in ("state", "path", "message") and _plain(value)}
    stored = {
        "kind": known.__name__,
        "category": error.category,
        "message": error.message,
        "fields": fields,
        "state": run.plan.known(error.state) or run.plan.known(run.state),
        "path": [run.plan.known(state) for state in error.path],
    }
    return json.dumps(stored).encode()


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def load_error(run: Run, blob: bytes) -> CanoError:
    """The original error of a rollback on record: of its class, or of the nearest of ours if that was a user's own. What
    caused it is gone.

    Raises:
        CheckpointStoreError: the bytes are damaged.
    """
    try:
        stored = json.loads(blob)
        error: CanoError = _KINDS.get(stored["kind"], TaskExecutionError)(stored["message"])
        vars(error).update(stored["fields"])
        if error.category != stored["category"]:
            vars(error)["category"] = stored["category"]
        error.state = run.plan.find(stored["state"] or "")
        error.path = tuple(run.plan.find(label or "") for label in stored["path"])
        return error
    except (ValueError, KeyError, TypeError):
        raise CheckpointStoreError(f"the rollback of run {run.workflow_id!r} has a damaged row; it was left as it is") from None
