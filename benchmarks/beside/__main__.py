"""What one durable step costs on SQLite: a run of many steps that do nothing, with each engine that is installed.

A step is durable when the next one begins, by each engine's own means and in its own default mode for SQLite:

by hand    one `UPDATE` and a commit, `sqlite3`, WAL, synchronous FULL
cano       `SteppedTask`, `SqliteCheckpointStore` (WAL, synchronous FULL)
dbos       an `async` workflow of `@DBOS.step`s, system database in SQLite
langgraph  a graph of one `async` node in a cycle, `AsyncSqliteSaver`, `durability="sync"`

These are not the same amount of service: dbos keeps every step's result, langgraph every state of the graph, and
cano the newest cursor. What is the same is what a crash costs: the step it was in.

Engines are measured in turns, so that a busy disk hits all of them. With `--directory /dev/shm` the files are in
memory, and what is left is what the engines do themselves: far steadier figures, to which a disk adds its syncs.
It is in the repository, not in the package: run it at the root of a checkout. To have the others: `pip install dbos
langgraph langgraph-checkpoint-sqlite`, best in an environment of its own, with cano in it too (`pip install .`).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import logging
import sqlite3
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from cano import Context, Done, More, SqliteCheckpointStore, SteppedTask, Workflow

Engine = Callable[[int], Awaitable[None]]


async def by_hand(directory: Path, stack: AsyncExitStack) -> Engine:
    connection = stack.enter_context(closing(sqlite3.connect(directory / "hand.db", isolation_level=None)))
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE cursor (value INTEGER)")
    connection.execute("INSERT INTO cursor VALUES (0)")

    async def run(steps: int) -> None:
        for number in range(steps):
            connection.execute("UPDATE cursor SET value = ?", (number,))
            await asyncio.sleep(0)

    return run


async def of_cano(directory: Path, stack: AsyncExitStack) -> Engine:
    store = await stack.enter_async_context(SqliteCheckpointStore(directory / "cano.db"))

    class Count(SteppedTask[str, int]):
        async def step(self, ctx: Context[int], cursor: int | None) -> More[int] | Done[str]:
            reached = (cursor or 0) + 1
            return More(reached) if reached < ctx.data else Done("done")

    workflow = Workflow[str, int](checkpoint_store=store).register("count", Count()).add_exit_state("done")

    async def run(steps: int) -> None:
        await workflow.orchestrate("count", workflow_id="run", data=steps)

    return run


async def of_dbos(directory: Path, stack: AsyncExitStack) -> Engine:
    dbos: Any = importlib.import_module("dbos").DBOS
    url = f"sqlite:///{directory / 'dbos.db'}"
    dbos(config={"name": "beside", "system_database_url": url, "run_admin_server": False, "log_level": "CRITICAL"})

    @dbos.step()  # type: ignore[untyped-decorator]  # the package need not be there
    async def step(number: int) -> int:
        return number

    @dbos.workflow()  # type: ignore[untyped-decorator]  # as above
    async def count(steps: int) -> None:
        for number in range(steps):
            await step(number)

    dbos.launch()
    stack.callback(dbos.destroy)
    return count  # type: ignore[no-any-return]  # as above


async def of_langgraph(directory: Path, stack: AsyncExitStack) -> Engine:
    graphs: Any = importlib.import_module("langgraph.graph")
    savers: Any = importlib.import_module("langgraph.checkpoint.sqlite.aio")
    saver = await stack.enter_async_context(savers.AsyncSqliteSaver.from_conn_string(str(directory / "langgraph.db")))
    state = importlib.import_module("typing").TypedDict("state", {"number": int, "steps": int})
    graph = graphs.StateGraph(state)

    async def node(state: dict[str, int]) -> dict[str, int]:  # a plain function would cost a thread for each step
        return {"number": state["number"] + 1}

    graph.add_node("count", node)
    graph.add_edge(graphs.START, "count")
    graph.add_conditional_edges("count", lambda state: "count" if state["number"] < state["steps"] else graphs.END)
    application, runs = graph.compile(checkpointer=saver), iter(range(1_000))

    async def run(steps: int) -> None:
        config = {"configurable": {"thread_id": f"run {next(runs)}"}, "recursion_limit": steps + 10}
        await application.ainvoke({"number": 0, "steps": steps}, config, durability="sync")

    return run


ENGINES = {
    "by hand": (by_hand, None),
    "cano": (of_cano, "cano"),
    "dbos": (of_dbos, "dbos"),
    "langgraph": (of_langgraph, "langgraph.checkpoint.sqlite"),
}


def installed(package: str | None) -> bool:
    try:
        return package is None or importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "from its sources"


async def measure(steps: int, rounds: int, parent: str | None) -> dict[str, list[tuple[float, float]]]:
    """Microseconds for each step, by the clock and of the processor, of each round, by engine."""
    found: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(dir=parent) as name:
        async with AsyncExitStack() as stack:
            engines = {title: await build(Path(name), stack) for title, (build, package) in ENGINES.items() if installed(package)}
            for engine in engines.values():
                await engine(5)
            for _ in range(rounds):
                for title, engine in engines.items():
                    begun, worked = perf_counter(), process_time()
                    await engine(steps)
                    spent = perf_counter() - begun, process_time() - worked
                    found.setdefault(title, []).append((spent[0] / steps * 1e6, spent[1] / steps * 1e6))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.beside", description="One durable step on SQLite.")
    parser.add_argument("--steps", type=int, default=200, help="steps of a run (200)")
    parser.add_argument("--rounds", type=int, default=7, help="runs of each engine (7)")
    parser.add_argument("--directory", help="where the databases are made (the system's directory for temporary files)")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found = asyncio.run(measure(options.steps, options.rounds, options.directory))
    print(f"{'':12}{'us a step':>10}{'(low … high)':>20}{'processor':>12}")
    for title, figures in found.items():
        clock, processor = zip(*figures, strict=True)
        spread = f"({min(clock):.0f} … {max(clock):.0f})"
        print(f"{title:12}{statistics.median(clock):10.0f}{spread:>20}{statistics.median(processor):12.0f}")
    absent = [title for title, (_, package) in ENGINES.items() if not installed(package)]
    versions = [f"{title} {version_of(title)}" for title in found if title != "by hand"]
    print(", ".join(versions) + (f"; not installed: {', '.join(absent)}" if absent else ""))


if __name__ == "__main__":
    main()
