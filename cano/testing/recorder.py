"""RecordingObserver: keeps what a run told its observers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cano.observer import Event, WorkflowObserver
from cano.workflow.plan import label_of

_PREFIX = "on_"


class RecordingObserver(WorkflowObserver):
    """An observer that keeps every event, in order, under the name of its method without `on_`.

        seen = RecordingObserver()
        await Workflow(observers=[seen], ...).orchestrate(...)
        seen.assert_path("FETCH", "STORE", "DONE")
        assert [event.count for event in seen.of("window")] == [500, 500, 12]

    It may watch several workflows and runs, one after another or at once: `event.workflow_id` tells them apart.
    """

    def __init__(self) -> None:
        self._seen: list[tuple[str, Any]] = []

    @property
    def events(self) -> list[Event]:
        """All events, in order."""
        return [event for _, event in self._seen]

    @property
    def names(self) -> list[str]:
        """Their names, in order: "run_start", "state_enter", "task_start", ..."""
        return [name for name, _ in self._seen]

    @property
    def path(self) -> list[str]:
        """The labels of the states that were entered, in order."""
        return [label_of(event.state) for event in self.of("state_enter")]

    def of(self, name: str) -> list[Any]:
        """The events of one name.

        Raises:
            ValueError: no event has that name.
        """
        if not hasattr(WorkflowObserver, _PREFIX + name):
            raise ValueError(f"there is no event {name!r}; there are {', '.join(_names())}")
        return [event for seen, event in self._seen if seen == name]

    def take(self) -> list[Event]:
        """All events so far, which are then forgotten."""
        taken = self.events
        self.clear()
        return taken

    def clear(self) -> None:
        """Forget all events."""
        self._seen.clear()

    def assert_path(self, *states: Any) -> None:
        """Demand that exactly these states, or labels, were entered, in this order.

        Raises:
            AssertionError: it were others. Says which.
        """
        wanted = [label_of(state) for state in states]
        if self.path != wanted:
            raise AssertionError(f"the states entered were {' > '.join(self.path) or 'none'}, not {' > '.join(wanted) or 'none'}")

    def _keep(self, name: str, event: Event) -> None:
        self._seen.append((name, event))


def _names() -> list[str]:
    return [name.removeprefix(_PREFIX) for name in dir(WorkflowObserver) if name.startswith(_PREFIX)]


def _keeping(name: str) -> Callable[[RecordingObserver, Event], None]:
    def method(self: RecordingObserver, event: Event) -> None:
        self._keep(name, event)

    return method


for _name in _names():
    setattr(RecordingObserver, _PREFIX + _name, _keeping(_name))
