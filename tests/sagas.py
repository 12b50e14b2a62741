"""Sagas that write down what they do and undo, and stores that die."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from cano import (
    CheckpointRow,
    CheckpointStore,
    CompensatableTask,
    MemoryCheckpointStore,
    NoRetry,
    Task,
    TaskConfig,
    Workflow,
)

ONCE = TaskConfig(retry=NoRetry())
Hook = Callable[..., Any] | None


async def _step_in(hook: Hook, *arguments: Any) -> Any:
    result = None if hook is None else hook(*arguments)
    return await result if inspect.isawaitable(result) else result


class Deed(CompensatableTask[str, int]):
    """A step with output `output` that goes on with `then`. It writes `+name` when done and `-name output` when undone;
    `run` and `undo` are called before that, and what `run` returns, if anything, is returned.
    """

    config = ONCE

    def __init__(self, log: list[str], name: str, output: Any, then: str, *, run: Hook = None, undo: Hook = None) -> None:
        self.log, self.name, self.output, self.then, self.hooks = log, name, output, then, (run, undo)

    async def run(self, ctx: Any) -> Any:
        instead = await _step_in(self.hooks[0], ctx)
        self.log.append(f"+{self.name}")
        return (self.then, self.output) if instead is None else instead

    async def compensate(self, ctx: Any, output: int) -> None:
        await _step_in(self.hooks[1], ctx, output)
        self.log.append(f"-{self.name} {output}")


class Plain(Task[str]):
    """A task with one attempt that writes its name, and then does what `function` says."""

    config = ONCE

    def __init__(self, log: list[str], name: str, then: str, function: Hook = None) -> None:
        self.log, self.name, self.then, self.function = log, name, then, function

    async def run(self, ctx: Any) -> str:
        self.log.append(self.name)
        chosen = await _step_in(self.function, ctx)
        return self.then if chosen is None else chosen


def raises(error: BaseException) -> Callable[..., Any]:
    def hook(*arguments: Any) -> None:
        raise error

    return hook


def saga(
    log: list[str], store: CheckpointStore | None = None, *, last: Hook = None, hooks: Any = (), **options: Any
) -> Workflow[str]:
    """Steps "a", "b" and "c" with outputs 1, 2 and 3, then the plain state "last", then "done".

    `hooks` maps a name to the `run` and `undo` of its step.
    """
    built = Workflow[str](checkpoint_store=store, **options)
    for name, output, then in (("a", 1, "b"), ("b", 2, "c"), ("c", 3, "last")):
        built.register(name, Deed(log, name.upper(), output, then, **dict(hooks).get(name, {})))
    return built.register("last", Plain(log, "last", "done", last)).add_exit_state("done")


async def begin(built: Workflow[str], initial: str = "a", **options: Any) -> str:
    """Run a workflow, as run "r" if it has a store."""
    return await built.orchestrate(initial, workflow_id="r" if built.checkpoint_store is not None else None, **options)


async def kinds(store: Any) -> list[str]:
    """The log of run "r" in short: kind and state of each row."""
    return [f"{row.kind} {row.state}" for row in await store.load_run("r")]


class Failing(MemoryCheckpointStore):
    """Fails the appends that `fails` picks out."""

    def __init__(self, fails: Callable[[CheckpointRow], bool]) -> None:
        super().__init__()
        self.fails = fails

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        if self.fails(row):
            raise OSError("disk full")
        await super().append(workflow_id, row)


class Unclaimed(MemoryCheckpointStore):
    """A store that leaves everything to the compare-and-set."""

    claim = None  # type: ignore[assignment]  # a store that has no claims
