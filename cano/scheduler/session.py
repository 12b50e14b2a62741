"""A scheduler from its start to its stop: timers, runs, and the resources they share.

Nothing here waits for a fire: timers of the event loop begin them, and the end of a run plans the next one. There is one
asyncio task for each run, and one, the keeper, that holds the resources of all workflows, so that whatever has to be left
in the asyncio task that entered it is.

A stop goes through these stages. Each but the last begins when the one before is done, or has taken too long:

    draining     no new fires; the tokens of all runs are fired                          stop_timeout
    aborting     their drains are ended                                                  GRACE
    cancelling   their asyncio tasks are cancelled                                       GRACE
    leaving      runs that still go on are abandoned; resources are torn down            stop_timeout
    cutting      the teardown that is going on is cancelled, once for each resource of   GRACE each
                 its flow; then the next has its turn, until all were tried
    ended        the keeper has ended, or a teardown went on although it was cancelled
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from contextvars import Context as Variables
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cano.clock import now, wall
from cano.errors import ConfigurationError, WorkflowError
from cano.observer import Resumed, WorkflowObserver
from cano.resources import Resources
from cano.scheduler.flow import Flow
from cano.scheduler.handle import Ended, Fire, current
from cano.workflow.budget import repeats

GRACE = 2.0
"""How long each of the harsher stages of a stop may take, in seconds."""

_LEAST = 1e-6
"""The event loop runs a timer up to its clock's resolution early; to ask for less than this again would only spin."""

_log = logging.getLogger("cano")


@dataclass(slots=True)
class _Step:
    """What the keeper is doing: a flow's resources, which way, and how often it may still be cancelled for that."""

    flow: str
    what: str
    cuts: int
    cut: bool = False


