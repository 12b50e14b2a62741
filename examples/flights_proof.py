"""The proof of the demo: three counts of the flights, made in three ways, have to be equal to the last digit.

There is nothing of cano in here and nothing of the job. One count is made from the file itself.
"""

import csv
import gzip
import json
import sqlite3
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.progress_bar import ProgressBar
from rich.table import Table

FLIGHTS = Path(__file__).parent / "data" / "flights.csv.gz"


@dataclass(frozen=True)
class Count:
    flights: int
    departure_delay: int
    arrival_delay: int
    distance: int
    carriers: dict[str, int]


def create_tables(connection: sqlite3.Connection) -> None:
    """Nothing is unique in the table of flights: a record that came twice would be there twice."""
    connection.execute("PRAGMA journal_mode = WAL")
    columns = "number, carrier, hour, departure_delay, arrival_delay, distance"
    connection.execute(f"CREATE TABLE flight ({columns})")
    connection.execute("CREATE TABLE report (id INTEGER PRIMARY KEY, totals)")


def of_file(records: int | None) -> Count:
    """What is in the file, counted straight through."""
    with gzip.open(FLIGHTS, "rt", newline="") as file:
        rows = list(islice(csv.DictReader(file), records))
    departure_delay = sum(int(row["dep_delay"]) for row in rows if row["dep_delay"] != "NA")
    arrival_delay = sum(int(row["arr_delay"]) for row in rows if row["arr_delay"] != "NA")
    distance = sum(int(row["distance"]) for row in rows)
    carriers = Counter(row["carrier"] for row in rows)
    return Count(len(rows), departure_delay, arrival_delay, distance, carriers)


def of_table(connection: sqlite3.Connection) -> Count:
    """What the windows have written."""
    query = "SELECT COUNT(*), SUM(departure_delay), SUM(arrival_delay), SUM(distance) FROM flight"
    flights, departure_delay, arrival_delay, distance = connection.execute(query).fetchone()
    carriers = dict(connection.execute("SELECT carrier, COUNT(*) FROM flight GROUP BY carrier"))
    return Count(flights, departure_delay, arrival_delay, distance, carriers)


def of_data(connection: sqlite3.Connection) -> Count:
    """What the run itself has counted in `ctx.data`, as its last task reported it."""
    (totals,) = connection.execute("SELECT totals FROM report").fetchone()
    return Count(**json.loads(totals))


def proven(counts: dict[str, Count], connection: sqlite3.Connection) -> bool:
    """Whether all counts are equal, and no record is in the table twice in place of one that is missing."""
    (different,) = connection.execute("SELECT COUNT(DISTINCT number) FROM flight").fetchone()
    return all(count == counts["the file"] and count.flights == different for count in counts.values())


def comparison(counts: dict[str, Count]) -> Table:
    table = Table(title="the same flights, counted in three ways")
    for heading in ("", "flights", "departure delay", "arrival delay", "distance", "of UA", "of B6"):
        table.add_column(heading, justify="right")
    for name, count in counts.items():
        carriers = [count.carriers.get(carrier, 0) for carrier in ("UA", "B6")]
        figures = [count.flights, count.departure_delay, count.arrival_delay, count.distance, *carriers]
        table.add_row(name, *(f"{figure:,}" for figure in figures))
    return table


def chart(connection: sqlite3.Connection) -> Table:
    """The mean delay of the departures of each hour of the day."""
    query = "SELECT hour, AVG(departure_delay) FROM flight WHERE departure_delay NOTNULL GROUP BY hour"
    delays = dict(connection.execute(f"{query} ORDER BY hour"))
    table = Table("hour", "minutes", "", title="mean delay of departures", box=None)
    for hour, delay in delays.items():
        bar = ProgressBar(total=max(delays.values()), completed=max(delay, 0), width=50)
        table.add_row(f"{hour:4}", f"{delay:7.1f}", bar)
    return table
