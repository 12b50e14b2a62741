"""Branches for splits, and what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cano import (
    NoRetry,
    Split,
    Task,
    TaskConfig,
    Workflow,
    WorkflowError,
)
from cano.testing import RecordingObserver
from tests.streams import turns

ONCE = TaskConfig(retry=NoRetry())


class Branch(Task[Any]):
    """A branch with one attempt, made of a function of its context."""

    def __init__(self, function: Callable[[Any], Any], name: str = "branch", config: TaskConfig = ONCE) -> None:
        self.function, self.name, self.config = function, name, config

    async def run(self, ctx: Any) -> Any:
        result = self.function(ctx)
        return await result if asyncio.iscoroutine(result) else result


def gives(value: Any, name: str = "gives") -> Branch:
    return Branch(lambda ctx: value, name)


def fails(error: BaseException, name: str = "fails") -> Branch:
    def run(ctx: Any) -> None:
        raise error

    return Branch(run, name)


class Hanging:
    """Branches that never end by themselves, and count how many have begun and have been put away."""

    def __init__(self) -> None:
        self.begun = self.ended = 0
        self.at_work = asyncio.Event()

    def branch(self, name: str = "hangs") -> Branch:
        async def run(ctx: Any) -> None:
            self.begun += 1
            self.at_work.set()
            try:
                await asyncio.Event().wait()
            finally:
                await turns()
                self.ended += 1

        return Branch(run, name)


def flow(split: Any, seen: list[Any] | None = None, store: Any = None, **options: Any) -> Workflow[str]:
    """A workflow of the split in state "split", and a state "join" that keeps what it sees."""

    async def join(ctx: Any) -> str:
        if seen is not None:
            seen.append(ctx.branches)
        return "done"

    built = Workflow[str](checkpoint_store=store, **options).register("split", split).register("join", join)
    return built.add_exit_state("done")


async def results(branches: list[Any], join: Any, **options: Any) -> Any:
    """What the state after such a split sees."""
    seen: list[Any] = []
    assert await flow(Split(branches, join=join, then="join", **options), seen).orchestrate("split") == "done"
    return seen[0]


async def failure(branches: list[Any], join: Any, **options: Any) -> WorkflowError:
    with pytest.raises(WorkflowError) as caught:
        await flow(Split(branches, join=join, then="join", **options)).orchestrate("split")
    assert caught.value.state == "split"
    return caught.value


def tasks(seen: RecordingObserver, what: str) -> list[str]:
    """The tasks of whose "start", "success" or "failure" an observer was told, sorted."""
    return sorted(event.task for event in seen.of(f"task_{what}"))
