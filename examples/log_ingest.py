"""Access logs go into a table, each line once: what `docs/tutorial` builds step by step, on one page.

Two files are read at once, each in a run of its own; one has a bad line. The process is killed in mid-window.
The resume loses no line and repeats none, and the count of errors in `ctx.data` is right.

Prints:
    killed by SIGKILL
    monday.log: 34 errors
    tuesday.log: 33 errors
    1999 rows in the table, of 1999 different lines
    tuesday.log has a bad line: UnicodeDecodeError
"""

import asyncio
import os
import signal
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

from cano import CloseReason, Context, SkipAndContinue, SqliteCheckpointStore, StreamTask, Window, Workflow
from cano.recovery.letters import SqliteDeadLetterSink

Line = tuple[int, bytes]  # where the next line begins, and what this one says
Hit = tuple[str, int, int]  # file, position, status


class Ingest(StreamTask[str, Line, Hit, int]):  # state, item, output, cursor
    window = Window(count=200, seconds=60)
    transactional = True
    on_item_error = SkipAndContinue()

    def __init__(self, database: Path, dies_at: int | None) -> None:
        self.dead_letters = SqliteDeadLetterSink(database)
        self.dies_at = dies_at

    def open(self, ctx: Context[int], cursor: int | None) -> Iterator[Line]:
        with open(ctx.workflow_id, "rb") as file:
            file.seek(cursor or 0)
            while line := file.readline():
                yield file.tell(), line  # bytes: an error in here fails the run, whatever the policy

    def cursor_of(self, item: Line) -> int:
        return item[0]

    def process_item(self, ctx: Context[int], item: Line) -> tuple[Hit, int]:
        return (ctx.workflow_id, item[0], int(item[1].decode().split()[-1])), item[0]

    async def flush_window(self, ctx: Context[int], outputs: list[Hit]) -> None:
        await ctx.transaction.executemany("INSERT INTO hit VALUES (?, ?, ?)", outputs)
        ctx.data += sum(status >= 500 for _, _, status in outputs)
        if ctx.data == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)  # before the commit of these rows, their cursor and ctx.data

    def on_close(self, ctx: Context[int], reason: CloseReason) -> str:
        return "report"


async def report(ctx: Context[int]) -> str:
    Path(f"{ctx.workflow_id}.report").write_text(f"{ctx.data} errors")
    return "done"


def ingest(database: Path, files: list[Path], dies_at: int | None = None) -> None:
    workflow = Workflow[str, int](checkpoint_store=SqliteCheckpointStore(database))
    workflow.register("ingest", Ingest(database, dies_at)).register("report", report).add_exit_state("done")

    async def run_all() -> None:
        ids = [str(file) for file in files]
        await asyncio.gather(*(workflow.orchestrate("ingest", workflow_id=name, data=0, if_exists="resume") for name in ids))

    asyncio.run(run_all())


def main() -> None:
    with tempfile.TemporaryDirectory() as name, closing(sqlite3.connect(f"{name}/hits.db")) as hits:
        database, files = Path(name, "hits.db"), [Path(name, "monday.log"), Path(name, "tuesday.log")]
        hits.execute("CREATE TABLE hit (file, position, status)")
        for file in files:
            file.write_text("".join(f"GET /{n} {500 if n % 30 == 7 else 200}\n" for n in range(1000)))
        files[1].write_bytes(files[1].read_bytes().replace(b"GET /37 500", b"\x16\x03\x01\xff"))  # not even text
        process = get_context("spawn").Process(target=ingest, args=(database, files, 20), daemon=True)
        process.start()
        process.join()
        print("killed by", signal.Signals(-(process.exitcode or 0)).name)
        ingest(database, files)
        for file in files:
            print(f"{file.name}: {Path(f'{file}.report').read_text()}")
        rows, lines = hits.execute("SELECT count(*), count(DISTINCT file || position) FROM hit").fetchone()
        print(rows, "rows in the table, of", lines, "different lines")
        letters = asyncio.run(SqliteDeadLetterSink(database).letters())  # one, or two if the line's window came again
        print(Path(letters[0].workflow_id).name, "has a bad line:", letters[0].error_type)


if __name__ == "__main__":
    main()
