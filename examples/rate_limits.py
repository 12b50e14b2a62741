"""One set of rate limits is kept by the tasks of two workflows together.

A provider allows a few requests in a short time and so many tokens in an hour. Each call takes one request and three
tokens, all or nothing. Who has to wait waits in line, whichever workflow it belongs to; who would rather not is told
when to come back.

Prints:
    chat 1: answered at once
    chat 2: answered at once
    search 3: answered after a while
    search 4: answered after a while
    the tier of tokens is used up: 12 of 14
    search 5: rate_limited by tokens, for longer than half an hour: True
    only the tier of requests: admitted
    reserved, so that there are left: 0
    not needed after all, so that there are left: 2
"""

import asyncio
from enum import StrEnum, auto

from cano import (
    Context,
    MultiRateLimiter,
    NoRetry,
    RateLimitedError,
    RateLimiter,
    Task,
    TaskConfig,
    WindowedRateLimiter,
    Workflow,
)


class Step(StrEnum):
    ASK = auto()
    DONE = auto()


requests = RateLimiter(1, period=0.4, max_tokens=2)
tokens = WindowedRateLimiter.per_hours(14)
provider = MultiRateLimiter({"requests": requests, "tokens": (tokens, 3)})


class Ask(Task[Step]):
    config = TaskConfig(retry=NoRetry())

    def __init__(self, *, wait: bool = True) -> None:
        self.wait = wait

    async def run(self, ctx: Context[str]) -> Step:
        if self.wait:
            await provider.acquire()
        else:
            provider.require()
        print(f"{ctx.data}: answered", "after a while" if provider.counts.waited else "at once")
        return Step.DONE


def workflow(name: str, task: Ask) -> Workflow[Step, str]:
    return Workflow[Step, str](name=name).register(Step.ASK, task).add_exit_state(Step.DONE)


async def main() -> None:
    chat, search = workflow("chat", Ask()), workflow("search", Ask())
    for number in (1, 2):
        await chat.orchestrate(Step.ASK, data=f"chat {number}")
    await asyncio.gather(*(search.orchestrate(Step.ASK, data=f"search {number}") for number in (3, 4)))
    usage = tokens.snapshot()
    print(f"the tier of tokens is used up: {usage.used} of {usage.limit}")

    await asyncio.sleep(requests.time_until())
    try:
        await workflow("hurry", Ask(wait=False)).orchestrate(Step.ASK, data="search 5")
    except RateLimitedError as error:
        print(f"search 5: {error.category} by {error.tier}, for longer than half an hour: {error.retry_after > 1800}")

    if provider.try_acquire(only=("requests",)):
        print("only the tier of requests: admitted")
    reservation = tokens.try_reserve(2)
    if reservation is not None:
        with reservation:  # and without reservation.commit()
            print("reserved, so that there are left:", tokens.available)
        print("not needed after all, so that there are left:", tokens.available)


if __name__ == "__main__":
    asyncio.run(main())
