"""A service is told to stop, as by `kill`, systemd or Kubernetes, while its stream waits for more items.

Its window is not due for an hour. SIGTERM flushes and commits it at once (a drain), and the run ends as
cancelled: paused, not failed. Started again it goes on after the last item, and nothing comes twice.

Prints:
    open at the beginning
      flush ['letter 1', 'letter 2', 'letter 3']
      close, because CANCELLED
    paused: run 'mail' was cancelled; resume_from('mail') goes on (state READ_MAIL, attempt 1)
    open after cursor 3
      flush ['letter 4', 'letter 5']
      close, because EXHAUSTED
"""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from enum import StrEnum, auto
from functools import partial
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

from cano import (
    CancellationToken,
    CloseReason,
    Context,
    SqliteCheckpointStore,
    StreamTask,
    Window,
    Workflow,
    WorkflowCancelledError,
    cancel_on_signals,
)

say = partial(print, flush=True)  # at once: two processes print here, each in its turn


class Step(StrEnum):
    READ_MAIL = auto()
    DONE = auto()


class ReadMail(StreamTask[Step, int, str, int]):
    window = Window(seconds=3600)

    def __init__(self, letters: int, idle: Event | None) -> None:
        self.letters = letters
        self.idle = idle

    async def open(self, ctx: Context[None], cursor: int | None) -> AsyncIterator[int]:
        say("open at the beginning" if cursor is None else f"open after cursor {cursor}")
        for number in range((cursor or 0) + 1, self.letters + 1):
            yield number
        if self.idle is not None:
            self.idle.set()
            await asyncio.Event().wait()  # the next letter, which never comes

    async def process_item(self, ctx: Context[None], item: int) -> tuple[str, int]:
        return f"letter {item}", item

    async def flush_window(self, ctx: Context[None], outputs: list[str]) -> None:
        say(f"  flush {outputs}")

    async def on_close(self, ctx: Context[None], reason: CloseReason) -> Step:
        say(f"  close, because {reason.name}")
        return Step.DONE


async def serve(database: Path, letters: int, idle: Event | None = None) -> None:
    workflow = Workflow[Step](checkpoint_store=SqliteCheckpointStore(database))
    workflow.register(Step.READ_MAIL, ReadMail(letters, idle)).add_exit_state(Step.DONE)
    with cancel_on_signals(CancellationToken()) as token:
        try:
            await workflow.orchestrate(Step.READ_MAIL, workflow_id="mail", token=token, if_exists="resume")
        except WorkflowCancelledError as error:
            say(f"paused: {error}")


def first_life(database: Path, idle: Event) -> None:
    asyncio.run(serve(database, letters=3, idle=idle))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        database, context = Path(directory, "runs.db"), get_context("spawn")
        idle = context.Event()
        process = context.Process(target=first_life, args=(database, idle), daemon=True)
        process.start()
        idle.wait(timeout=30)
        process.terminate()  # sends SIGTERM
        process.join()
        asyncio.run(serve(database, letters=5))


if __name__ == "__main__":
    main()
