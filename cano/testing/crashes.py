"""every_crash_point: a workflow killed at each of its durable writes, and resumed.

    async def test_nothing_is_lost_and_nothing_comes_twice():
        for point in await every_crash_point(copying, Step.COPY):
            assert point.end is Step.DONE, point
            assert point.seen == [1, 2, 3, 4], point

where `copying(sink)` builds the workflow anew, as a new process would, around what outlives a process: here a list, which
its tasks write to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from cano.errors import CanoError, ConfigurationError
from cano.recovery.memory import MemoryCheckpointStore
from cano.recovery.store import CheckpointStore
from cano.testing.contract import StoreOrFactory, made
from cano.testing.crash import Crashed
from cano.testing.faults import FaultyStore
from cano.testing.recorder import RecordingObserver
from cano.workflow.workflow import Workflow

SeenT = TypeVar("SeenT")
When = Literal["before", "after"]

_A_LIST: Any = list


@dataclass(frozen=True)
class CrashPoint(Generic[SeenT]):
    """A run that was killed and resumed.

    append:   the append it was killed at, counted from 1; 0 for the run that was not killed
    when:     "before" that append was written (between flush and commit, for a stream), "after" it, or "never"
    end:      the exit state that was reached at last; None if it ended with an error
    error:    the error that it ended with at last, or None
    seen:     what `outside` gave, as the run and its resume have left it
    observer: what both told their observers
    """

    append: int
    when: Literal["never", "before", "after"]
    end: Any
    error: CanoError | None
    seen: SeenT = field(repr=False)
    observer: RecordingObserver = field(repr=False)

    def __str__(self) -> str:
        return "not killed" if self.when == "never" else f"killed {self.when} append {self.append} was written"


async def every_crash_point(
    workflow: Workflow[Any, Any] | Callable[[SeenT], Workflow[Any, Any]],
    initial: Any,
    *,
    outside: Callable[[], SeenT] = _A_LIST,
    data: Any = None,
    store: StoreOrFactory = MemoryCheckpointStore,
    between: Sequence[When] = ("before", "after"),
    workflow_id: str = "crash-point",
) -> list[CrashPoint[SeenT]]:
    """Run a workflow once unharmed; then once for each append of that run, killed there, and resumed to its end.

    workflow:    a function that is given what `outside` gave and builds the workflow around it: once for a run, and
                 once more for its resume, so that nothing which only the process remembers is carried over. Or a
                 workflow; then its tasks and resources are shared by all runs
    initial:     the state to begin in; `data` is the run's
    outside:     gives, for each run, what a crash leaves alone: where effects go. It is handed back as `seen`. With a
                 workflow that is shared it may clear what is shared and return that, of which `seen` is then a copy
    store:       a function that gives an empty store for each run, like that of `checkpoint_store_contract`
    between:     where to kill: "before" the row is written, "after", or both

    The workflow's own store, if it has one, is not used. A kill is a BaseException out of the append: sources are
    closed and resources torn down, but nothing is committed, compensated or cleared.

    Returns one `CrashPoint` for the run that was not killed, then those for each append.

    Raises:
        ConfigurationError: the run writes no row, so that there is no crash point.
        AssertionError: a run did not come to the append at which it was to be killed: it does not write the same
            rows each time.
    """
    attempt = partial(_attempt, workflow, initial, outside=outside, data=data, store=store)
    appends, unharmed = await attempt(workflow_id, 0, "never")
    if not appends:
        raise ConfigurationError("this run writes no row, so there is nothing to be killed at: has it a state with a task?")
    points = [unharmed]
    for append in range(1, appends + 1):
        for when in between:
            points.append((await attempt(f"{workflow_id}-{append}-{when}", append, when))[1])
    return points


async def _attempt(
    workflow: Any,
    initial: Any,
    workflow_id: str,
    append: int,
    when: Literal["never", "before", "after"],
    *,
    outside: Callable[[], Any],
    data: Any,
    store: StoreOrFactory,
) -> tuple[int, CrashPoint[Any]]:
    seen, observer = outside(), RecordingObserver()
    shared = isinstance(workflow, Workflow)

    async def run(kept: CheckpointStore) -> tuple[Any, CanoError | None]:
        built = copy.copy(workflow) if shared else workflow(seen)
        built.checkpoint_store = kept
        built.observers = (*built.observers, observer)
        try:
            return await built.orchestrate(initial, workflow_id=workflow_id, data=data, if_exists="resume"), None
        except CanoError as error:
            return None, error

    async with made(store) as kept:
        watched = FaultyStore(kept, crash_at=append or None, before=when == "before")
        try:
            end, error = await run(watched)
        except Crashed:
            end, error = await run(kept)
        else:
            if append:
                come = "was not killed by a crash" if watched.appends >= append else "did not come"
                raise AssertionError(f"the run {come} at append {append}; it has to write the same rows each time")
    return watched.appends, CrashPoint(append, when, end, error, copy.copy(seen) if shared else seen, observer)
