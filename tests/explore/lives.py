"""A run told as lives: processes that are stopped in some way, chosen by a seed, and one that comes to the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

from cano import CancellationToken, CanoError, CheckpointRow, MemoryCheckpointStore, WorkflowCancelledError, WorkflowTimeoutError
from cano.testing import Crashed

MOMENTS = (0, 0, 0, 0.5, 0.5, 1, 1, 2)
PROMPT = 25.0
FATES = ("crash", "token", "outside", "timeout")


class Log(MemoryCheckpointStore):
    """A log that takes its time, tells each row to `written` as it becomes durable, and dies when it is to."""

    def __init__(self, random: Random, written: Callable[[CheckpointRow], None]) -> None:
        super().__init__()
        self.random, self.written = random, written
        self.crash_at, self.crash_before = 0, True

    async def append(self, workflow_id: str, row: CheckpointRow) -> None:
        await moment(self.random)
        self.crash_at -= 1
        if self.crash_at == 0 and self.crash_before:
            raise Crashed
        await super().append(workflow_id, row)
        self.written(row)
        if self.crash_at == 0:
            raise Crashed
        await moment(self.random)


async def moment(random: Random) -> None:
    delay = random.choice(MOMENTS)
    if delay or random.random() < 0.3:
        await asyncio.sleep(delay)


async def live(flow: Any, initial: str, log: Log, fate: str, *, data: Any = None, prompt: float = PROMPT) -> Any:
    """One process: the exit state, the error that the run failed with, or None if it was stopped and may be resumed."""
    loop, random, token = asyncio.get_running_loop(), log.random, CancellationToken()
    log.crash_at, log.crash_before = (random.randrange(1, 8) if fate == "crash" else 0), random.random() < 0.5
    after = random.choice((0, 0.5, 1, 1, 1.5, 2, 2, 3, 4, 6))
    flow.total_timeout = after + 0.5 if fate == "timeout" else None
    run = asyncio.ensure_future(
        flow.orchestrate(initial, workflow_id="r", token=token, data=data, if_exists="resume"),
    )
    stop = {"token": token.cancel, "outside": run.cancel, "rollback": lambda: token.cancel(rollback=True)}.get(fate)
    stopping = None if stop is None else loop.call_later(after, stop)
    began = loop.time()
    await asyncio.wait((run,))
    if stopping is not None:
        stopping.cancel()
    left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"{left} outlived the run"
    try:
        return run.result()
    except Crashed:
        assert fate == "crash"
        return None
    except (WorkflowCancelledError, WorkflowTimeoutError, asyncio.CancelledError) as error:
        kinds: dict[str, type[BaseException]] = {"outside": asyncio.CancelledError, "timeout": WorkflowTimeoutError}
        expected = kinds.get(fate, WorkflowCancelledError)
        assert type(error) is expected, f"a stop by {fate} surfaced as {type(error).__name__}"
        late = loop.time() - began - after
        assert late < prompt, f"it took {late} s to stop"
        return None
    except CanoError as error:
        return error
