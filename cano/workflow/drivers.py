"""One driver for each kind of task that is no stream: what it does with the attempts, the journal and the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from cano.brake import Halted
from cano.clock import Turn, wall
from cano.context import Context
from cano.errors import (
    CanoError,
    CheckpointStoreError,
    TaskExecutionError,
    WorkflowCancelledError,
    WorkflowTimeoutError,
)
from cano.recovery.replay import Completed
from cano.task.batch import BatchTask, work_off
from cano.task.breaker import guarded
from cano.task.compensatable import CompensatableTask
from cano.task.config import TaskConfig
from cano.task.failure import hook_failure
from cano.task.poll import PollTask, ask
from cano.task.retry import ExponentialBackoff, Guard, Member, NoRetry, Rules, Sheltered, run_attempts
from cano.task.router import RouterTask
from cano.task.split import Split, fan_out
from cano.task.stepped import Done, More, SteppedTask
from cano.task.timer import TimerTask, deadline_of
from cano.workflow.branches import BranchHost
from cano.workflow.nested import SubWorkflow, inner_id
from cano.workflow.plan import Registration
from cano.workflow.run import Run, Story


def rules_of(task: Any) -> Rules:
    """How the attempts of a task are run."""
    config: TaskConfig = getattr(task, "config", None) or TaskConfig()
    rules = config.rules(NoRetry() if isinstance(task, PollTask | TimerTask | SubWorkflow) else ExponentialBackoff())
    return replace(rules, breaker=None) if isinstance(task, PollTask | TimerTask) else rules  # which ask it for each call


def hook_of(task: Any) -> tuple[str, Callable[[Any, Context[Any]], Coroutine[Any, Any, Any]]]:
    """The name of what one attempt of a task calls, and that call."""
    if isinstance(task, RouterTask):
        return "route", lambda task, ctx: task.route(ctx)
    if isinstance(task, PollTask):
        return "poll", ask
    if isinstance(task, BatchTask):
        return "the batch", work_off
    return "run", lambda task, ctx: task.run(ctx)


async def run_plain(run: Run, registered: Registration, ctx: Context[Any], guard: Guard | None = None) -> Any:
    """A task whose attempts are all there is to it."""
    task = registered.task
    hook, call = hook_of(task)
    return await run_attempts(
        partial(call, task, ctx), ctx=ctx, hook=hook, rules=rules_of(task), guard=guard or run.brake, host=run
    )


async def run_stepped(run: Run, registered: Registration, ctx: Context[Any], cursor: Any) -> Any:
    """Step after step, each with its own attempts, each written down before the next."""
    task: SteppedTask[Any, Any] = registered.task
    codec, rules = registered.codec, rules_of(task)
    turn, left = Turn(asyncio.get_running_loop().time), 1
    assert codec is not None
    blob = None if cursor is None else codec.encode(cursor)

    async def step() -> Any:  # an attempt may have changed the cursor it was given
        return await task.step(ctx, None if blob is None else codec.decode(blob))

    while True:
        answer = await run_attempts(step, ctx=ctx, hook="step", rules=rules, guard=run.brake, host=run)
        if isinstance(answer, Done):
            return answer.state
        if not isinstance(answer, More):
            raise TaskExecutionError(
                f"step of {task.name} must return More(cursor) or Done(state), not a {type(answer).__name__}"
            )
        blob = codec.encode(answer.cursor)
        await run.journal.cursor(registered.label, registered.name, blob, next_state=None, visit=run.visit, data=run.save())
        left -= 1
        if not left:
            left = await turn.give()


def admitted(task: Any, call: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], Coroutine[Any, Any, Any]]:
    """A call that a task's breaker, if it has one, is asked for."""
    breaker = task.config.circuit_breaker
    return call if breaker is None else partial(guarded, breaker, call)


async def run_timer(run: Run, registered: Registration, ctx: Context[Any], deadline: datetime | None) -> Any:
    """Write down until when to wait, wait for what is left of that, and go on. Nothing is written in an exposed wait."""
    task: TimerTask[Any] = registered.task
    rules, loop = rules_of(task), asyncio.get_running_loop()
    if deadline is None:
        asking = admitted(task, partial(task.wait, ctx))
        moment = await run_attempts(asking, ctx=ctx, hook="wait", rules=rules, guard=run.brake, host=run)
        began, now = loop.time(), wall()
        deadline = deadline_of(task.name, moment, now)
        assert registered.codec is not None
        blob = registered.codec.encode(deadline)
        await run.journal.cursor(registered.label, registered.name, blob, next_state=None, visit=run.visit, data=run.save())
    else:
        began, now = loop.time(), wall()
    until, after = began + (deadline - now).total_seconds(), admitted(task, partial(task.after_wait, ctx))

    async def rest() -> Any:
        await asyncio.sleep(max(until - loop.time(), 0.0))
        return await after()

    return await run_attempts(rest, ctx=ctx, hook="after_wait", rules=rules, guard=run.brake, host=run)


