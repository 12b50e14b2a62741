"""A workflow is killed at each of its durable writes and resumed, and a test of three lines says what must hold.

`copying(sink)` builds the workflow anew for each life, as a new process would; `sink` is what a crash leaves alone. A sink
that knows which numbers it has is right whatever happens. One that only appends is not, and `every_crash_point` says
where: between the flush of a window and the commit of its cursor.

Prints:
    a set as the sink: 11 runs, all of them right
    a list as the sink:
      killed before append 2 was written: [1, 2, 1, 2, 3, 4, 5]
      killed before append 3 was written: [1, 2, 3, 4, 3, 4, 5]
      killed before append 4 was written: [1, 2, 3, 4, 5, 5]
"""

import asyncio
from collections.abc import Callable, Iterator
from enum import StrEnum, auto

from cano import CloseReason, Context, StreamTask, Window, Workflow
from cano.testing import every_crash_point


class Step(StrEnum):
    COPY = auto()
    DONE = auto()


class Copy(StreamTask[Step, int, int, int]):
    window = Window(count=2)

    def __init__(self, write: Callable[[list[int]], None]) -> None:
        self.write = write

    def open(self, ctx: Context[None], cursor: int | None) -> Iterator[int]:
        return iter(range((cursor or 0) + 1, 6))

    async def process_item(self, ctx: Context[None], item: int) -> tuple[int, int]:
        return item, item

    async def flush_window(self, ctx: Context[None], outputs: list[int]) -> None:
        self.write(outputs)

    async def on_close(self, ctx: Context[None], reason: CloseReason) -> Step:
        return Step.DONE


def copying(sink: list[int]) -> Workflow[Step]:
    return Workflow[Step]().register(Step.COPY, Copy(sink.extend)).add_exit_state(Step.DONE)


def copying_once(sink: set[int]) -> Workflow[Step]:
    return Workflow[Step]().register(Step.COPY, Copy(sink.update)).add_exit_state(Step.DONE)


async def main() -> None:
    exact = await every_crash_point(copying_once, Step.COPY, outside=set)
    for point in exact:
        assert point.end is Step.DONE, point
        assert point.seen == {1, 2, 3, 4, 5}, point
    print(f"a set as the sink: {len(exact)} runs, all of them right")

    print("a list as the sink:")
    for again in await every_crash_point(copying, Step.COPY):
        if again.seen != [1, 2, 3, 4, 5]:
            print(f"  {again}: {again.seen}")


if __name__ == "__main__":
    asyncio.run(main())
