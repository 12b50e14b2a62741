"""A stream is read item by item and flushed in windows: here three readings, or what has come in 0.5 seconds.

A time window closes on time although the source is silent. `flush_window` may leave the stream with `Stop`;
a source that runs out is for `on_close` to decide on.

Prints:
    morning
      flush [20, 21, 22]
      flush [22]
      flush [21, 20, 19]
      the source ran out after 7 readings
      -> DONE
    evening
      flush [30, 41, 52]
      too hot
      -> ALARM
"""

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum, auto

from cano import CloseReason, Context, Stop, StreamTask, Window, Workflow

Reading = tuple[int, int]  # its number and the degrees


class Step(StrEnum):
    MEASURE = auto()
    DONE = auto()
    ALARM = auto()


class Sensor:
    """Gives its readings at once, but falls silent after the fourth until that one has been flushed."""

    def __init__(self, degrees: list[int]) -> None:
        self.degrees = degrees
        self.flushed = asyncio.Event()

    async def readings(self, after: int) -> AsyncIterator[Reading]:
        for number, degrees in enumerate(self.degrees, start=1):
            if number == 5:
                await self.flushed.wait()
            if number > after:
                yield number, degrees


class Measure(StreamTask[Step, Reading, int, int]):  # state, item, output, cursor
    window = Window(count=3, seconds=0.5)

    def open(self, ctx: Context[int], cursor: int | None) -> AsyncIterator[Reading]:
        return ctx.get("sensor", Sensor).readings(after=cursor or 0)

    async def process_item(self, ctx: Context[int], item: Reading) -> tuple[int, int]:
        number, degrees = item
        ctx.data += 1
        return degrees, number  # what the window collects, and the cursor that this item has reached

    async def flush_window(self, ctx: Context[int], outputs: list[int]) -> Stop[Step] | None:
        print("  flush", outputs)
        if len(outputs) < 3:
            ctx.get("sensor", Sensor).flushed.set()
        if max(outputs) > 50:
            print("  too hot")
            return Stop(Step.ALARM)
        return None

    async def on_close(self, ctx: Context[int], reason: CloseReason) -> Step:
        print(f"  the source ran out after {ctx.data} readings")
        return Step.DONE


async def main() -> None:
    for name, degrees in {"morning": [20, 21, 22, 22, 21, 20, 19], "evening": [30, 41, 52, 63]}.items():
        print(name)
        workflow = Workflow[Step, int](resources={"sensor": Sensor(degrees)})
        workflow.register(Step.MEASURE, Measure()).add_exit_state(Step.DONE, Step.ALARM)
        end = await workflow.orchestrate(Step.MEASURE, data=0)
        print("  ->", end.name)


if __name__ == "__main__":
    asyncio.run(main())
