"""Three feeds at once, with a line for each while they run.

On a terminal you see for each run its state, items a second, windows, how long ago it last committed, and what it dropped;
one line for each stays when it has ended. When the output goes to a file or a pipe, as in a service, nothing of that is
written, and no thread is started.

Prints:
    feed-1 read 400 items, 2 of them bad
    feed-2 read 600 items, 3 of them bad
    feed-3 read 800 items, 4 of them bad
"""

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum, auto

from cano import CloseReason, Context, MemoryCheckpointStore, SkipAndContinue, StreamTask, Window, Workflow
from cano.observe.progress import ProgressObserver


class Step(StrEnum):
    READ = auto()
    DONE = auto()


class Feed(StreamTask[Step, int, int, int]):
    window = Window(count=50)
    on_item_error = SkipAndContinue()

    def __init__(self, length: int) -> None:
        self.length = length
        self.read = 0

    async def open(self, ctx: Context[None], cursor: int | None) -> AsyncIterator[int]:
        for number in range((cursor or 0) + 1, self.length + 1):
            if number % 20 == 0:
                await asyncio.sleep(0.02)
            yield number

    async def process_item(self, ctx: Context[None], item: int) -> tuple[int, int]:
        self.read += 1
        if item % 200 == 0:
            raise ValueError
        return item, item

    async def flush_window(self, ctx: Context[None], outputs: list[int]) -> None: ...

    async def on_close(self, ctx: Context[None], reason: CloseReason) -> Step:
        return Step.DONE


async def main() -> None:
    feeds = {f"feed-{number}": Feed(200 + 200 * number) for number in (1, 2, 3)}
    with ProgressObserver() as progress:
        runs = []
        for name, feed in feeds.items():
            workflow = Workflow[Step](name="feeds", observers=[progress], checkpoint_store=MemoryCheckpointStore())
            workflow.register(Step.READ, feed).add_exit_state(Step.DONE)
            runs.append(workflow.orchestrate(Step.READ, workflow_id=name))
        await asyncio.gather(*runs)
    for name, feed in feeds.items():
        print(f"{name} read {feed.read} items, {feed.length // 200} of them bad")


if __name__ == "__main__":
    asyncio.run(main())
