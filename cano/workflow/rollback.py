"""Rollback: undo the completed steps of a saga, last first, durably, whatever the token says."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

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

    Raises:
        RunFencedError: somebody else has taken over; nothing more is undone.
    """
    run.brake.shelter()
    try:
        return await _roll_back(run, original, again)
    finally:
        run.brake.expose_again()


async def _roll_back(run: Run, original: CanoError, again: bool) -> CanoError:
    loop = asyncio.get_running_loop()
    deadline = None if run.compensation_timeout is None else loop.time() + run.compensation_timeout
    errors: list[CanoError] = []
    if not again:
        label = run.plan.known(run.state) or ""
        await _record(errors, run.journal.rollback_started(label, "", dump_error(run, original), visit=run.visit, data=run.saved))
    while run.completed:
        step = run.completed.pop()
        failures = await _undo(run, step, None if deadline is None else deadline - loop.time())
        errors += failures
        run.audience.tell("on_compensation", Compensated, task=step.task, error=failures[0] if failures else None)
        if not failures and step.sequence is not None:
            await _record(errors, run.journal.compensated(step.state, step.task, step.sequence, visit=step.visit, data=run.saved))
    if not errors:
        return original
    return CompensationFailedError(
        f"{len(errors)} compensations failed after {type(original).__name__}; the log is kept, resume_from tries them again"
        if run.store is not None
        else f"{len(errors)} compensations failed after {type(original).__name__}",
        errors=(original, *errors),
    )


async def _record(errors: list[CanoError], append: Any) -> None:
    """Append a row of the rollback. A store that fails does not stop it: what cannot be recorded is undone all the
    same.
    """
    try:
        await append
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
        output = registered.codec.decode(step.output)
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
    except AttemptTimeoutError as error:
        return [error, _orphaned(step, output, "compensation_timeout cut it off")] if cut else [error]
    except CanoError as error:
        return [error]
    return []


def _orphaned(step: Completed, output: Any, why: str) -> OrphanedCompensationError:
    return OrphanedCompensationError(f"step {step.task} was not compensated: {why}", task=step.task, output=output)


def dump_error(run: Run, error: CanoError) -> bytes:
    """The original error as the log keeps it: its class, its message (which holds no user's value) and its place."""
    fields = {name: value for name, value in vars(error).items() if name not in ("state", "path", "message") and _plain(value)}
    path = [run.plan.known(state) for state in error.path]
    place = {"state": run.plan.known(error.state), "path": path}
    return orjson.dumps({"kind": type(error).__name__, "message": error.message, "fields": fields, **place})


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def load_error(run: Run, blob: bytes) -> CanoError:
    """The original error of a rollback on record. What caused it is gone.

    Raises:
        CheckpointStoreError: the bytes are damaged.
    """
    try:
        stored = orjson.loads(blob)
        error: CanoError = _KINDS.get(stored["kind"], TaskExecutionError)(stored["message"])
        vars(error).update(stored["fields"])
        error.state = run.plan.find(stored["state"] or "")
        error.path = tuple(run.plan.find(label or "") for label in stored["path"])
        return error
    except (ValueError, KeyError, TypeError):
        raise CheckpointStoreError(f"the rollback of run {run.workflow_id!r} has a damaged row; it was left as it is") from None
