"""What docs/operations.md promises: backups of a log that is being written, drains, and what is left beside a log."""

from __future__ import annotations

import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cano.cli.codes import Exit
from tests.cli.commands import LOG, ROOT, InProcess, finished, spawn

PAGE = ROOT / "docs" / "operations.md"
LEDGER = '''
import asyncio, os
from pathlib import Path
from cano import *


class Numbers(StreamTask[str, int, int, int]):
    """Numbers into a table beside the log, and their sum into ctx.data; to what the file `end` says, else without end."""

    window = Window(count=3)
    transactional = True

    def open(self, ctx, cursor):
        end = int(Path("end").read_text()) if Path("end").exists() else 10**12
        return iter(range((cursor or 0) + 1, end + 1))

    async def process_item(self, ctx, item):
        return item, item

    async def flush_window(self, ctx, outputs):
        ctx.data += sum(outputs)
        await ctx.transaction.execute("CREATE TABLE IF NOT EXISTS number (value INTEGER)")
        await ctx.transaction.executemany("INSERT INTO number VALUES (?)", [(output,) for output in outputs])

    async def on_close(self, ctx, reason):
        return "check"


class Hang(Numbers):
    transactional = False

    async def flush_window(self, ctx, outputs):
        Path("hanging").touch()
        await asyncio.Event().wait()


async def check(ctx):
    Path("sum").write_text(str(ctx.data))
    return "end"


def workflow():
    store = SqliteCheckpointStore("runs.db", synchronous="NORMAL")
    machine = Workflow[str, int](name="ledger", checkpoint_store=store, drain_timeout=0.2)
    machine.register("numbers", Numbers()).register("hang", Hang()).register("check", check)
    return machine.add_exit_state("end")
'''
RUN = ("run", "ledger:workflow", "numbers", "--id", "a", "--data", "0")


@pytest.fixture
def ledger(shop: Path) -> Iterator[Path]:
    (shop / "ledger.py").write_text(LEDGER)
    yield shop
    sys.modules.pop("ledger", None)


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    patience = time.monotonic() + 20
    while not condition():
        assert process.poll() is None, finished(process)
        assert time.monotonic() < patience
        time.sleep(0.005)


def numbers(path: Path) -> list[int]:
    with closing(sqlite3.connect(path)) as database:
        try:
            return [value for (value,) in database.execute("SELECT value FROM number ORDER BY rowid")]
        except sqlite3.OperationalError:
            return []


def back_up_of_the_page() -> Callable[[str, str], None]:
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(snippet, names)
    found: Callable[[str, str], None] = names["back_up"]
    return found


@pytest.mark.parametrize("whole", [back_up_of_the_page, lambda: _online])
def test_a_copy_made_while_the_log_is_written_is_whole_and_its_run_goes_on_exactly_once(
    ledger: Path, cano: InProcess, whole: Callable[[], Callable[[str, str], None]]
) -> None:
    process = spawn(ledger, *RUN)
    until(lambda: (ledger / LOG).exists() and len(numbers(ledger / LOG)) > 300, process)
    whole()(str(ledger / LOG), str(ledger / "copy.db"))
    copied = len(numbers(ledger / "copy.db"))
    until(lambda: len(numbers(ledger / LOG)) > copied, process)
    process.kill()
    process.wait()
    assert process.communicate() == ("", "")
    assert len(numbers(ledger / LOG)) > copied > 300, "the run went on while the copy was made, and after"
    (run,) = cano("runs", "copy.db", "--json").json
    assert (run["id"], run["windows"]) == ("a", copied // 3)
    for name in (LOG, f"{LOG}-wal", f"{LOG}-shm"):
        (ledger / name).unlink(missing_ok=True)
    shutil.copy(ledger / "copy.db", ledger / LOG)
    (ledger / "end").write_text(str(copied + 300))
    assert cano("resume", "ledger:workflow", "a").code == Exit.DONE
    assert numbers(ledger / LOG) == list(range(1, copied + 301))
    assert (ledger / "sum").read_text() == str(sum(range(1, copied + 301)))


def _online(log: str, copy: str) -> None:
    with closing(sqlite3.connect(log, timeout=30)) as database, closing(sqlite3.connect(copy)) as target:
        database.backup(target)


def test_a_copy_of_the_file_alone_lacks_what_is_in_the_wal(ledger: Path, cano: InProcess) -> None:
    process = spawn(ledger, "run", "shop:workflow", "READ", "--id", "a")
    until((ledger / "waiting").exists, process)
    shutil.copy(ledger / LOG, ledger / "alone.db")
    process.kill()
    process.communicate()
    assert cano("runs", "alone.db").code == Exit.REFUSED
    assert (ledger / f"{LOG}-wal").stat().st_size > 0
    assert cano("runs", LOG, "--json").json[0]["windows"] == 1
    assert not (ledger / f"{LOG}-wal").exists(), "whoever closes a log last folds the -wal into it"
    shutil.move(ledger / LOG, ledger / "moved.db")
    assert cano("runs", "moved.db", "--json").json[0]["windows"] == 1


def test_a_drain_that_takes_too_long_is_aborted_and_says_so(ledger: Path, cano: InProcess) -> None:
    process = spawn(ledger, "run", "ledger:workflow", "hang", "--id", "a", "--data", "0")
    until((ledger / "hanging").exists, process)
    process.send_signal(signal.SIGTERM)
    answer = finished(process)
    assert (answer.code, answer.out) == (Exit.CANCELLED, "")
    assert "mid-drain" in answer.err
    assert [run["state"] for run in cano("runs", LOG, "--json").json] == ["hang"]


def test_a_deleted_claims_file_lets_two_work_on_a_run_until_one_of_them_writes(ledger: Path, cano: InProcess) -> None:
    first = spawn(ledger, "run", "shop:workflow", "READ", "--id", "a")
    until((ledger / "waiting").exists, first)
    (ledger / f"{LOG}-claims").unlink()
    (ledger / "go").touch()
    assert cano("resume", "shop:workflow", "a").code == Exit.DONE
    assert (ledger / "sum").read_text() == "15"
    first.send_signal(signal.SIGTERM)
    answer = finished(first)
    assert (answer.code, answer.out) == (Exit.OWNED, "")
    assert cano("runs", LOG, "--json").json == []


def test_the_page_names_every_file_that_is_there(ledger: Path) -> None:
    process = spawn(ledger, "run", "shop:workflow", "READ", "--id", "a")
    until((ledger / "waiting").exists, process)
    beside = {path.name for path in ledger.iterdir() if path.name.startswith(LOG)}
    process.kill()
    process.communicate()
    assert beside == {LOG, f"{LOG}-wal", f"{LOG}-shm", f"{LOG}-claims"}
    assert all(f"`{name}`" in PAGE.read_text(encoding="utf-8") for name in beside)
    assert (ledger / f"{LOG}-claims").stat().st_size == 0
