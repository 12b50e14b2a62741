"""What the library takes: memory while a stream goes on, and time to import. Measured in processes of their own."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benchmarks.measure import Benchmark, Effort, Figure, Target, spread
from benchmarks.tasks import Ready, Step, workflow_of
from cano import Context, SqliteCheckpointStore, Window

EARLY = 100_000
LATE = 1_000_000
LOOK = 5_050  # so that the looks meet every point of a window
MEGABYTE = 1 << 20
STATM = Path("/proc/self/statm")

_IMPORT = """
from time import perf_counter
import pydantic; pydantic.BaseModel, pydantic.TypeAdapter
began = perf_counter()
import cano
print(perf_counter() - began)
"""


async def memory(effort: Effort) -> Figure:
    """By how much the resident memory of a durable stream rises above that at its 100,000th item, up to the 1,000,000th."""
    grown = [float(await _child("-m", "benchmarks.footprint")) / MEGABYTE for _ in range(1 if effort.quick else 3)]
    return Figure("growth of memory, item 100,000 to 1,000,000", spread(grown), unit="MB", target=Target(2.0))


async def import_time(effort: Effort) -> Figure:
    """`import cano` where pydantic is imported already."""
    took = [float(await _child("-c", _IMPORT)) * 1e3 for _ in range(5 if effort.quick else 15)]
    return Figure("import of cano beyond pydantic", spread(took), unit="ms", target=Target(150.0))


async def _child(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, text=True)
    return done.stdout


class Watched(Ready):
    """Looks at the memory every so many items from an early one on."""

    early: int = 0
    most: int = 0

    async def open(self, ctx: Context[Any], cursor: int | None) -> AsyncIterator[int]:
        for number in range(self.count):
            if number >= EARLY and not number % LOOK:
                self.most = max(self.most, _resident())
                self.early = self.early or self.most
            yield number


def _resident() -> int:
    """The memory that is resident, in bytes. Without /proc the most that ever was, which may hide some growth."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak << 10


async def _watch() -> int:
    task = Watched(LATE, Window(count=1_000, seconds=0.005))
    with tempfile.TemporaryDirectory() as directory:
        store = SqliteCheckpointStore(Path(directory, "runs.db"), synchronous="NORMAL")
        await workflow_of(task, store).orchestrate(Step.WORK, workflow_id="run")
        await store.close()
    task.settle()
    return task.most - task.early


BENCHMARKS: dict[str, Benchmark] = {"memory": memory, "import": import_time}

if __name__ == "__main__":
    print(asyncio.run(_watch()))
