"""`cano` as a process: signals, kill -9, two at once, pipes that close, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cano import SqliteCheckpointStore
from cano.cli import MISSING
from cano.cli.codes import Exit
from tests.cli.commands import LOG, Answer, InProcess, await_file, entry, environment, finished, spawn, write


def waiting(shop: Path, *arguments: str) -> subprocess.Popen[str]:
    """A process whose stream has read 1, 2 and 3, has committed the window of 1 and 2, and waits for 4."""
    process = spawn(shop, *arguments)
    await_file(shop / "waiting", process)
    return process


RUN = ("run", "shop:workflow", "READ", "--id", "a")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_the_run_and_a_resume_goes_on(shop: Path, number: signal.Signals) -> None:
    process = waiting(shop, *RUN)
    process.send_signal(number)
    answer = finished(process)
    assert (answer.code, answer.out) == (Exit.CANCELLED, "")
    assert answer.err.startswith("a: cancelled: run 'a' was cancelled; ")
    assert answer.err.endswith(" [resumable]\n")
    assert (shop / "sum").read_text() == "6", "the window that was open has been flushed"
    (shop / "go").touch()
    answer = finished(spawn(shop, "resume", "shop:workflow", "a"))
    assert answer == Answer(0, "a: completed in DONE\n", "")
    assert (shop / "sum").read_text() == "15"


def test_a_killed_run_is_seen_and_a_live_one_is_left_alone(shop: Path, cano: InProcess) -> None:
    """Reading works beside the process that writes; what belongs to it is not taken from it."""
    process = waiting(shop, *RUN)
    (run,) = cano("runs", LOG, "--json").json
    assert (run["id"], run["state"], run["windows"]) == ("a", "READ", 1)
    assert len(cano("show", LOG, "a", "--json").json["rows"]) == 2
    for arguments in (RUN, (*RUN, "--if-exists", "discard"), ("resume", "shop:workflow", "a"), ("clear", LOG, "a", "--yes")):
        answer = cano(*arguments)
        assert (answer.code, answer.out) == (Exit.OWNED, ""), arguments
    process.kill()
    assert finished(process).code == -signal.SIGKILL
    assert cano("runs", LOG).out.splitlines()[1].split()[2] == "READ"
    (shop / "go").touch()
    assert cano("resume", "shop:workflow", "a").code == Exit.DONE
    assert (shop / "sum").read_text() == "15"
    assert cano("runs", LOG, "--json").json == []


def test_nothing_needs_the_command_to_be_started_as_a_module(shop: Path) -> None:
    """An installed `cano` has the directory of its script on the path, not the current one."""
    (shop / "go").touch()
    program = "import sys; sys.path.remove(''); from cano.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, *RUN, "--json"]
    answer = subprocess.run(command, cwd=shop, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    assert (answer.returncode, json.loads(answer.stdout)["outcome"], answer.stderr) == (0, "completed", "")


def test_ctrl_c_ends_a_question_at_once(shop: Path, cano: InProcess) -> None:
    write(shop / LOG, ("a", entry(0)))
    ours, theirs = pty.openpty()
    process = spawn(shop, "clear", LOG, "a", stdin=theirs)
    os.close(theirs)
    assert process.stderr is not None
    assert process.stderr.read(12) == "Forget run a"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    os.close(ours)
    assert process.returncode == 130
    assert len(cano("runs", LOG, "--json").json) == 1


def test_a_reader_that_goes_away_is_no_error(shop: Path) -> None:
    write(shop / LOG, *((f"run-{number:0190}", entry(0)) for number in range(1000)))  # more than a pipe holds
    process = spawn(shop, "runs", LOG)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ID")
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(timeout=30) == 0


def test_a_reader_that_was_never_there_is_no_error(shop: Path) -> None:
    write(shop / LOG, ("a", entry(0)))
    reading, writing = os.pipe()
    os.close(reading)
    process = spawn(shop, "runs", LOG, stdout=writing)
    os.close(writing)
    assert (process.communicate(timeout=30)[1], process.returncode) == ("", 0)


def test_an_output_that_is_closed_or_knows_ascii_only_is_no_error(shop: Path) -> None:
    write(shop / LOG, ("\u6771", entry(0)))
    command = f"{sys.executable} -m cano runs {LOG}"
    poor = {**environment(), "PYTHONIOENCODING": "ascii"}
    for text, out in ((command, b"\\u6771"), (f"{command} >&-", b"")):
        answer = subprocess.run(text, shell=True, cwd=shop, env=poor, capture_output=True, timeout=30, check=False)
        assert (answer.returncode, answer.stderr) == (0, b"")
        assert out in answer.stdout


def test_without_the_extra_it_says_what_to_install(shop: Path) -> None:
    (shop / "cyclopts.py").write_text("raise ModuleNotFoundError(\"No module named 'cyclopts'\", name='cyclopts')\n")
    assert finished(spawn(shop, "runs", LOG)) == Answer(2, "", f"{MISSING}\n")


def test_importing_cano_imports_no_command_line(shop: Path) -> None:
    program = "import sys, cano; print([name for name in sys.modules if name.startswith(('cano.cli', 'cyclopts', 'rich'))])"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, cwd=shop, env=environment(), capture_output=True, text=True, check=True).stdout == "[]\n"


def test_reading_never_fails_beside_writers(shop: Path, cano: InProcess) -> None:
    """Rows are appended all the while, by another process; every look at the log is a whole one."""
    program = """if True:
        import asyncio, sys
        from cano import SqliteCheckpointStore
        from tests.cli.commands import LOG, entry

        async def main():
            store, number = SqliteCheckpointStore(LOG, synchronous="NORMAL"), 0
            while True:
                await store.append(f"run-{number % 50}", entry(number // 50))
                number += 1

        asyncio.run(main())
    """
    process = subprocess.Popen([sys.executable, "-c", program], cwd=shop, env=environment())
    try:
        patience = time.monotonic() + 20
        while cano("runs", LOG).code != Exit.DONE:
            assert time.monotonic() < patience
        seen = []
        while len(seen) < 20 or seen[-1] <= seen[0]:
            answer = cano("runs", LOG, "--json")
            assert (answer.code, answer.err) == (Exit.DONE, "")
            seen.append(sum(run["rows"] for run in answer.json))
            assert cano("show", LOG, "run-0").code == Exit.DONE
            assert time.monotonic() < patience
        assert seen == sorted(seen)
    finally:
        process.kill()
        process.wait()


def test_a_log_on_which_only_the_other_runs_are_busy_can_be_cleared(shop: Path, cano: InProcess) -> None:
    process = waiting(shop, *RUN)
    write(shop / LOG, ("b", entry(0)))
    assert cano("clear", LOG, "b", "--yes").code == Exit.DONE
    process.terminate()
    assert finished(process).code == Exit.CANCELLED

    async def left() -> list[str]:
        async with SqliteCheckpointStore(LOG) as store:
            return await store.list_runs()

    assert asyncio.run(left()) == ["a"]
    assert not {name for name in os.listdir(shop) if name.endswith(("-wal", "-shm"))}
