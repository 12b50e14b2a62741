"""A task that fails is tried again, as its `config` says: how often, after which waits, for which failures.

What a failed attempt did to `ctx.data` is discarded: each attempt begins with what the first one found.
`DoNotRetry` ends the attempts although some are left, and so does a failure that `retry_on` does not name.
An attempt that takes longer than `attempt_timeout` has failed like any other.

Prints:
    a service that is or does 'down down fine'
      ConnectionError in attempt 1, again in 0.01 s
      ConnectionError in attempt 2, again in 0.04 s
      it works, and ctx.data is ['called in attempt 3']
    a service that is or does 'down down down fine'
      ConnectionError in attempt 1, again in 0.01 s
      ConnectionError in attempt 2, again in 0.04 s
      RetryExhaustedError: run of Call failed 3 times, in the end with ConnectionError (state CALL, attempt 3)
    a service that is or does 'hangs fine'
      AttemptTimeoutError in attempt 1, again in 0.01 s
      it works, and ctx.data is ['called in attempt 2']
    a service that is or does 'down refuses fine'
      ConnectionError in attempt 1, again in 0.01 s
      TaskExecutionError: run of Call raised DoNotRetry (state CALL, attempt 2)
    a service that is or does 'down babbles fine'
      ConnectionError in attempt 1, again in 0.01 s
      TaskExecutionError: run of Call raised ValueError (state CALL, attempt 2)
"""

import asyncio
from enum import StrEnum, auto

from cano import CanoError, Context, DoNotRetry, ExponentialBackoff, FixedRetry, Task, TaskConfig, Workflow, WorkflowObserver
from cano.observer import Retried


class Step(StrEnum):
    CALL = auto()
    DONE = auto()


class Call(Task[Step]):
    """Calls a service that does the next thing of its list at each attempt."""

    def __init__(self, service: str, config: TaskConfig) -> None:
        self.service = service.split()
        self.config = config

    async def run(self, ctx: Context[list[str]]) -> Step:
        ctx.data.append(f"called in attempt {ctx.attempt}")
        match self.service[ctx.attempt - 1]:
            case "down":
                raise ConnectionError
            case "hangs":
                await asyncio.sleep(3600)
            case "refuses":
                raise DoNotRetry from PermissionError()
            case "babbles":
                raise ValueError
        print("  it works, and ctx.data is", ctx.data)
        return Step.DONE


class Log(WorkflowObserver):
    def on_retry(self, event: Retried) -> None:
        print(f"  {event.error_type} in attempt {event.attempt}, again in {event.delay:.2f} s")


async def show(service: str, config: TaskConfig) -> None:
    print(f"a service that is or does {service!r}")
    workflow = Workflow[Step, list[str]](observers=[Log()])
    workflow.register(Step.CALL, Call(service, config)).add_exit_state(Step.DONE)
    try:
        await workflow.orchestrate(Step.CALL, data=[])
    except CanoError as error:
        print(f"  {type(error).__name__}: {error}")


async def main() -> None:
    backoff = ExponentialBackoff(max_retries=2, base_delay=0.01, multiplier=4, jitter=0)
    await show("down down fine", TaskConfig(retry=backoff))
    await show("down down down fine", TaskConfig(retry=backoff))
    fixed = FixedRetry(retries=5, delay=0.01)
    await show("hangs fine", TaskConfig(retry=fixed, attempt_timeout=0.05))
    await show("down refuses fine", TaskConfig(retry=fixed))
    await show("down babbles fine", TaskConfig(retry=fixed, retry_on=ConnectionError))


if __name__ == "__main__":
    asyncio.run(main())
