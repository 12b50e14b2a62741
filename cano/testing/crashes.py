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
import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar, overload

from cano.errors import CanoError, ConfigurationError
from cano.recovery.memory import MemoryCheckpointStore
from cano.recovery.store import CheckpointStore
from cano.testing.contract import StoreOrFactory, made
from cano.testing.crash import Crashed
from cano.testing.life import Life, watched
from cano.testing.mortal import MortalStore
from cano.testing.outside import Outside
from cano.testing.recorder import RecordingObserver
from cano.workflow.workflow import Workflow

T = TypeVar("T")
SeenT = TypeVar("SeenT")
When = Literal["before", "after"]

_MOMENTS: tuple[When, ...] = ("before", "after")


@dataclass(frozen=True)
class CrashPoint(Generic[SeenT]):
    """A run that was killed and resumed.

    append:   the append it was killed at, counted from 1; 0 for the run that was not killed
    when:     "before" that append was written (between flush and commit, for a stream), "after" it, or "never"
    end:      the exit state that was reached at last; None if it ended with an error
    error:    the error that it ended with at last, or None
    seen:     what `outside` gave, as the run up to the kill and its resume have left it; None for a `Workflow` without
              `outside`, because nothing is known of what it writes to
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


@overload
async def every_crash_point(
    workflow: Workflow[Any, Any],
    initial: Any,
    *,
    outside: None = None,
    data: Any = None,
    store: StoreOrFactory = ...,
    between: Collection[When] = ...,
    workflow_id: str = ...,
) -> list[CrashPoint[None]]: ...
@overload
async def every_crash_point(
    workflow: Callable[[list[T]], Workflow[Any, Any]],
    initial: Any,
    *,
    outside: None = None,
    data: Any = None,
    store: StoreOrFactory = ...,
    between: Collection[When] = ...,
    workflow_id: str = ...,
) -> list[CrashPoint[list[T]]]: ...
@overload
async def every_crash_point(
    workflow: Workflow[Any, Any] | Callable[[SeenT], Workflow[Any, Any]],
    initial: Any,
    *,
    outside: Callable[[], SeenT],
    data: Any = None,
    store: StoreOrFactory = ...,
    between: Collection[When] = ...,
    workflow_id: str = ...,
) -> list[CrashPoint[SeenT]]: ...


async def every_crash_point(
    workflow: Any,
    initial: Any,
    *,
    outside: Callable[[], Any] | None = None,
    data: Any = None,
    store: StoreOrFactory = MemoryCheckpointStore,
    between: Collection[When] = ("before", "after"),
    workflow_id: str = "crash-point",
) -> list[CrashPoint[Any]]:
    """Run a workflow once unharmed; then once for each append of that run, killed there, and resumed to its end.

    workflow:    a function that is given what `outside` gave and builds the workflow around it: once for a run, and
                 once more for its resume, so that nothing which only the process remembers is carried over. Or a
                 workflow; then its tasks and resources are shared by all runs
    initial:     the state to begin in; `data` is the run's
    outside:     gives, for each run, what a crash leaves alone: where effects go. A list, if it is left out. With a
                 workflow that is shared it may clear what is shared and return that, of which `seen` is then a copy
    store:       a function that gives an empty store for each run, like that of `checkpoint_store_contract`
    between:     where to kill: "before" the row is written, "after", or both

    The workflow's own store, if it has one, is not used. A kill is a BaseException out of the append: nothing is committed,
    compensated or cleared. The dead life is still cleaned up (sources are closed, resources torn down, the asyncio tasks
    that it started cancelled and awaited), **but what it does after the kill does not count**: a deep copy of what
    `outside` gave is taken at the moment of the kill, and the resume gets that. So whatever `outside` gives must be a value
    that can be copied (a list, an object of your own), or a name of something that is elsewhere (a path). What a dead life
    still writes to files and databases does count; and so does what a thread that it left behind writes to a shared
    workflow's objects.

    Returns one `CrashPoint` for the run that was not killed, then those for each append.

    Raises:
        ConfigurationError: an argument is wrong, or the definition is, or what `outside` gave cannot be copied.
        CanoError: the run that was not killed failed before it had written anything.
        AssertionError: a run did not come to the append at which it was to be killed: it does not write the same
            rows each time.
    Cancellation: ends the run that is going on as `orchestrate` does, and raises.
    """
    moments = _moments(between)
    trials = _Trials(workflow, initial, _giving(workflow, outside), data, store)
    with watched():
        appends, unharmed = await trials.run(workflow_id, 0, "never")
        points = [unharmed]
        for append in range(1, appends + 1):
            for when in moments:
                points.append((await trials.run(f"{workflow_id}-{append}-{when}", append, when))[1])
    return points


def _moments(between: Any) -> list[When]:
    if isinstance(between, str) or not isinstance(between, Collection) or not between or not all(w in _MOMENTS for w in between):
        raise ConfigurationError('between must be a collection of "before" and "after", or of one of them, such as ["after"]')
    return [when for when in _MOMENTS if when in between]


def _giving(workflow: Any, outside: Any) -> Callable[[], Any]:
    shared = isinstance(workflow, Workflow)
    if not shared and not callable(workflow):
        raise ConfigurationError(f"a Workflow, or a function that builds one, is needed, not a {type(workflow).__name__}")
    if outside is None:
        return (lambda: None) if shared else list
    if not callable(outside):
        raise ConfigurationError(f"outside must be a function without arguments, not a {type(outside).__name__}")
    given: Callable[[], Any] = outside
    return given


@dataclass(frozen=True)
class _Trials:
    """What is to be run, again and again."""

    workflow: Any
    initial: Any
    giving: Callable[[], Any]
    data: Any
    store: StoreOrFactory

    async def run(self, workflow_id: str, append: int, when: Literal["never", "before", "after"]) -> tuple[int, CrashPoint[Any]]:
        """One run, killed at that append and resumed, or not killed; and how many appends the first life asked for."""
        outside = Outside(_no_coroutine(self.giving(), "outside"), shared=isinstance(self.workflow, Workflow))
        observer = RecordingObserver()
        first = Life(outside.taken)
        end, error = None, None
        async with made(self.store) as kept:
            watched = MortalStore(kept, first, crash_at=append, before=when == "before")
            try:
                end, error = await self._live(first, watched, outside.value, observer, workflow_id)
            except (Crashed, Exception):
                if not first.dead:
                    raise
            if first.dead:
                outside.put_back()
                second = Life()
                end, error = await self._live(second, MortalStore(kept, second), outside.value, observer, workflow_id)
            elif isinstance(error, ConfigurationError) or (error is not None and not watched.appends):
                raise error
            elif append:
                raise AssertionError(f"the run did not come to append {append}; it has to write the same rows each time")
        return watched.appends, CrashPoint(append, when, end, error, outside.seen(), observer)

    async def _live(
        self, life: Life, store: CheckpointStore, value: Any, observer: RecordingObserver, workflow_id: str
    ) -> tuple[Any, CanoError | None]:
        """One life; its asyncio tasks end with it."""
        try:
            with life.lived():
                built = copy.copy(self._built(value))
                built.checkpoint_store = store
                built.observers = (*built.observers, observer)
                return await built.orchestrate(self.initial, workflow_id=workflow_id, data=self.data, if_exists="resume"), None
        except CanoError as error:
            return None, error
        finally:
            await life.end()

    def _built(self, value: Any) -> Workflow[Any, Any]:
        if isinstance(self.workflow, Workflow):
            return self.workflow
        built = _no_coroutine(self.workflow(value), "the function that builds the workflow")
        if not isinstance(built, Workflow):
            raise ConfigurationError(
                f"the function that builds the workflow must return a Workflow, not a {type(built).__name__}"
            )
        return built


def _no_coroutine(given: Any, whose: str) -> Any:
    if inspect.iscoroutine(given):
        given.close()
        raise ConfigurationError(f"{whose} must be a plain function, not an async one")
    return given
