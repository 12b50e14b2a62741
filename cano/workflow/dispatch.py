"""Run one state's task, whatever kind it is."""

from __future__ import annotations

import asyncio
from typing import Any

from cano.brake import Halted
from cano.context import Context
from cano.errors import CanoError
from cano.task.compensatable import CompensatableTask
from cano.task.split import Split
from cano.task.stepped import SteppedTask
from cano.task.stream import StreamTask
from cano.task.timer import TimerTask
from cano.workflow.drivers import run_compensatable, run_nested, run_plain, run_split, run_stepped, run_timer
from cano.workflow.nested import SubWorkflow
from cano.workflow.plan import Registration
from cano.workflow.run import Run, Story
from cano.workflow.streaming import run_stream


async def dispatch(run: Run, registered: Registration, cursor: Any) -> Any:
    """Run the task of the state that the run is in, and give what it chose, checked.

    Raises: the error that ends the run, `Run.stopped()` if the brake did.
    """
    ctx = run.context(registered)
    name = registered.name
    story = Story(run, name, registered.kind)
    story.begin()
    try:
        chosen = await _drive(run, registered, ctx, cursor)
        run.plan.next_label(chosen, name)
        run.save()
    except (Halted, asyncio.CancelledError) as error:
        stopped = run.stopped()
        story.failed(stopped)
        raise stopped from error.__cause__
    except CanoError as error:
        error.locate(run.state, ctx.attempt, run.path)
        story.failed(error)
        raise
    story.succeeded()
    return chosen


async def _drive(run: Run, registered: Registration, ctx: Context[Any], cursor: Any) -> Any:
    match registered.task:
        case StreamTask():
            return await run_stream(run, registered, ctx, cursor)
        case SteppedTask():
            return await run_stepped(run, registered, ctx, cursor)
        case TimerTask():
            return await run_timer(run, registered, ctx, cursor)
        case CompensatableTask():
            return await run_compensatable(run, registered, ctx)
        case SubWorkflow():
            return await run_nested(run, registered, ctx)
        case Split():
            return await run_split(run, registered, ctx)
        case _:
            return await run_plain(run, registered, ctx)
