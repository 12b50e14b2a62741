"""Scheduler: workflows run by the clock, by a calendar, or when asked."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from contextvars import copy_context
from datetime import datetime
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self, TypeVar
from zoneinfo import ZoneInfo

from cano.clock import Duration, seconds, wall
from cano.errors import ConfigurationError, WorkflowError
from cano.scheduler.backoff import Backoff
from cano.scheduler.cron import Calendar
from cano.scheduler.flow import Definition, Flow
from cano.scheduler.handle import Fire, current
from cano.scheduler.session import Session, moment
from cano.scheduler.status import FlowCounters, FlowStatus
from cano.scheduler.timing import Cron, FixedDelay, FixedRate, Manual, Timing
from cano.workflow.validate import check_id
from cano.workflow.workflow import Workflow

StateT = TypeVar("StateT")
DataT = TypeVar("DataT")

LEAST_INTERVAL = 0.001
"""The shortest interval of `every`, in seconds."""

_LONGEST_NAME = 200


class Scheduler:
    """Fires flows: a flow is a workflow with a name, the state it starts from, and a rule for when.

        scheduler = Scheduler()
        scheduler.every("sync", workflow, Step.START, 60.0, fixed="rate")
        scheduler.cron("nightly", report, Step.START, "30 2 * * *", tz="Europe/Berlin")
        async with scheduler:
            await scheduler.wait()

    - A flow never overlaps itself. Fires that come while its run is going on, while the event loop is blocked, while the
      machine sleeps or during a back-off are missed: one run makes up for them all, the others are counted as skipped.
      What was missed while the scheduler was not running, or a flow was tripped, is not made up for.
    - A run that fails delays the next fire by the flow's `backoff` and may trip the flow; a success ends the streak; a
      cancelled run, and one that somebody else is working on, changes neither.
    - With a store each fire has an id, `<flow>-<instant>`, unless the flow has a fixed `workflow_id`. With a fixed id
      every fire first goes on with an unfinished run of that id.
    - The resources of all workflows are set up at the start and stay up until the stop.
    - If a run raises a BaseException that is no Exception (SystemExit, KeyboardInterrupt), the scheduler stops, and
      raises it from `async with`, `wait` or `stop`.

    `stop_timeout`, in seconds or a timedelta, is how long a stop waits for runs to drain, and again how long for
    resources to be torn down.

    One object works in one event loop at a time, and is not for other threads. After a stop it may be started again.

    Raises:
        ConfigurationError: `stop_timeout` is no finite duration.
    """

    def __init__(self, *, stop_timeout: Duration = 30.0) -> None:
        self._stop_timeout = seconds(stop_timeout, "stop_timeout")
        if math.isinf(self._stop_timeout):
            raise ConfigurationError("stop_timeout must be finite: a stop always ends")
        self._flows: dict[str, Flow] = {}
        self._session: Session | None = None

    def __repr__(self) -> str:
        return f"<Scheduler of {len(self._flows)} flows, {self.active} running>"

    # -- the definition ---------------------------------------------------------------------------------------------

    def every(
        self,
        name: str,
        workflow: Workflow[StateT, DataT],
        initial: StateT,
        interval: Duration,
        *,
        fixed: Literal["rate", "delay"],
        first: Duration = 0.0,
        workflow_id: str | None = None,
        data: DataT | Callable[[datetime], DataT] | None = None,
        backoff: Backoff | None = None,
    ) -> Self:
        """Fire a flow again and again, for the first time `first` after the start; both are seconds or timedeltas.

        `fixed="rate"` fires at start + first + k * interval, on the monotonic clock, without drift. `fixed="delay"` lets
        `interval` pass between the end of a run and the next fire.

        `data` becomes `ctx.data` of each run: a value, or a function that is given the instant the fire is for (an aware
        datetime in UTC) and returns one. `workflow_id` gives all fires one id. `backoff` is `Backoff()` if not given.

        Raises:
            ConfigurationError: an argument is wrong, `interval` is less than a millisecond, the name is taken, or the
                scheduler is running.
        """
        if fixed not in ("rate", "delay"):
            raise ConfigurationError("every needs fixed='rate' or fixed='delay'")
        length, before = seconds(interval, "interval"), seconds(first, "first")
        if not LEAST_INTERVAL <= length < math.inf or math.isinf(before):
            raise ConfigurationError("interval must be at least a millisecond, and both it and first finite")
        timing = FixedRate(length, before) if fixed == "rate" else FixedDelay(length, before)
        return self._add(name, workflow, initial, timing, workflow_id, data, backoff)

    def cron(
        self,
        name: str,
        workflow: Workflow[StateT, DataT],
        initial: StateT,
        expression: str,
        *,
        tz: str | ZoneInfo = "UTC",
        workflow_id: str | None = None,
        data: DataT | Callable[[datetime], DataT] | None = None,
        backoff: Backoff | None = None,
    ) -> Self:
        """Fire a flow at the instants of a cron expression in a time zone; needs `cano[cron]`.

        Five fields, or six with seconds first. What happens when the clocks change is said at `Calendar`. A fire never
        comes before its instant by the wall clock, and never twice for one instant when that is put back. A wall clock
        that is put forward is noticed within 30 seconds. Otherwise like `every`.

        Raises:
            ConfigurationError: like `every`; or the expression or the zone is wrong, or cronsim is missing.
        """
        timing = Cron(Calendar(expression, tz, after=wall()))
        return self._add(name, workflow, initial, timing, workflow_id, data, backoff)

    def manual(
        self,
        name: str,
        workflow: Workflow[StateT, DataT],
        initial: StateT,
        *,
        workflow_id: str | None = None,
        data: DataT | Callable[[datetime], DataT] | None = None,
        backoff: Backoff | None = None,
    ) -> Self:
        """A flow that fires only when `trigger` says so. Otherwise like `every`."""
        return self._add(name, workflow, initial, Manual(), workflow_id, data, backoff)

    def _add(
        self,
        name: str,
        workflow: Workflow[Any, Any],
        initial: Any,
        timing: Timing,
        workflow_id: str | None,
        data: Any,
        backoff: Backoff | None,
    ) -> Self:
        if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
            raise ConfigurationError(f"a flow needs a name of 1 to {_LONGEST_NAME} printable characters")
        if name in self._flows:
            raise ConfigurationError(f"flow {name} is registered already")
        if not isinstance(workflow, Workflow):
            raise ConfigurationError(f"flow {name} needs a Workflow, not a {type(workflow).__name__}")
        if initial is None:
            raise ConfigurationError(f"flow {name} needs the state it starts from")
        if not isinstance(backoff, Backoff | None):
            raise ConfigurationError(f"backoff must be a Backoff, not a {type(backoff).__name__}")
        called = getattr(type(data), "__call__", None)  # noqa: B004  # it must not be async
        if inspect.iscoroutinefunction(data) or inspect.iscoroutinefunction(called):
            raise ConfigurationError("data must be a value or a plain function, not an async one")
        if self._alive is not None:
            raise ConfigurationError("register flows before the scheduler is started")
        fixed_id = None if workflow_id is None else check_id(workflow_id)
        self._flows[name] = Flow(Definition(name, workflow, initial, backoff or Backoff(), fixed_id, data), timing)
        return self

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._flows

    def __len__(self) -> int:
        return len(self._flows)

    # -- its life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Check every workflow, set up the resources of all, and begin to fire. If it is running, do nothing.

        Raises:
            ConfigurationError: every problem of every workflow, in one message; nothing was started.
            WorkflowError: it is just starting or stopping, runs in another event loop, or a run or a teardown that an
                earlier stop left behind is still going on.
            Otherwise whatever a set-up raised, after those already up were torn down.
        Cancellation: like a failed set-up.
        """
        session = self._alive
        if session is not None:
            self._here(session, "start")
            if not session.running or session.stopping:
                raise WorkflowError(f"the scheduler is {'stopping' if session.stopping else 'starting'}")
            return
        self._check()
        self._session = session = Session(tuple(self._flows.values()), self._stop_timeout)
        await session.open()

    def _check(self) -> None:
        problems = []
        for name, flow in self._flows.items():
            try:
                flow.definition.workflow.validate(flow.definition.initial)
            except ConfigurationError as error:
                problems.append(f"flow {name}: {error.message}")
        if problems:
            raise ConfigurationError("; ".join(problems))
        lingering = [flow.name for flow in self._flows.values() if flow.lingers]
        if lingering:
            raise WorkflowError(f"runs that an earlier stop left behind are still going on: {', '.join(lingering)}")
        left = None if self._session is None else self._session.lingers
        if left is not None:
            raise WorkflowError(f"the resources of flow {left}, which an earlier stop left behind, are not torn down yet")

    @staticmethod
    def _here(session: Session, verb: str) -> None:
        """Raise WorkflowError if this is not the event loop of the scheduler."""
        try:
            here = asyncio.get_running_loop() is session.loop
        except RuntimeError:
            here = False
        if not here:
            raise WorkflowError(f"{verb} must be called in the event loop of the scheduler; it runs in another event loop")

    async def stop(self) -> None:
        """Stop, and return when it is done. Idempotent.

        No flow fires any more, and the tokens of all runs are fired, so that they drain. Drains that take longer than
        `stop_timeout` are aborted, then cancelled; a run that goes on even so is logged and left behind. Then the
        resources are torn down in reverse, within `stop_timeout` too; after that each teardown that does not end is
        cancelled, and the next one has its turn. Afterwards no asyncio task of the scheduler is alive, but for what had to
        be left behind because it goes on although it was cancelled.

        Inside a run of this scheduler it returns at once, for it would wait for itself: the run drains when its hook
        has returned.

        Raises:
            WorkflowError: the scheduler runs in another event loop; nothing was changed.
            Otherwise the BaseException of a run, if that is what ended the scheduler; once.
        Cancellation: ends the drains at once, or the teardown that is going on; stop goes on, and raises
            `asyncio.CancelledError` when it is done.
        """
        session = self._session
        if session is None:
            return
        if self._alive is not None:
            self._here(session, "stop")
        fire = current.get()
        if fire is not None and any(flow.fire is fire for flow in self._flows.values()):
            session.stop()
            return
        if self._alive is None:
            session.surface()
            return
        await session.see_out()

    async def wait(self) -> None:
        """Return when the scheduler has stopped, whoever stops it; at once if it is not running.

        Raises:
            WorkflowError: the scheduler runs in another event loop.
            Otherwise the BaseException of a run, if that is what ended the scheduler; once.
        Cancellation: does not stop the scheduler.
        """
        session = self._session
        if session is None or session.loop.is_closed():
            return
        if self._alive is None:
            session.surface()
            return
        self._here(session, "wait")
        await session.wait()

    async def __aenter__(self) -> Self:
        session = self._alive
        if session is not None and session.owner is not None:
            raise WorkflowError("the scheduler is in an `async with` already: the end of the inner one would stop it")
        await self.start()
        if self._session is not None:
            self._session.owner = asyncio.current_task()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        session = self._session
        if session is None:
            return
        interrupted, session.interrupted = session.interrupted, None
        if interrupted is not None:
            interrupted.uncancel()
        await session.see_out(error)

    @property
    def _alive(self) -> Session | None:
        """The session, if it has not ended."""
        session = self._session
        if session is not None and not session.ended and session.loop.is_closed():
            session.bury()
        return None if session is None or session.ended else session

    @property
    def _started(self) -> bool:
        session = self._alive
        return session is not None and session.running and not session.stopping

    # -- flows, one by one ------------------------------------------------------------------------------------------

    def trigger(self, name: str, *, data: Any = ...) -> Fire:
        """Fire a flow now, and return at once with its fire: `end = await scheduler.trigger("reindex")`.

        A back-off does not hinder it. `data`, if given, takes the place of the flow's own.

        Raises:
            ConfigurationError: there is no such flow.
            WorkflowError: the flow is running or tripped, the scheduler is not running, or this is not its event loop.
        """
        flow = self._flow(name)
        session = self._alive
        if session is None or not self._started:
            raise WorkflowError("the scheduler is not running")
        self._here(session, "trigger")
        fire = flow.trigger(*moment())
        session.consider(flow)  # its timer has no use while the run is going on
        session.work(flow, fire, flow.definition.data if data is ... else data, copy_context())
        return fire

    def cancel(self, name: str, rollback: bool = False) -> bool:
        """Stop the run of a flow that is going on, and only that; the flow fires again when it is time. False if there is
        none. `rollback` is that of `CancellationToken.cancel`.

        Raises:
            ConfigurationError: there is no such flow.
        """
        fire = self._flow(name).fire
        return fire is not None and fire.cancel(rollback)

    def reset(self, name: str) -> None:
        """Forget the failures of a flow: it is neither tripped nor backs off, and its streak starts anew. The failure of a
        run that is going on is forgotten, too. What was missed while it was tripped is not made up for.

        Raises:
            ConfigurationError: there is no such flow.
            WorkflowError: the scheduler runs in another event loop.
        """
        flow = self._flow(name)
        session = self._alive
        if session is not None:
            self._here(session, "reset")
        flow.reset(*moment(), started=self._started)
        if session is not None:
            session.consider(flow)

    def status(self, name: str) -> FlowStatus:
        """A flow at this moment.

        Raises:
            ConfigurationError: there is no such flow.
        """
        return self._flow(name).status(*moment(), started=self._started)

    def statuses(self) -> tuple[FlowStatus, ...]:
        """All flows at this moment, in the order in which they were registered."""
        return tuple(self.status(name) for name in self._flows)

    @property
    def counters(self) -> Mapping[str, FlowCounters]:
        """What has happened to each flow so far, by name, for metrics. Only to be read."""
        return MappingProxyType({name: flow.counters for name, flow in self._flows.items()})

    @property
    def active(self) -> int:
        """How many flows have a run that is going on."""
        return sum(flow.fire is not None for flow in self._flows.values())

    def _flow(self, name: str) -> Flow:
        flow = self._flows.get(name) if isinstance(name, str) else None
        if flow is None:
            known = ", ".join(self._flows) or "none"
            shown = repr(name[:80]) if isinstance(name, str) else f"of type {type(name).__name__}"
            raise ConfigurationError(f"there is no flow {shown}; the known ones: {known}")
        return flow
