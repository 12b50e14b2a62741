"""Context: what every hook gets first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from cano.cancel import CancellationToken
from cano.resources import Resources

if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    DataT = DefaultTypeVar("DataT", default=Any)
else:
    DataT = TypeVar("DataT")

T = TypeVar("T")


class RunData(Generic[DataT]):
    """The one place that holds a run's `ctx.data`, shared by the contexts of all its states."""

    __slots__ = ("value",)

    def __init__(self, value: DataT) -> None:
        self.value = value


class Context(Generic[DataT]):
    """A run as its hooks see it, for one visit of one state.

    resources:    what the workflow was given; `ctx.get(name, Type)` and `ctx[name]` read it
    workflow_id:  the run's id; a random one if none was given
    state:        the state the run is in
    task:         the name of the task
    attempt:      1-based
    token:        the run's CancellationToken; a hook that works for long may look at `ctx.token.cancelled`
    window_id:    in `flush_window` a string that names this window: the same after a replay, another for every other
                  window of the log; None outside. An id that is used again after its run was completed starts over
    branches:     the results of the split that led here, else None
    transaction:  in the `flush_window` of a transactional stream the store's connection, else None
    data:         the run's own durable state, written with every row; assign to it, or change it in place
    """

    __slots__ = (
        "_data",
        "attempt",
        "branches",
        "resources",
        "state",
        "task",
        "token",
        "transaction",
        "window_id",
        "workflow_id",
    )

    def __init__(
        self,
        *,
        resources: Resources,
        workflow_id: str,
        state: Any,
        task: str,
        token: CancellationToken,
        data: RunData[DataT],
        attempt: int = 1,
    ) -> None:
        self.resources = resources
        self.workflow_id = workflow_id
        self.state = state
        self.task = task
        self.attempt = attempt
        self.token = token
        self.window_id: str | None = None
        self.branches: Any = None
        self.transaction: Any = None
        self._data = data

    def sibling(self, task: str | None = None, data: RunData[DataT] | None = None) -> Context[DataT]:
        """A context for work beside this one: of the same visit, with its own attempt, and its own name and data if given."""
        sibling: Context[DataT] = Context(
            resources=self.resources,
            workflow_id=self.workflow_id,
            state=self.state,
            task=task or self.task,
            token=self.token,
            data=data or self._data,
            attempt=self.attempt,
        )
        sibling.branches = self.branches
        return sibling

    def __repr__(self) -> str:
        return f"<Context of {self.task} in run {self.workflow_id}>"

    @property
    def data(self) -> DataT:
        """The run's own durable state."""
        return self._data.value

    @data.setter
    def data(self, value: DataT) -> None:
        self._data.value = value

    @overload
    def get(self, name: str, kind: type[T]) -> T: ...
    @overload
    def get(self, name: str) -> Any: ...

    def get(self, name: str, kind: type[Any] | None = None) -> Any:
        """The resource of that name.

        Raises:
            ResourceNotFoundError: there is none.
            ResourceTypeMismatchError: it is not an instance of `kind`.
        """
        return self.resources.get(name, kind)

    def __getitem__(self, name: str) -> Any:
        return self.resources.get(name)
