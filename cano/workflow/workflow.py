"""Workflow: the definition of a finite-state machine, and the two ways to run it."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar, overload

from cano.brake import Brake
from cano.cancel import CancellationToken
from cano.clock import Duration, optional_seconds
from cano.context import Context, RunData
from cano.errors import ConfigurationError, TaskExecutionError, label_text
from cano.observer import Audience, WorkflowObserver, checked
from cano.recovery.codec import UNDECLARED, Codec
from cano.recovery.journal import Journal
from cano.recovery.store import CheckpointStore
from cano.resources import Resources
from cano.task.batch import BatchTask
from cano.task.compensatable import CompensatableTask
from cano.task.declared import type_argument
from cano.task.poll import PollTask
from cano.task.router import RouterTask
from cano.task.split import Split
from cano.task.stepped import SteppedTask
from cano.task.stream import StreamTask
from cano.task.task import Task
from cano.task.timer import TimerTask
from cano.workflow.budget import Budget, supervise
from cano.workflow.diagram import to_dot, to_mermaid
from cano.workflow.engine import Request, live
from cano.workflow.nested import SubWorkflow
from cano.workflow.plan import Plan, Registration, label_of, registration
from cano.workflow.run import Run
from cano.workflow.validate import check_aliases, check_id, check_store, problems

StateT = TypeVar("StateT")
TaskT = TypeVar("TaskT", bound=Callable[..., Any])

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    DataT = DefaultTypeVar("DataT", default=Any)
else:
    DataT = TypeVar("DataT")

AnyTask = (
    Task[StateT]
    | RouterTask[StateT]
    | PollTask[StateT]
    | TimerTask[StateT]
    | BatchTask[StateT, Any, Any]
    | SteppedTask[StateT, Any]
    | StreamTask[StateT, Any, Any, Any]
    | CompensatableTask[StateT, Any]
    | Split[StateT]
    | SubWorkflow
    | Callable[[Context[DataT]], Awaitable[StateT]]
)
IfExists = Literal["error", "resume", "discard"]


class Workflow(Generic[StateT, DataT]):
    """A finite-state machine of tasks. It holds no run: one object may be run many times, concurrently, and in several
    loops.

    name:                  names the workflow in events; default "workflow"
    resources:             a mapping of name to object, or `Resources`, for `ctx.get`
    checkpoint_store:      keeps the log from which `resume_from` goes on; None writes no rows
    workflow_version:      stamped on every row; a log of another version is refused
    observers:             `WorkflowObserver`s, told of everything in order
    total_timeout:         seconds or timedelta a run may take in its states; it then drains and raises
                           `WorkflowTimeoutError`
    compensation_timeout:  seconds or timedelta a rollback may take
    drain_timeout:         seconds or timedelta a stopped run may take to drain before it is aborted; None for no limit
    aliases:               labels of former states, each with the state that resumes their logs
    data_type:             the type of `ctx.data`, if it is not given as `Workflow[State, Data]`

    Raises:
        ConfigurationError: an argument is of the wrong type, or a duration is negative.
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        resources: Resources | Mapping[str, Any] | None = None,
        checkpoint_store: CheckpointStore | None = None,
        workflow_version: int = 0,
        observers: Iterable[WorkflowObserver] = (),
        total_timeout: Duration | None = None,
        compensation_timeout: Duration | None = None,
        drain_timeout: Duration | None = 30.0,
        aliases: Mapping[str, StateT] | None = None,
        data_type: type[DataT] | None = None,
    ) -> None:
        if name is not None and (not isinstance(name, str) or not name):
            raise ConfigurationError("name must be a str that is not empty")
        if isinstance(workflow_version, bool) or not isinstance(workflow_version, int) or not 0 <= workflow_version < 2**63:
            raise ConfigurationError("workflow_version must be an int of 0 or more")
        if not isinstance(resources, Resources | Mapping | None):
            raise ConfigurationError(f"resources must be a mapping or Resources, not a {type(resources).__name__}")
        self.name = name or "workflow"
        self.resources = resources if isinstance(resources, Resources) else Resources(resources)
        self.checkpoint_store = check_store(checkpoint_store)
        self.workflow_version = workflow_version
        self.observers = checked(observers)
        self.total_timeout = optional_seconds(total_timeout, "total_timeout")
        self.compensation_timeout = optional_seconds(compensation_timeout, "compensation_timeout")
        self.drain_timeout = optional_seconds(drain_timeout, "drain_timeout")
        self._aliases = check_aliases(aliases)
        self._data_type = data_type
        if data_type is not None:
            Codec(data_type, what="ctx.data")
        self._states: dict[str, Registration] = {}
        self._exits: dict[str, StateT] = {}
        self._plan: Plan | None = None

    if not TYPE_CHECKING:

        def __class_getitem__(cls, parameters: Any) -> Any:
            """`Workflow[State]` means `Workflow[State, Any]`."""
            return super().__class_getitem__(parameters if isinstance(parameters, tuple) else (parameters, Any))

    def __repr__(self) -> str:
        return f"<Workflow {self.name} of {len(self._states)} states>"

    # -- the definition ---------------------------------------------------------------------------------------------

    @overload
    def register(self, state: StateT, task: AnyTask[StateT, DataT]) -> Self: ...
    @overload
    def register(
        self, state: StateT
    ) -> Callable[
        [Callable[[Context[DataT]], Coroutine[Any, Any, StateT]]], Callable[[Context[DataT]], Coroutine[Any, Any, StateT]]
    ]: ...

    def register(self, state: StateT, task: Any = None) -> Any:
        """Register the task of a state, and return the workflow. Without a task: a decorator for an `async def f(ctx)
        -> state`.

        Raises:
            ConfigurationError: no state, no task, a task whose class lacks a hook, or a state or label that is
                registered already.
        """
        if task is None:
            return self._decorator(state)
        registered = registration(state, task)
        self._refuse_twin(registered.label, state)
        if registered.label in self._states:
            raise ConfigurationError(f"state {registered.label} is registered already; a state has one task")
        self._states[registered.label] = registered
        self._plan = None
        return self

    def _decorator(self, state: StateT) -> Callable[[TaskT], TaskT]:
        label_of(state)

        def decorate(task: TaskT) -> TaskT:
            self.register(state, task)
            return task

        return decorate

    def add_exit_state(self, *states: StateT) -> Self:
        """Declare states that end a run, and return the workflow. A state that is also registered ends the run all the
        same.

        Raises:
            ConfigurationError: this is no state, or another state has the same label.
        """
        for state in states:
            label = label_of(state)
            self._refuse_twin(label, state)
            self._exits[label] = state
        self._plan = None
        return self

    def _refuse_twin(self, label: str, state: StateT) -> None:
        known = [self._exits[label]] if label in self._exits else []
        known += [self._states[label].state] if label in self._states else []
        for other in known:
            if type(other) is not type(state) or other != state:
                raise ConfigurationError(f"two states have the label {label}: labels are what a log stores, so they must differ")

    @property
    def registered_states(self) -> frozenset[StateT]:
        """The states that have a task; exit states are not among them."""
        return frozenset(registered.state for registered in self._states.values())

    @property
    def exit_states(self) -> frozenset[StateT]:
        """The states that end a run."""
        return frozenset(self._exits.values())

    def validate(self, initial: StateT | None = None) -> None:
        """Check the definition, and that a run may start at `initial` if that is given.

        Raises:
            ConfigurationError: every problem, in one message.
        """
        found = problems(self._states, self._exits, self._aliases, self.checkpoint_store)
        if initial is not None and not found:
            plan = self._planned()
            if plan.known(initial) is None:
                found = [f"the initial state {label_text(initial)} is neither registered nor an exit state; {plan.listing()}"]
        if found:
            raise ConfigurationError("; ".join(found))

    def to_mermaid(self) -> str:
        """The states and their edges as a Mermaid state diagram; edges come from `Literal` return annotations."""
        return to_mermaid(self._states, self._exits)

    def to_dot(self) -> str:
        """The states and their edges as a Graphviz digraph."""
        return to_dot(self._states, self._exits, self.name)

    def _planned(self) -> Plan:
        if self._plan is None:
            self.validate()
            data = Codec(
                self._declared_data(),
                what="ctx.data",
                remedy="declare it: Workflow[State, Data]",
                error=TaskExecutionError,
            )
            states, exits = MappingProxyType(dict(self._states)), MappingProxyType(dict(self._exits))
            self._plan = Plan(states, exits, MappingProxyType(self._aliases), data)
        return self._plan

    def _declared_data(self) -> Any:
        if self._data_type is not None:
            return self._data_type
        declared = type_argument(self, Workflow, 1)
        return UNDECLARED if declared is None else declared

    # -- running it -------------------------------------------------------------------------------------------------

    async def orchestrate(
        self,
        initial: StateT,
        *,
        workflow_id: str | None = None,
        token: CancellationToken | None = None,
        data: DataT | None = None,
        if_exists: IfExists = "error",
    ) -> StateT:
        """Run from `initial` to an exit state, and return that.

        `data` becomes `ctx.data`, as a copy. `if_exists` says what to do when the id has an unfinished log: raise
        (`"error"`), go on with it, its data and its state (`"resume"`), or forget it (`"discard"`).

        Raises:
            ConfigurationError: the definition, the id, the data or another argument is wrong; nothing was run or
                written.
            CheckpointConflictError: the id has an unfinished log, which was left as it is.
            RunOwnedError: somebody alive is working on that id.
            WorkflowCancelledError, WorkflowTimeoutError: stopped by the token or by `total_timeout`, after a drain.
            CanoError: the run failed; `.state` and `.path` say where. With a store it can be resumed.
        Cancellation: drains the run, then raises `asyncio.CancelledError`; a second one aborts the drain.
        """
        if if_exists not in ("error", "resume", "discard"):
            raise ConfigurationError("if_exists must be 'error', 'resume' or 'discard'")
        self.validate(initial)
        if initial is None:
            raise ConfigurationError("orchestrate needs the initial state")
        if workflow_id is None and self.checkpoint_store is not None:
            raise ConfigurationError("a workflow with a checkpoint store needs orchestrate(..., workflow_id=...)")
        run_id = uuid.uuid4().hex if workflow_id is None else check_id(workflow_id)
        return await self._run(Request(initial, if_exists=if_exists), run_id, token, self._own_copy(data))

    async def resume_from(self, workflow_id: str, *, token: CancellationToken | None = None) -> StateT:
        """Go on with an unfinished run where its log ends, and return the exit state.

        The state it was in is entered again, a stream at the cursor of its last committed window. A decision that was
        recorded is not taken again. Nothing is written before everything has been checked.

        Raises:
            ConfigurationError: there is no store, or the id is wrong.
            CheckpointStoreError: there is no log for that id, or it cannot be read.
            RunOwnedError: somebody alive is working on that id. RunFencedError: somebody else was quicker.
            WorkflowVersionMismatchError, WorkflowError, CursorError: the log does not fit this workflow; it was left
                as it is.
            Otherwise like `orchestrate`.
        Cancellation: like `orchestrate`.
        """
        if self.checkpoint_store is None:
            raise ConfigurationError("resume_from needs a workflow with a checkpoint store: Workflow(checkpoint_store=...)")
        self.validate()
        return await self._run(Request(resume=True), check_id(workflow_id), token, None)

    def _own_copy(self, data: DataT | None) -> Any:
        if data is None:
            return None
        codec = self._planned().data
        try:
            return codec.decode(codec.encode(data))
        except TaskExecutionError as error:
            raise ConfigurationError(error.message) from None

    async def run_inside(
        self,
        initial: StateT,
        workflow_id: str,
        token: CancellationToken,
        data: DataT | None,
        observers: tuple[WorkflowObserver, ...],
        *,
        resume: bool,
        keeps_log: bool,
    ) -> StateT:
        """Run as part of another workflow's run, whose observers are told too. Engine use.

        An old log is gone on with if that run is in the same visit again (`resume`), else it is of another run and
        discarded. With `keeps_log` the log stays when the run is complete, for whoever asked to remove.
        """
        request = Request(initial, if_exists="resume" if resume else "discard")
        others = tuple(observer for observer in observers if not any(observer is own for own in self.observers))
        return await self._run(request, check_id(workflow_id), token, self._own_copy(data), others, keeps_log)

    async def _run(
        self,
        request: Request,
        workflow_id: str,
        token: CancellationToken | None,
        data: Any,
        observers: tuple[WorkflowObserver, ...] = (),
        keeps_log: bool = False,
    ) -> StateT:
        if token is not None and not isinstance(token, CancellationToken):
            raise ConfigurationError(f"token must be a CancellationToken, not a {type(token).__name__}")
        brake = Brake(self.drain_timeout)
        run = Run(
            plan=self._planned(),
            workflow=self.name,
            workflow_id=workflow_id,
            store=self.checkpoint_store,
            version=self.workflow_version,
            resources=self.resources,
            token=token or CancellationToken(),
            brake=brake,
            budget=Budget(self.total_timeout, brake),
            compensation_timeout=self.compensation_timeout,
            audience=Audience((*self.observers, *observers), workflow_id, self.name),
            data=RunData(data),
            journal=Journal(self.checkpoint_store, workflow_id, self.workflow_version),
            keeps_log=keeps_log,
        )
        run.journal.on_written(run.written)
        run.token.follow(brake)
        try:
            end: StateT = await supervise(live(run, request), brake)
            return end
        finally:
            run.token.unfollow(brake)
