"""An export is made elsewhere: one state asks until it is ready, and another decides what becomes of it.

A `PollTask` asks again after each `Pending(delay)`; how many errors in a row it puts up with is for
`on_poll_error` to say. A `RouterTask` only decides, so it leaves no row in the log: a resume of a run that
stopped behind it starts at the state before, and decides anew.

Prints:
    an exporter that says ('wait', 'garbage', 'wait', 3)
      row 0: AWAIT_EXPORT
      poll: wait
      poll: garbage
      poll: wait
      poll: 3
      row 1: MAIL
      mail 3 MB
      row 2: DONE
      -> DONE
    an exporter that says (25,)
      row 0: AWAIT_EXPORT
      poll: 25
      row 1: UPLOAD
      upload 25 MB
      row 2: DONE
      -> DONE
"""

import asyncio
from enum import StrEnum, auto
from typing import Literal

from cano import Context, MemoryCheckpointStore, Pending, PollTask, Ready, RetryOnError, RouterTask, Workflow, WorkflowObserver
from cano.observer import Checkpointed


class Step(StrEnum):
    AWAIT_EXPORT = auto()
    CHOOSE = auto()
    MAIL = auto()
    UPLOAD = auto()
    DONE = auto()


class AwaitExport(PollTask[Step]):
    on_poll_error = RetryOnError(1)  # one error; the second in a row fails the run

    async def poll(self, ctx: Context[int]) -> Ready[Literal[Step.CHOOSE]] | Pending:
        answer = ctx.get("answers", list).pop(0)
        print(f"  poll: {answer}")
        if answer == "garbage":
            raise ValueError
        if answer == "wait":
            return Pending(0.01)  # seconds
        ctx.data = answer
        return Ready(Step.CHOOSE)


class Choose(RouterTask[Step]):
    async def route(self, ctx: Context[int]) -> Literal[Step.MAIL, Step.UPLOAD]:
        return Step.MAIL if ctx.data < 10 else Step.UPLOAD


async def mail(ctx: Context[int]) -> Literal[Step.DONE]:
    print(f"  mail {ctx.data} MB")
    return Step.DONE


async def upload(ctx: Context[int]) -> Literal[Step.DONE]:
    print(f"  upload {ctx.data} MB")
    return Step.DONE


class Rows(WorkflowObserver):
    def on_checkpoint(self, event: Checkpointed) -> None:
        print(f"  row {event.sequence}: {event.state.name}")


async def show(*answers: int | str) -> None:
    print(f"an exporter that says {answers}")
    workflow = Workflow[Step, int](
        checkpoint_store=MemoryCheckpointStore(), observers=[Rows()], resources={"answers": list(answers)}
    )
    workflow.register(Step.AWAIT_EXPORT, AwaitExport()).register(Step.CHOOSE, Choose())
    workflow.register(Step.MAIL, mail).register(Step.UPLOAD, upload).add_exit_state(Step.DONE)
    end = await workflow.orchestrate(Step.AWAIT_EXPORT, workflow_id="export", data=0)
    print(f"  -> {end.name}")


async def main() -> None:
    await show("wait", "garbage", "wait", 3)
    await show(25)


if __name__ == "__main__":
    asyncio.run(main())