async def run_compensatable(run: Run, registered: Registration, ctx: Context[Any]) -> Any:
    """Do a step that can be undone: neither a cancel nor the total timeout cuts it, and its output and decision are
    one row. Once it is done it is among the completed ones, whatever goes wrong with that row.
    """
    task: CompensatableTask[Any, Any] = registered.task
    pair = await run_plain(run, registered, ctx, Sheltered(run.brake))
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TaskExecutionError(f"run of {task.name} must return a pair (state, output), not a {type(pair).__name__}")
    state, output = pair
    assert registered.codec is not None
    step = Completed(run.journal.sequence, registered.label, registered.name, run.visit, None, output)
    try:
        blob = registered.codec.encode(output)
        step = replace(step, output=bytes(blob), value=None)
        label = run.plan.next_label(state, registered.name)
        await run.journal.completed(registered.label, registered.name, blob, next_state=label, visit=run.visit, data=run.save())
    finally:
        run.completed.append(step)
    return state


async def run_split(run: Run, registered: Registration, ctx: Context[Any]) -> Any:
    """Run the branches side by side; the state that follows sees what came of them.

    Raises:
        WorkflowError: the join was not met. TaskExecutionError: a value cannot be stored for the state that follows.
    """
    split: Split[Any] = registered.task
    names = [f"{branch.name}[{place}]" for place, branch in enumerate(split.branches)]
    bodies = [partial(_branch, run, ctx, branch, name) for branch, name in zip(split.branches, names, strict=True)]
    branches = await run.brake.expose(fan_out(split, names, bodies))
    run.hand_over(branches, split.then)
    return split.then


async def _branch(run: Run, ctx: Context[Any], task: Any, name: str) -> Any:
    def retrying(attempt: int, delay: float, error: Exception) -> None:
        run.retrying(attempt, delay, error, task=name)

    def refused() -> None:
        run.refused(task=name)

    host = BranchHost(run.copied_data, retrying, refused)
    own = ctx.sibling(name, host.data)
    hook, call = ("the workflow", partial(nested, run)) if isinstance(task, SubWorkflow) else hook_of(task)
    story = Story(run, name, "branch")
    story.begin()
    try:
        value = await run_attempts(partial(call, task, own), ctx=own, hook=hook, rules=rules_of(task), guard=Member(), host=host)
    except (Halted, asyncio.CancelledError):
        story.failed(TaskExecutionError(f"{name} was cancelled"))
        raise
    except CanoError as error:
        error.locate(run.state, own.attempt, run.path)
        story.failed(error)
        raise
    story.succeeded()
    return value


async def run_nested(run: Run, registered: Registration, ctx: Context[Any]) -> Any:
    """Run the inner workflow. Its drain is what a stop of this run waits for, and an error of that drain surfaces."""
    try:
        return await run.brake.expose(nested(run, registered.task, ctx))
    except Halted as halted:
        if isinstance(halted.__cause__, CanoError) and not isinstance(halted.__cause__, _STOPS):
            raise halted.__cause__
        raise


async def nested(run: Run, sub: SubWorkflow, ctx: Context[Any]) -> Any:
    """Run an inner workflow and give the outer state, or the exit state itself for a branch.

    Its log is kept until a row of this run says what followed, so that a resume does not do it twice.
    """
    workflow, label = sub.workflow, run.plan.known(ctx.state) or ""
    workflow_id = inner_id(run.workflow_id, label, run.visit, ctx.task)
    durable = run.store is not None and workflow.checkpoint_store is not None
    if durable:
        run.inner_logs.append((workflow.checkpoint_store, workflow_id))
    try:
        data = None if sub.data is None else sub.data(ctx)
        end = await workflow.run_inside(
            sub.initial, workflow_id, run.token, data, run.audience.observers, resume=run.again, keeps_log=durable
        )
    except (asyncio.CancelledError, Exception) as error:
        raise _inner_failure(run, sub, error)
    return sub.chosen(end)


_STOPS = (WorkflowCancelledError, WorkflowTimeoutError)


def _inner_failure(run: Run, sub: SubWorkflow, error: BaseException) -> BaseException:
    """What an error of an inner run is for the outer one: the same, further along the path, if it tells of the inner
    run's work; a failure of the task if it tells of the inner run itself.
    """
    if isinstance(error, asyncio.CancelledError):
        if not isinstance(error.__cause__, CanoError) or isinstance(error.__cause__, _STOPS):
            return error
        error = error.__cause__
    if isinstance(error, CanoError) and not isinstance(error, (*_STOPS, CheckpointStoreError)):
        error.path = (*run.path, *error.path)
        return error
    return hook_failure(sub.name, "the workflow", error)
