"""What can go wrong around a workflow, on purpose: a source that fails and dies, a log that fails and stalls.

`ScriptedSource` does what its script says, each thing once, so a resume gets past it. `FaultyStore` stands before a real
store. `RecordingObserver` keeps what the runs told.

Prints:
    the source failed: OSError
    the process died; written so far: ['a', 'b']
    the log failed: CheckpointStoreError
    the log stalls, and the drain of a cancelled run is cut after its 30 s: WorkflowCancelledError after 31 s
    -> DONE, written: ['a', 'b', 'c', 'd', 'c', 'd']
    read, life by life: [['a'], ['a', 'b', 'c'], ['c', 'd'], ['c', 'd']]
    5 runs: failed, crashed, failed, cancelled, completed
"""

import asyncio
from collections.abc import AsyncIterator
from enum import StrEnum, auto

from cano import CancellationToken, CanoError, CloseReason, Context, MemoryCheckpointStore, StreamTask, Window, Workflow
from cano.testing import Crash, Crashed, Fail, FaultyStore, RecordingObserver, ScriptedSource, simulate


class Step(StrEnum):
    READ = auto()
    DONE = auto()


class Read(StreamTask[Step, tuple[int, str], str, int]):
    window = Window(count=2)

    def __init__(self, source: ScriptedSource[str], sink: list[str]) -> None:
        self.source = source
        self.sink = sink

    def open(self, ctx: Context[None], cursor: int | None) -> AsyncIterator[tuple[int, str]]:
        return self.source.after(cursor)

    async def process_item(self, ctx: Context[None], item: tuple[int, str]) -> tuple[str, int]:
        number, value = item
        return value, number

    async def flush_window(self, ctx: Context[None], outputs: list[str]) -> None:
        self.sink.extend(outputs)

    async def on_close(self, ctx: Context[None], reason: CloseReason) -> Step:
        return Step.DONE


async def main() -> None:
    source = ScriptedSource[str](["a", Fail(OSError("reset by peer")), "b", "c", Crash(), "d"])
    store, sink, observer, loop = MemoryCheckpointStore(), list[str](), RecordingObserver(), asyncio.get_running_loop()

    async def live(log: MemoryCheckpointStore | FaultyStore, token: CancellationToken | None = None) -> Step:
        flow = Workflow[Step](checkpoint_store=log, observers=[observer]).register(Step.READ, Read(source, sink))
        return await flow.add_exit_state(Step.DONE).orchestrate(Step.READ, workflow_id="r", if_exists="resume", token=token)

    try:
        await live(store)
    except CanoError as error:
        print("the source failed:", type(error.__cause__).__name__)
    try:
        await live(store)
    except Crashed:
        print("the process died; written so far:", sink)
    try:
        await live(FaultyStore(store, fail_at=2))
    except CanoError as error:
        print("the log failed:", type(error).__name__)
    began, token = loop.time(), CancellationToken()
    loop.call_later(1, token.cancel)
    try:
        await live(FaultyStore(store, stall_at=2, before=False), token)
    except CanoError as error:
        after = f"{type(error).__name__} after {loop.time() - began:.0f} s"
        print("the log stalls, and the drain of a cancelled run is cut after its 30 s:", after)
    print("->", (await live(store)).name + ", written:", sink)
    print("read, life by life:", [read for read in source.reads if read])
    outcomes = [event.outcome for event in observer.of("run_end")]
    print(f"{len(outcomes)} runs: {', '.join(outcomes)}")


if __name__ == "__main__":
    simulate(main)
