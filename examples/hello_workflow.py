"""A workflow is a finite-state machine: every state has one task, and a task's result is the next state.

This one prices an order. `ctx.data` is the order itself: each run works on its own copy, and with a
checkpoint store it would be written down whenever a state is entered.

Prints:
    book 30, lamp 90: 120 in all
    10% off: 108
    shipped for 108 -> DONE
    pen 4: 4 in all
    shipped for 4 -> DONE
    stateDiagram-v2
        state "PRICE<br/>price" as PRICE
        state "DISCOUNT<br/>discount" as DISCOUNT
        state "SHIP<br/>Ship" as SHIP
        state "DONE" as DONE
        PRICE --> DISCOUNT
        PRICE --> SHIP
        DISCOUNT --> SHIP
        SHIP --> DONE
        DONE --> [*]
"""

import asyncio
from dataclasses import dataclass
from enum import StrEnum, auto
from typing import Literal

from cano import Context, Task, Workflow


class Step(StrEnum):
    PRICE = auto()
    DISCOUNT = auto()
    SHIP = auto()
    DONE = auto()


@dataclass
class Order:
    items: dict[str, int]
    total: int = 0


workflow = Workflow[Step, Order](name="order").add_exit_state(Step.DONE)


@workflow.register(Step.PRICE)
async def price(ctx: Context[Order]) -> Literal[Step.DISCOUNT, Step.SHIP]:
    order = ctx.data
    order.total = sum(order.items.values())
    listed = ", ".join(f"{name} {cost}" for name, cost in order.items.items())
    print(f"{listed}: {order.total} in all")
    return Step.DISCOUNT if order.total >= 100 else Step.SHIP


@workflow.register(Step.DISCOUNT)
async def discount(ctx: Context[Order]) -> Literal[Step.SHIP]:
    ctx.data.total = ctx.data.total * 9 // 10
    print(f"10% off: {ctx.data.total}")
    return Step.SHIP


class Ship(Task[Step]):
    """A task with settings is a class. One object serves every run, so it keeps nothing of any of them."""

    def __init__(self, verb: str) -> None:
        self.verb = verb

    async def run(self, ctx: Context[Order]) -> Literal[Step.DONE]:
        print(f"{self.verb} for {ctx.data.total}", end=" -> ")
        return Step.DONE


workflow.register(Step.SHIP, Ship("shipped"))


async def main() -> None:
    for items in ({"book": 30, "lamp": 90}, {"pen": 4}):
        end = await workflow.orchestrate(Step.PRICE, data=Order(items))
        print(end.name)
    print(workflow.to_mermaid(), end="")  # the edges come from the `Literal` annotations


if __name__ == "__main__":
    asyncio.run(main())
