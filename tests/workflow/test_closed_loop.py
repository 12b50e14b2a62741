"""A run outlived by nothing, not even by its event loop."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

from tests.streams import machine


def test_a_run_whose_event_loop_was_closed_around_it_is_collected_in_silence() -> None:
    async def wait(ctx: Any) -> str:
        await asyncio.Event().wait()
        return "done"

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # asyncio says that pending asyncio tasks were destroyed
    task = loop.create_task(machine(wait).orchestrate("work"))
    for _ in range(5):
        loop.call_soon(loop.stop)
        loop.run_forever()
    assert not task.done()
    loop.close()
    del task
    gc.collect()
