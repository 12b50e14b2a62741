"""The demo: a job that streams 80,789 flights into a table is killed again and again; all figures are right.

`examples.flights_job` is killed with SIGKILL at random moments and started again until it is done. Then
what came of it is compared with a straight count of the file: the exit code is 1 if a flight is lost, or is
there twice.
"""

import argparse
import math
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from examples import flights_proof as proof

stopped: list[int] = []  # signals received; a handler that raises could leave the job behind
COLUMNS = (TextColumn("flights"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def live(command: list[str], until: float, pause: float, committed: Callable[[], int]) -> tuple[bool, float]:
    """Run the job, and kill it when it has come to `until`. Say whether it was, and how long it worked."""
    first = count = committed()
    working_since = time.monotonic()
    with subprocess.Popen(command) as job:
        try:
            while job.poll() is None and not first < count >= until:
                if stopped:
                    sys.exit("stopped")
                if count == first:  # the job is still starting
                    working_since = time.monotonic()
                time.sleep(0.005)
                count = committed()
            time.sleep(pause)
        finally:
            job.kill()
    seconds = time.monotonic() - working_since
    if job.returncode not in (0, -signal.SIGKILL):
        sys.exit(f"the job failed with exit code {job.returncode}")
    return job.returncode != 0, seconds


def run_job(database: str, connection: sqlite3.Connection, console: Console, records: int, seed: int) -> str:
    """Let the job live until it is done, and say how it went."""
    command = [sys.executable, "-m", "examples.flights_job", database, str(records)]
    chance = random.Random(seed)
    targets = [chance.uniform(0.05, 0.85) * records for _ in range(chance.randint(3, 5))]
    targets.sort(reverse=True)
    began, working, kills, killed = time.monotonic(), 0.0, 0, True
    with Progress(*COLUMNS, console=console) as progress:
        bar = progress.add_task("", total=records)

        def committed() -> int:
            (count,) = connection.execute("SELECT COALESCE(MAX(rowid), 0) FROM flight").fetchone()
            progress.update(bar, completed=count)
            return int(count)

        while killed:
            until = targets.pop() if targets else math.inf
            killed, seconds = live(command, until, chance.uniform(0, 0.02), committed)
            working += seconds
            if killed:
                kills += 1
                console.print(f"kill {kills}: SIGKILL with {committed():,} flights committed")
    overall = records / (time.monotonic() - began)
    return f"{kills} kills; {overall:,.0f} flights/s overall and {records / working:,.0f} while at work"


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill a job again and again; prove that nothing is lost.")
    parser.add_argument("--records", type=int, help="take only so many flights")
    parser.add_argument("--seed", type=int, default=random.randrange(10_000), help="chooses the kills")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    console, counts = Console(), {"the file": proof.of_file(options.records)}
    records = counts["the file"].flights
    console.print(f"{records:,} flights; --seed {options.seed} chooses the kills")
    with tempfile.TemporaryDirectory() as directory:
        database = f"{directory}/flights.db"
        with closing(sqlite3.connect(database)) as connection:
            proof.create_tables(connection)
            speed = run_job(database, connection, console, records, options.seed)
            counts |= {"the table": proof.of_table(connection), "ctx.data": proof.of_data(connection)}
            console.print(proof.chart(connection), proof.comparison(counts), speed, sep="\n")
            if not proof.proven(counts, connection):
                sys.exit("PROOF FAILED: the counts differ")
    console.print("PROOF: all three counts are equal: nothing was lost, nothing came twice")


if __name__ == "__main__":
    main()
