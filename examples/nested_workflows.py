"""A workflow as the task of a state of another one, with states, errors and a log of its own.

`data` gives the inner run its `ctx.data`; `exits` says with which state the outer run goes on for each exit
state of the inner one. Observers of the outer workflow see the inner run too, and the path of an error leads
from the outer start into the inner state that failed.

Prints:
    {'sofa': 600, 'lamp': 90}
      order: TAKE
      order: CHECK
        check: SCORE
        check: GOOD
      order: SHIP
      shipped: sofa lamp
      order: DONE
    {'yacht': 90000}
      order: TAKE
      order: CHECK
        check: SCORE
        check: BAD
      order: REFUSED
    {'refund': -5}
      order: TAKE
      order: CHECK
        check: SCORE
      failed: run of score raised DoNotRetry (state SCORE, attempt 1)
      path: TAKE > CHECK > SCORE
"""

import asyncio
from enum import StrEnum, auto

from cano import CanoError, Context, DoNotRetry, SubWorkflow, Workflow, WorkflowObserver
from cano.observer import StateEntered


class Check(StrEnum):
    SCORE = auto()
    GOOD = auto()
    BAD = auto()


class Order(StrEnum):
    TAKE = auto()
    CHECK = auto()
    SHIP = auto()
    DONE = auto()
    REFUSED = auto()


check = Workflow[Check, int](name="check").add_exit_state(Check.GOOD, Check.BAD)


@check.register(Check.SCORE)
async def score(ctx: Context[int]) -> Check:
    if ctx.data < 0:
        raise DoNotRetry("a negative amount")
    return Check.BAD if ctx.data > 1000 else Check.GOOD


class Log(WorkflowObserver):
    def on_state_enter(self, event: StateEntered) -> None:
        indent = "    " if event.workflow == "check" else "  "
        print(f"{indent}{event.workflow}: {event.state.name}")


order = Workflow[Order, dict[str, int]](name="order", observers=[Log()]).add_exit_state(Order.DONE, Order.REFUSED)
exits = {Check.GOOD: Order.SHIP, Check.BAD: Order.REFUSED}
order.register(Order.CHECK, SubWorkflow(check, Check.SCORE, exits=exits, data=lambda ctx: sum(ctx.data.values())))


@order.register(Order.TAKE)
async def take(ctx: Context[dict[str, int]]) -> Order:
    return Order.CHECK


@order.register(Order.SHIP)
async def ship(ctx: Context[dict[str, int]]) -> Order:
    print("  shipped:", *ctx.data)
    return Order.DONE


async def main() -> None:
    for items in ({"sofa": 600, "lamp": 90}, {"yacht": 90_000}, {"refund": -5}):
        print(items)
        try:
            await order.orchestrate(Order.TAKE, data=items)
        except CanoError as error:
            print(f"  failed: {error}")
            print("  path:", " > ".join(state.name for state in error.path))


if __name__ == "__main__":
    asyncio.run(main())
