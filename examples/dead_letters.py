"""An item that fails is tried again, then dropped, and kept with its reason in a sink of one's own: a dead letter.

A letter is durable before any cursor passes its item. `cursor_of` gives the cursor of an item that was
dropped: without it a resume would read the whole bad end again, from line 5 on.

Prints:
    open at the beginning
      1  2  flush [1, 2]
      flaky  flaky  4  flush [3, 4]
      x  x  x  y  y  y  z  z  z  failed: a read of the source of Parse raised ConnectionError (state parse, attempt 1)
    open after line 6
      z  z  z  8  flush [8]
    letter [5,"x"] of line 5: ValueError
    letter [6,"y"] of line 6: ValueError
    letter [7,"z"] of line 7: ValueError
"""

import asyncio
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from cano import (
    CanoError,
    CloseReason,
    Context,
    DeadLetter,
    FixedRetry,
    SkipAndContinue,
    SqliteCheckpointStore,
    StreamTask,
    Window,
    Workflow,
)

Line = tuple[int, str]


class SqliteLetters:
    """A `DeadLetterSink` is whatever has this `write`. A letter may come twice, hence the key."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        connection.execute("CREATE TABLE letter (line BLOB PRIMARY KEY, item BLOB, error TEXT)")

    async def write(self, letter: DeadLetter) -> None:
        values = (letter.encode_cursor(), letter.encode_item(), letter.error_type)
        with self.connection:
            self.connection.execute("INSERT OR REPLACE INTO letter VALUES (?, ?, ?)", values)


class Parse(StreamTask[str, Line, int, int]):
    window = Window(count=2)
    item_retry = FixedRetry(retries=2, delay=0.01)
    on_item_error = SkipAndContinue()

    def __init__(self, text: str, dead_letters: SqliteLetters) -> None:
        self.lines, self.dead_letters = list(enumerate(text.split(), start=1)), dead_letters

    def open(self, ctx: Context[None], cursor: int | None) -> Iterator[Line]:
        print("open at the beginning" if cursor is None else f"open after line {cursor}")
        yield from self.lines[cursor or 0 :]
        if len(self.lines) < 8:
            raise ConnectionError

    def cursor_of(self, item: Line) -> int:
        return item[0]

    async def process_item(self, ctx: Context[None], item: Line) -> tuple[int, int]:
        number, word = item
        print(" ", word, end="")
        return 3 if word == "flaky" and ctx.attempt > 1 else int(word), number

    async def flush_window(self, ctx: Context[None], outputs: list[int]) -> None:
        print("  flush", outputs)

    async def on_close(self, ctx: Context[None], reason: CloseReason) -> str:
        return "done"


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory, closing(sqlite3.connect(Path(directory, "letters.db"))) as database:
        letters, store = SqliteLetters(database), SqliteCheckpointStore(Path(directory, "runs.db"))
        for text in ("1 2 flaky 4 x y z", "1 2 flaky 4 x y z 8"):
            workflow = Workflow[str](checkpoint_store=store)
            workflow.register("parse", Parse(text, letters)).add_exit_state("done")
            try:
                await workflow.orchestrate("parse", workflow_id="parse", if_exists="resume")
            except CanoError as error:
                print(f"  failed: {error}")
        for line, item, error_type in database.execute("SELECT * FROM letter ORDER BY line"):
            print(f"letter {item.decode()} of line {line.decode()}: {error_type}")


if __name__ == "__main__":
    asyncio.run(main())
