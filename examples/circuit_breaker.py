"""One circuit breaker guards the calls of two workflows to the same service.

Orders find out that the service is down: after two failures in a row the breaker opens, which ends the attempts
although more were allowed. Refunds are then refused without a call. When the cool-down is over, one call is let
through on trial, and as it goes well, everybody is.

Prints:
    order 1: calls the service, which is down
    order 1: calls the service, which is down
    order 1: circuit breaker payments open: rejecting call (state PAY, attempt 3)
    refund 2: circuit breaker payments open: rejecting call (state PAY, attempt 1)
    the breaker is open: 2 calls were made and 2 refused
    the service is up again, and the cool-down is over
    refund 3: calls the service, which is up
    refund 3: DONE
    order 4: calls the service, which is up
    order 4: DONE
    the breaker is closed: it went closed_to_open 1, open_to_half_open 1, half_open_to_closed 1 times
"""

import asyncio
from enum import StrEnum, auto

from cano import CircuitBreaker, CircuitOpenError, Context, FixedRetry, Task, TaskConfig, Workflow


class Step(StrEnum):
    PAY = auto()
    DONE = auto()


payments = CircuitBreaker(failure_threshold=2, reset_timeout=0.2, name="payments")


class Service:
    """The service that both workflows call."""

    up = False

    async def call(self, who: str) -> None:
        print(f"{who}: calls the service, which is {'up' if self.up else 'down'}")
        if not self.up:
            raise ConnectionError


class Pay(Task[Step]):
    config = TaskConfig(retry=FixedRetry(retries=5, delay=0.001), circuit_breaker=payments)

    def __init__(self, service: Service) -> None:
        self.service = service

    async def run(self, ctx: Context[str]) -> Step:
        await self.service.call(ctx.data)
        return Step.DONE


async def show(workflow: Workflow[Step, str], number: int) -> None:
    who = f"{workflow.name} {number}"
    try:
        state = await workflow.orchestrate(Step.PAY, data=who)
        print(f"{who}: {state.name}")
    except CircuitOpenError as error:
        print(f"{who}: {error}")


async def main() -> None:
    service = Service()
    order, refund = (Workflow[Step, str](name=name) for name in ("order", "refund"))
    for workflow in (order, refund):
        workflow.register(Step.PAY, Pay(service)).add_exit_state(Step.DONE)

    await show(order, 1)
    await show(refund, 2)
    counts = payments.counts
    print(f"the breaker is {payments.state}: {counts.acquired} calls were made and {counts.rejected} refused")

    await asyncio.sleep(payments.retry_after)
    service.up = True
    print("the service is up again, and the cool-down is over")
    await show(refund, 3)
    await show(order, 4)
    moves = ("closed_to_open", "open_to_half_open", "half_open_to_closed")
    print(f"the breaker is {payments.state}: it went", ", ".join(f"{move} {getattr(counts, move)}" for move in moves), "times")


if __name__ == "__main__":
    asyncio.run(main())
