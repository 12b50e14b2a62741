"""A window of an hour, tested in milliseconds; and a race, found by a seed and found again by it.

`simulate` runs a program on an event loop whose clock jumps instead of waiting. With a seed it also shuffles what is
ready at the same moment. The two who add to the same account lose an update only if one goes on between the other's
reading and writing: asyncio's usual order hides it.

Prints:
    after 3600 s the sink has [['first', 'second']]
    after 7300 s the sink has [['first', 'second'], ['third']]
    in the usual order the sum is 2
    some seed of 50 loses an update: True
    and that seed loses it again: True
    Deadlock: nothing can happen any more
"""

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum, auto

from cano import CloseReason, Context, StreamTask, Window, Workflow
from cano.testing import Deadlock, Pause, ScriptedSource, simulate


class Step(StrEnum):
    COLLECT = auto()
    DONE = auto()


class Collect(StreamTask[Step, tuple[int, str], str, int]):
    window = Window(seconds=3600)

    def __init__(self) -> None:
        self.source = ScriptedSource[str](["first", "second", Pause(4000), "third", Pause(3300)])
        self.sink: list[list[str]] = []

    def open(self, ctx: Context[None], cursor: int | None) -> AsyncIterator[tuple[int, str]]:
        return self.source.after(cursor)

    async def process_item(self, ctx: Context[None], item: tuple[int, str]) -> tuple[str, int]:
        number, value = item
        return value, number

    async def flush_window(self, ctx: Context[None], outputs: list[str]) -> None:
        self.sink.append(outputs)

    async def on_close(self, ctx: Context[None], reason: CloseReason) -> Step:
        return Step.DONE


async def collect() -> None:
    task, loop = Collect(), asyncio.get_running_loop()
    running = asyncio.create_task(
        Workflow[Step]().register(Step.COLLECT, task).add_exit_state(Step.DONE).orchestrate(Step.COLLECT)
    )
    await asyncio.sleep(3600.001)
    print(f"after {loop.time():.0f} s the sink has {task.sink}")
    await running
    print(f"after {loop.time():.0f} s the sink has {task.sink}")


async def add_up() -> int:
    total = 0

    async def add(turns: int) -> None:
        nonlocal total
        for _ in range(turns):
            await asyncio.sleep(0)
        seen = total
        await asyncio.sleep(0)
        total = seen + 1

    await asyncio.gather(add(1), add(3))
    return total


def main() -> None:
    simulate(collect)
    print("in the usual order the sum is", simulate(add_up))
    losing = [seed for seed in range(50) if simulate(add_up, seed=seed) < 2]
    print("some seed of 50 loses an update:", bool(losing))
    print("and that seed loses it again:", simulate(add_up, seed=losing[0]) == 1)
    try:
        simulate(lambda: asyncio.Queue[int]().get())
    except Deadlock as error:
        print("Deadlock:", str(error).partition(";")[0])


if __name__ == "__main__":
    main()