class Session:
    """One life of a scheduler, in one event loop."""

    def __init__(self, flows: Sequence[Flow], stop_timeout: float) -> None:
        self.loop = asyncio.get_running_loop()
        self.flows = flows
        self.running = False
        self.stopping = False
        self.ended = False
        self.crash: BaseException | None = None
        self.surfaced = False
        self.owner: asyncio.Task[Any] | None = None
        self.interrupted: asyncio.Task[Any] | None = None
        self._stop_timeout = stop_timeout
        self._variables = copy_context()
        self._timers: dict[Flow, asyncio.TimerHandle] = {}
        self._stage: asyncio.TimerHandle | None = None
        self._overdue: Callable[[], None] | None = None
        self._up: asyncio.Future[None] = self.loop.create_future()
        self._leave: asyncio.Future[None] = self.loop.create_future()
        self._end: asyncio.Future[None] = self.loop.create_future()
        self._step: _Step | None = None
        self._cutting = False
        self._failure: BaseException | None = None
        self._keeper: asyncio.Task[BaseException | None] | None = None

    # -- starting ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Set the resources up, and begin to fire.

        Raises: whatever a set-up raised, after those already up were torn down.
        Cancellation: like a failed set-up.
        """
        self._keeper = self.loop.create_task(self._keep(), name="cano-scheduler")
        self._keeper.add_done_callback(self._left, context=self._variables)
        try:
            await asyncio.wait((self._up, self._end), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.surfaced = True
            await self.see_out()
            raise
        if self.stopping:
            self.surfaced = True
            await self.see_out()
            raise self._failure or WorkflowError("the scheduler was stopped while it started")
        self.running = True
        here = moment()
        for flow in self.flows:
            flow.open(*here)
        for flow in self.flows:
            self.consider(flow)

    async def _keep(self) -> BaseException | None:
        """Hold the resources until it is time to leave. What it raises is its result: an asyncio task that ends with a
        KeyboardInterrupt stops the event loop.
        """
        try:
            async with AsyncExitStack() as stack:
                known: set[int] = set()
                for flow in self.flows:
                    resources = flow.definition.workflow.resources
                    if id(resources) not in known:
                        known.add(id(resources))
                        self._begin(flow.name, "set up", resources)
                        await resources.acquire()
                        self._step = None
                        stack.push_async_callback(self._release, flow.name, resources)
                if not self._up.done():
                    self._up.set_result(None)
                await self._leave
        except BaseException as error:
            return error
        return None

    async def _release(self, name: str, resources: Resources) -> None:
        self._begin(name, "tear down", resources)
        try:
            await resources.release()
        finally:
            self._step = None

    def _begin(self, name: str, what: str, resources: Resources) -> None:
        self._step = _Step(name, what, max(len(resources), 1))
        if self._cutting:
            self._next(GRACE, self._cut)

    # -- firing -----------------------------------------------------------------------------------------------------

    def consider(self, flow: Flow) -> None:
        """Fire the flow if it is due, else plan when to look again."""
        timer = self._timers.pop(flow, None)
        if timer is not None:
            timer.cancel()
        if self.stopping or not self.running:
            return
        here = moment()
        left = flow.wait(*here)
        if left is None:
            return
        if left <= 0:
            self.work(flow, flow.take(*here), flow.definition.data, self._variables.copy())
            return
        left = max(left, _LEAST)
        delay = left if flow.timing.look is None else min(left, flow.timing.look)
        self._timers[flow] = self.loop.call_later(delay, self.consider, flow, context=self._variables)

    def work(self, flow: Flow, fire: Fire, data: Any, variables: Variables) -> None:
        """Begin the run of a fire. From here on it ends in `_settled`, whatever becomes of its asyncio task."""
        fire.task = self.loop.create_task(_work(flow, fire, data), name="cano-fire", context=variables)
        fire.task.add_done_callback(lambda task: self._settled(flow, fire, task), context=self._variables)

    def _settled(self, flow: Flow, fire: Fire, task: asyncio.Task[Ended]) -> None:
        ended = Ended(error=asyncio.CancelledError()) if task.cancelled() else task.result()
        if flow.fire is not fire:
            return  # it was abandoned
        outcome = flow.settle(ended, *moment())
        fire.settle(ended, outcome)
        if outcome.kind == "failed":
            _log.warning("flow %s failed with %s", flow.name, outcome.error_type)
        if outcome.kind == "crashed" and ended.error is not None:
            self._crashed(flow, ended.error)
        if self.stopping:
            self._drained()
        else:
            self.consider(flow)

    def _crashed(self, flow: Flow, error: BaseException) -> None:
        """A KeyboardInterrupt and its like end everything, as they do in an asyncio.TaskGroup."""
        _log.error("flow %s raised %s: the scheduler stops", flow.name, type(error).__name__)
        self.crash = self.crash or error
        self.stop()
        if self.owner is not None and self.interrupted is None and not self.owner.done():
            self.interrupted = self.owner
            self.owner.cancel()

    # -- stopping ---------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> list[Flow]:
        """The flows that have a run."""
        return [flow for flow in self.flows if flow.fire is not None]

    def stop(self) -> None:
        """Begin to stop, if that has not begun."""
        if self.stopping:
            return
        self.stopping = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._next(self._stop_timeout, self._abort)
        for flow in self.busy:
            if flow.fire is not None:
                flow.fire.token.cancel()
        if not self.running and self._keeper is not None:
            self._keeper.cancel()  # it may be in a set-up
        self._drained()

    def hurry(self) -> None:
        """End the stage that a stop is in, and in the last one the teardown that is going on."""
        if self._cutting and self._step is not None and self._step.cut and self._keeper is not None:
            self._keeper.cancel()
        elif self._overdue is not None:
            self._overdue()

    async def see_out(self, before: BaseException | None = None) -> None:
        """Stop, and wait for the end.

        Raises: the crash that ended the scheduler, if one did.
        Cancellation: ends the drains and goes on; raised when all is done. `before` is one that was there already.
        """
        if asyncio.current_task() is self.owner:
            self.owner = None  # no need to interrupt it: it is here
        self.stop()
        cancelled: asyncio.CancelledError | None = None
        while not self._end.done():
            try:
                await asyncio.wait((self._end,))
            except asyncio.CancelledError as error:
                if not repeats(cancelled or before, error):
                    self.hurry()
                cancelled = error
        self.surface()
        if cancelled is not None:
            raise cancelled

    async def wait(self) -> None:
        """Wait for the end, without asking for it."""
        await asyncio.wait((self._end,))
        self.surface()

    def surface(self) -> None:
        """Raise the crash that ended the scheduler, if one did and nobody has had it yet."""
        surfaced, self.surfaced = self.surfaced, True
        if self.crash is not None and not surfaced:
            raise self.crash

    def _next(self, seconds: float, overdue: Callable[[], None]) -> None:
        if self._stage is not None:
            self._stage.cancel()
        self._overdue = overdue
        self._stage = self.loop.call_later(seconds, overdue, context=self._variables)

    def _abort(self) -> None:
        self._next(GRACE, self._cancel)
        for flow in self.busy:
            if flow.fire is not None:
                flow.fire.token.abort()

    def _cancel(self) -> None:
        self._next(GRACE, self._abandon)
        for flow in self.busy:
            if flow.fire is not None and flow.fire.task is not None:
                flow.fire.task.cancel()

    def _abandon(self) -> None:
        for flow in self.busy:
            _log.error("flow %s could not be stopped within the stop timeout: its run was left behind", flow.name)
            message = f"the run of flow {flow.name} did not end when it was stopped, and was left behind"
            fire, ended = flow.fire, Ended(error=WorkflowError(message))
            outcome = flow.settle(ended, *moment(), abandoned=True)
            if fire is not None:
                flow.left_behind = fire.task
                fire.settle(ended, outcome)
        self._drained()

    def bury(self) -> None:
        """The event loop was closed without a stop: nothing of this session will ever go on."""
        for flow in self.busy:
            ended = Ended(error=WorkflowError(f"the event loop was closed during the run of flow {flow.name}"))
            flow.settle(ended, *moment(), abandoned=True)
        self.running, self.stopping, self.ended = False, True, True

    def _drained(self) -> None:
        """Go on to the teardown if no run is left."""
        if self.busy or self._leave.done():
            return
        self._leave.set_result(None)
        self._next(self._stop_timeout, self._cut)
        if self._keeper is None or self._keeper.done():
            self._finish()

    def _cut(self) -> None:
        self._cutting = True
        step = self._step
        if step is not None and not step.cuts:
            _log.error("the resources of flow %s do not %s although cancelled: they were left behind", step.flow, step.what)
            self._finish()
            return
        self._next(GRACE, self._cut)
        if step is not None and self._keeper is not None:  # else it is between two, and the next one gets a time of its own
            if not step.cut:
                _log.error("the resources of flow %s did not %s in time, and are cancelled", step.flow, step.what)
            step.cut, step.cuts = True, step.cuts - 1
            self._keeper.cancel()

    @property
    def lingers(self) -> str | None:
        """The flow whose resources a stop has left behind, if they are still in the way."""
        if self._keeper is None or self._keeper.done() or self.loop.is_closed():
            return None
        return "" if self._step is None else self._step.flow

    def _left(self, keeper: asyncio.Task[BaseException | None]) -> None:
        """The keeper has ended, asked to or not."""
        error = None if keeper.cancelled() else keeper.result()
        if error is not None and not isinstance(error, asyncio.CancelledError):
            self._failure = error
            self.crash = self.crash or (None if isinstance(error, Exception) else error)
        if self._leave.done():
            self._finish()
        else:
            self.stop()

    def _finish(self) -> None:
        if self._stage is not None:
            self._stage.cancel()
        self._stage = self._overdue = None
        self.running, self.ended = False, True
        if not self._end.done():
            self._end.set_result(None)


def moment() -> tuple[float, datetime]:
    """The time: monotonic seconds, and the moment of the calendar."""
    return now(), wall()


class _Resumption(WorkflowObserver):
    """Notes that a run has gone on where its log ended."""

    def __init__(self, fire: Fire) -> None:
        self._fire = fire

    def on_resume(self, event: Resumed) -> None:
        """The log was accepted."""
        self._fire.resumed = True


async def _work(flow: Flow, fire: Fire, data: Any) -> Ended:
    """Run a fire. What it raises is a part of the result, whatever it is."""
    current.set(fire)
    definition = flow.definition
    workflow = definition.workflow
    observers = () if workflow.checkpoint_store is None else (_Resumption(fire),)
    try:
        if callable(data):
            data = None if fire.token.cancelled else data(fire.due)
            if inspect.iscoroutine(data):
                data.close()
                raise ConfigurationError(f"the data function of flow {flow.name} is async; it must be a plain one")
        end = await workflow.run_inside(
            definition.initial, fire.workflow_id, fire.token, data, observers, resume=True, keeps_log=False
        )
        return Ended(end)
    except BaseException as error:
        return Ended(error=error)
