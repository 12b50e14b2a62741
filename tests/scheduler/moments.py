"""Time that a test moves: an event loop whose clock jumps to the next timer, and a wall clock that can be set."""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

from cano import NoRetry, Task, TaskConfig, Workflow
from cano.clock import replaced

BEGINNING = datetime(2024, 1, 1, tzinfo=UTC)


class Moments:
    """`passed` is what the monotonic clock shows, `ahead` how far the wall clock is ahead of it, in seconds."""

    def __init__(self, beginning: datetime = BEGINNING) -> None:
        self.beginning = beginning
        self.passed = 1000.0
        self.ahead = 0.0

    def wall(self) -> datetime:
        return self.beginning + timedelta(seconds=self.passed - 1000.0 + self.ahead)

    def block(self, seconds: float) -> None:
        """Time passes, and the event loop gets no turn."""
        self.passed += seconds

    def suspend(self, seconds: float) -> None:
        """The machine sleeps: only the wall clock goes on. Or that is put forward, or back."""
        self.ahead += seconds


class _Selector(selectors.SelectSelector):
    moments: Moments

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everything waits for ever"
            self.moments.passed += max(timeout, 0.0)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, moments: Moments) -> None:
        self.moments = moments
        selector = _Selector()
        selector.moments = moments
        super().__init__(selector)

    def time(self) -> float:
        return self.moments.passed


def play(main: Callable[[Moments], Coroutine[Any, Any, Any]], beginning: datetime = BEGINNING) -> Any:
    """Run a test in virtual time, and see that it leaves no asyncio task and loses no exception (BR-133)."""
    moments = Moments(beginning)
    lost: list[dict[str, Any]] = []

    async def guarded() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: lost.append(context))
        result = await main(moments)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        gc.collect()
        await asyncio.sleep(0)
        return result

    with replaced(wall=moments.wall), asyncio.Runner(debug=True, loop_factory=lambda: _Loop(moments)) as runner:
        runner.get_loop().slow_callback_duration = 1e9
        result = runner.run(guarded())
    assert lost == []
    return result


class _Once(Task[str]):
    config = TaskConfig(retry=NoRetry())

    def __init__(self, body: Callable[[Any], Coroutine[Any, Any, str]]) -> None:
        self.body = body

    async def run(self, ctx: Any) -> str:
        return await self.body(ctx)


class Runs:
    """A workflow of one task that notes when it runs. `script` says what each run does: seconds, or an exception."""

    def __init__(self, moments: Moments | None, *script: Any, store: Any = None, **options: Any) -> None:
        self.moments = moments
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
        loop = asyncio.get_running_loop()
        self.at.append(loop.time() - 1000.0)
        if self.moments is not None:
            self.walls.append(self.moments.wall())
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
