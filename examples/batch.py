"""A batch: load the items, process some of them at a time, and finish with what came of each, in their order.

An item that fails is tried again as `item_retry` says, and in the end becomes an `Err` instead of an `Ok`;
the others go on. Nothing of a batch is durable before it is finished. For items that shall survive a crash
one by one there are streams.

Prints:
    / has 1 bytes, after 1 requests
    /about has 6 bytes, after 1 requests
    /busy has 5 bytes, after 3 requests
    /gone failed with ConnectionError, after 3 requests
    /hangs failed with TimeoutError, after 3 requests
    /news has 5 bytes, after 1 requests
    -> INCOMPLETE; at most 4 requests at once
"""

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum, auto
from typing import Literal

from cano import BatchTask, Context, Err, FixedRetry, Ok, Workflow


class Step(StrEnum):
    FETCH = auto()
    DONE = auto()
    INCOMPLETE = auto()


class Site:
    """Counts its requests, and how many of them are open at once."""

    def __init__(self) -> None:
        self.requests = dict.fromkeys(["/", "/about", "/busy", "/gone", "/hangs", "/news"], 0)
        self.open = self.most_open = 0

    async def get(self, page: str) -> int:
        self.requests[page] += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(3600 if page == "/hangs" else 0.05 if page == "/" else 0)  # the first one is slow
        finally:
            self.open -= 1
        if page == "/gone" or (page == "/busy" and self.requests[page] < 3):
            raise ConnectionError
        return len(page)


class Fetch(BatchTask[Step, str, int]):
    concurrency = 4
    item_retry = FixedRetry(retries=2, delay=0.01)

    async def load(self, ctx: Context[None]) -> AsyncIterator[str]:
        async def pages() -> AsyncIterator[str]:
            for page in ctx.get("site", Site).requests:
                yield page

        return pages()

    async def process_item(self, ctx: Context[None], item: str) -> int:
        async with asyncio.timeout(0.1):
            return await ctx.get("site", Site).get(item)

    async def finish(self, ctx: Context[None], outcomes: list[Ok[int] | Err]) -> Literal[Step.DONE, Step.INCOMPLETE]:
        for (page, requests), outcome in zip(ctx.get("site", Site).requests.items(), outcomes, strict=True):
            match outcome:
                case Ok(size):
                    print(f"{page} has {size} bytes, after {requests} requests")
                case Err(error):
                    print(f"{page} failed with {type(error).__name__}, after {requests} requests")
        return Step.INCOMPLETE if any(isinstance(outcome, Err) for outcome in outcomes) else Step.DONE


async def main() -> None:
    site = Site()
    workflow = Workflow[Step](resources={"site": site})
    workflow.register(Step.FETCH, Fetch()).add_exit_state(Step.DONE, Step.INCOMPLETE)
    end = await workflow.orchestrate(Step.FETCH)
    print(f"-> {end.name}; at most {site.most_open} requests at once")


if __name__ == "__main__":
    asyncio.run(main())
