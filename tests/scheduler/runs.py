"""Schedulers in virtual time, and workflows that note when they run."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

from cano import NoRetry, Task, TaskConfig, Workflow
from cano.clock import now, wall
from cano.testing import VirtualTimeLoop, simulate
from cano.testing.simulation import START as BEGINNING

__all__ = ["BEGINNING", "Runs", "play"]


def play(main: Callable[[VirtualTimeLoop], Coroutine[Any, Any, None]], start: datetime = BEGINNING) -> None:
    """Run a test in virtual time, and see that it leaves no asyncio task and loses no exception (BR-133)."""
    lost: list[dict[str, Any]] = []

    async def guarded() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.set_exception_handler(lambda loop, context: lost.append(context))
        await main(loop)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()
        await asyncio.sleep(0)

    simulate(guarded, start=start, debug=True)
    assert lost == []


class _Once(Task[str]):
    config = TaskConfig(retry=NoRetry())

    def __init__(self, body: Callable[[Any], Coroutine[Any, Any, str]]) -> None:
        self.body = body

    async def run(self, ctx: Any) -> str:
        return await self.body(ctx)


class Runs:
    """A workflow of one task that notes when it runs. `script` says what each run does: seconds, or an exception."""

    def __init__(self, *script: Any, store: Any = None, **options: Any) -> None:
        self.script = list(script)
        self.at: list[float] = []
        self.walls: list[datetime] = []
        self.ids: list[str] = []
        self.data: list[Any] = []
        self.ended = 0
        self.now = 0
        self.most = 0
        self.workflow: Workflow[Any, Any] = Workflow(checkpoint_store=store, **options)
        self.workflow.register("start", _Once(self._run_once)).add_exit_state("done")

    @property
    def count(self) -> int:
        return len(self.at)

    async def _run_once(self, ctx: Any) -> str:
        self.at.append(now())
        self.walls.append(wall())
        self.ids.append(ctx.workflow_id)
        self.data.append(ctx.data)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            step = self.script.pop(0) if len(self.script) > 1 else self.script[0] if self.script else 0.0
            if isinstance(step, BaseException):
                raise step
            if callable(step):
                step = step()
            await (step if asyncio.iscoroutine(step) else asyncio.sleep(step))
            self.ended += 1
            return "done"
        finally:
            self.now -= 1
