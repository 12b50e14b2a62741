"""The job of the demo: write each flight into a table, keep totals, report them. It may die at any time.

A window's records, the cursor behind them and the totals (`ctx.data`) become durable in one transaction.
Started again, the job goes on with the first record that is not in the table. See `examples.flights`.
"""

import asyncio
import csv
import gzip
import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field
from enum import StrEnum, auto
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from cano import CloseReason, Context, SqliteCheckpointStore, StreamTask, Window, Workflow

FLIGHTS = Path(__file__).parent / "data" / "flights.csv.gz"

Record = tuple[int, dict[str, str]]  # its number in the file, from 1, and its columns


class Step(StrEnum):
    READ = auto()
    REPORT = auto()
    DONE = auto()


class Flight(NamedTuple):
    number: int
    carrier: str
    hour: int
    departure_delay: int | None  # minutes; None if it never left
    arrival_delay: int | None
    distance: int


@dataclass
class Totals:
    flights: int = 0
    departure_delay: int = 0
    arrival_delay: int = 0
    distance: int = 0
    carriers: dict[str, int] = field(default_factory=dict)


def minutes(text: str) -> int | None:
    return None if text == "NA" else int(text)


class ReadFlights(StreamTask[Step, Record, Flight, int]):
    window = Window(count=10)
    transactional = True

    def open(self, ctx: Context[Totals], cursor: int | None) -> Iterator[Record]:
        with gzip.open(FLIGHTS, "rt", newline="") as file:
            yield from enumerate(islice(csv.DictReader(file), cursor, ctx["records"]), (cursor or 0) + 1)

    async def process_item(self, ctx: Context[Totals], item: Record) -> tuple[Flight, int]:
        number, record = item
        hour, distance = int(record["hour"]), int(record["distance"])
        delays = minutes(record["dep_delay"]), minutes(record["arr_delay"])
        return Flight(number, record["carrier"], hour, *delays, distance), number

    async def flush_window(self, ctx: Context[Totals], outputs: list[Flight]) -> None:
        totals = ctx.data
        for flight in outputs:
            totals.flights += 1
            totals.departure_delay += flight.departure_delay or 0
            totals.arrival_delay += flight.arrival_delay or 0
            totals.distance += flight.distance
            totals.carriers[flight.carrier] = totals.carriers.get(flight.carrier, 0) + 1
        await ctx.transaction.executemany("INSERT INTO flight VALUES (?, ?, ?, ?, ?, ?)", outputs)

    async def on_close(self, ctx: Context[Totals], reason: CloseReason) -> Step:
        return Step.REPORT


async def report(ctx: Context[Totals]) -> Step:
    with closing(sqlite3.connect(ctx["database"])) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO report VALUES (1, ?)", [json.dumps(asdict(ctx.data))])
    return Step.DONE


async def main(database: str, records: int) -> None:
    resources = {"database": database, "records": records}
    workflow = Workflow[Step, Totals](resources=resources, checkpoint_store=SqliteCheckpointStore(database))
    workflow.register(Step.READ, ReadFlights()).register(Step.REPORT, report).add_exit_state(Step.DONE)
    await workflow.orchestrate(Step.READ, workflow_id="flights", data=Totals(), if_exists="resume")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
