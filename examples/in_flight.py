"""Slow items need not wait for each other: `max_in_flight` says how many of a stream are processed at once.

Nothing else changes. Outputs keep the order of the source, whoever is done first, and the cursor is that of
the longest finished prefix, so a crash loses nothing.

Prints:
      flush [1, 4, 9, 16, 25, 36]
      flush [49, 64, 81, 100, 121, 144]
      flush [169, 196, 225, 256, 289, 324]
      flush [361, 400, 441, 484, 529, 576]
    1 at once; done in the order of the source: True
      flush [1, 4, 9, 16, 25, 36]
      flush [49, 64, 81, 100, 121, 144]
      flush [169, 196, 225, 256, 289, 324]
      flush [361, 400, 441, 484, 529, 576]
    8 at once; done in the order of the source: False
    more than twice as fast: True
"""

import asyncio
import time
from collections.abc import Iterator
from enum import StrEnum, auto

from cano import CloseReason, Context, StreamTask, Window, Workflow


class Step(StrEnum):
    FETCH = auto()
    DONE = auto()


class Server:
    """Takes longer for some numbers than for others, and knows how many requests it had at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def square(self, number: int) -> int:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.01 if number % 2 else 0.05)
        self.now -= 1
        return number * number


class Fetch(StreamTask[Step, int, int, int]):
    window = Window(count=6)

    def __init__(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.done: list[int] = []

    def open(self, ctx: Context[None], cursor: int | None) -> Iterator[int]:
        return iter(range((cursor or 0) + 1, 25))

    async def process_item(self, ctx: Context[None], item: int) -> tuple[int, int]:
        square = await ctx.get("server", Server).square(item)
        self.done.append(item)
        return square, item

    async def flush_window(self, ctx: Context[None], outputs: list[int]) -> None:
        print("  flush", outputs)

    async def on_close(self, ctx: Context[None], reason: CloseReason) -> Step:
        return Step.DONE


async def fetch(max_in_flight: int) -> float:
    task, server = Fetch(max_in_flight), Server()
    workflow = Workflow[Step](resources={"server": server}).register(Step.FETCH, task).add_exit_state(Step.DONE)
    began = time.monotonic()
    await workflow.orchestrate(Step.FETCH)
    took = time.monotonic() - began
    print(f"{server.most} at once; done in the order of the source: {task.done == sorted(task.done)}")
    return took


async def main() -> None:
    one, eight = await fetch(1), await fetch(8)
    print(f"more than twice as fast: {one > 2 * eight}")


if __name__ == "__main__":
    asyncio.run(main())
