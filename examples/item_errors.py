"""What becomes of a stream when one of its items fails is for `on_item_error` to say.

`FailFast` fails the run, `SkipAndContinue` drops the item, and `RetryOnError(2)` drops up to two failed
items in a row. An item that takes longer than `attempt_timeout` has failed like any other. Observers are
told of drops.

Prints:
    '1 2 x 4' with FailFast()
      failed: process_item of Parse raised ValueError (state PARSE, attempt 1)
    '1 slow 3' with FailFast()
      failed: process_item of Parse took longer than its attempt_timeout of 0.05 s (state PARSE, attempt 1)
    '1 2 x 4 slow 6' with SkipAndContinue()
      dropped in PARSE: ValueError
      dropped in PARSE: AttemptTimeoutError
      flush [1, 2, 4, 6]
    '1 x y 4 x y z 8' with RetryOnError(max_errors=2)
      dropped in PARSE: ValueError
      dropped in PARSE: ValueError
      dropped in PARSE: ValueError
      dropped in PARSE: ValueError
      failed: process_item of Parse raised ValueError (state PARSE, attempt 1)
"""

import asyncio
from collections.abc import Iterator
from enum import StrEnum, auto

from cano import (
    CanoError,
    CloseReason,
    Context,
    FailFast,
    RetryOnError,
    SkipAndContinue,
    StreamTask,
    TaskConfig,
    Window,
    Workflow,
    WorkflowObserver,
)
from cano.observer import ItemDropped

Line = tuple[int, str]


class Step(StrEnum):
    PARSE = auto()
    DONE = auto()


class Parse(StreamTask[Step, Line, int, int]):
    window = Window(count=100)
    config = TaskConfig(attempt_timeout=0.05)  # seconds, for each process_item

    def __init__(self, text: str, on_item_error: FailFast | SkipAndContinue | RetryOnError) -> None:
        self.lines = text.split()
        self.on_item_error = on_item_error

    def open(self, ctx: Context[None], cursor: int | None) -> Iterator[Line]:
        return enumerate(self.lines, start=1)

    async def process_item(self, ctx: Context[None], item: Line) -> tuple[int, int]:
        number, word = item
        if word == "slow":
            await asyncio.sleep(3600)
        return int(word), number

    async def flush_window(self, ctx: Context[None], outputs: list[int]) -> None:
        print("  flush", outputs)

    async def on_close(self, ctx: Context[None], reason: CloseReason) -> Step:
        return Step.DONE


class Drops(WorkflowObserver):
    def on_item_dropped(self, event: ItemDropped) -> None:
        print(f"  dropped in {event.state.name}: {event.error_type}")


async def show(text: str, on_item_error: FailFast | SkipAndContinue | RetryOnError) -> None:
    print(f"{text!r} with {on_item_error}")
    workflow = Workflow[Step](observers=[Drops()])
    workflow.register(Step.PARSE, Parse(text, on_item_error)).add_exit_state(Step.DONE)
    try:
        await workflow.orchestrate(Step.PARSE)
    except CanoError as error:
        print(f"  failed: {error}")


async def main() -> None:
    await show("1 2 x 4", FailFast())
    await show("1 slow 3", FailFast())
    await show("1 2 x 4 slow 6", SkipAndContinue())
    await show("1 x y 4 x y z 8", RetryOnError(2))  # the success in between resets the count


if __name__ == "__main__":
    asyncio.run(main())
