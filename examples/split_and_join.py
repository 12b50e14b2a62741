"""A split runs tasks side by side; its join says when that is decided, and the others are then cancelled.

The next state finds the results in `ctx.branches`, in the order of the branches. Branches may give values of
different types. Here one of four mirrors is slower, one never answers, and one is broken.

Prints:
    All()
      slower[0]: {'bytes': 7}  fast[1]: 'file'
    All(), and one fails
      (silent is cleaning up)
      failed: the join All was not met: 1 of 4 branches succeeded, 4 had to
    AnyOf()
      (silent is cleaning up)
      broken[0]: failed  slower[1]: {'bytes': 7}  silent[2]: cancelled
    Quorum(2)
      (silent is cleaning up)
      fast[0]: 'file'  slower[1]: {'bytes': 7}  silent[2]: cancelled  broken[3]: failed
    Quorum(3), and time is up
      (silent is cleaning up)
      failed: the join Quorum was not met at the timeout: 2 of 4 branches succeeded, 3 had to
    Percentage(0.5)
      (silent is cleaning up)
      fast[0]: 'file'  slower[1]: {'bytes': 7}  silent[2]: cancelled  broken[3]: failed
    PartialResults(1)
      fast[0]: 'file'  slower[1]: cancelled  silent[2]: cancelled  broken[3]: cancelled
    PartialTimeout()
      (silent is cleaning up)
      fast[0]: 'file'  slower[1]: {'bytes': 7}  silent[2]: cancelled  broken[3]: failed
"""

import asyncio
from enum import StrEnum, auto

from cano import All, AnyOf, CanoError, Context, DoNotRetry, PartialResults, PartialTimeout, Percentage, Quorum, Split, Workflow


class Step(StrEnum):
    ASK = auto()
    MERGE = auto()
    DONE = auto()


async def fast(ctx: Context[None]) -> str:
    return "file"


async def slower(ctx: Context[None]) -> dict[str, int]:
    await asyncio.sleep(0.02)
    return {"bytes": 7}


async def silent(ctx: Context[None]) -> str:
    try:
        await asyncio.sleep(3600)
    finally:
        print("  (silent is cleaning up)")  # it is awaited: the next state comes after
    return "never"


async def broken(ctx: Context[None]) -> str:
    raise DoNotRetry  # else it would be tried again


async def merge(ctx: Context[None]) -> Step:
    for branch in ctx.branches:
        came = "cancelled" if branch.cancelled else "failed" if branch.error else repr(branch.value)
        print(f"  {branch.name}: {came}", end="")
    print()
    return Step.DONE


async def show(title: str, split: Split[Step]) -> None:
    print(title)
    workflow = Workflow[Step]().register(Step.ASK, split).register(Step.MERGE, merge).add_exit_state(Step.DONE)
    try:
        await workflow.orchestrate(Step.ASK)
    except CanoError as error:
        print("  failed:", error.message.partition(";")[0])


async def main() -> None:
    mirrors = [fast, slower, silent, broken]
    await show("All()", Split([slower, fast], join=All(), then=Step.MERGE))
    await show("All(), and one fails", Split(mirrors, join=All(), then=Step.MERGE))
    await show("AnyOf()", Split([broken, slower, silent], join=AnyOf(), then=Step.MERGE))
    await show("Quorum(2)", Split(mirrors, join=Quorum(2), then=Step.MERGE))
    await show("Quorum(3), and time is up", Split(mirrors, join=Quorum(3), then=Step.MERGE, timeout=0.2))
    await show("Percentage(0.5)", Split(mirrors, join=Percentage(0.5), then=Step.MERGE))
    await show("PartialResults(1)", Split(mirrors, join=PartialResults(1), then=Step.MERGE, max_concurrency=1))
    await show("PartialTimeout()", Split(mirrors, join=PartialTimeout(), then=Step.MERGE, timeout=0.2))


if __name__ == "__main__":
    asyncio.run(main())
