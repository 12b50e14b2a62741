"""With `--json` stdout holds one document, whatever the user's code prints, and whoever prints it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cano.cli import main
from tests.cli.commands import InProcess, environment, finished, spawn

LOUD = """
import atexit, os, subprocess, sys, threading
from pathlib import Path
from sys import stdout
from cano import *

PLACES = []


def loud(place):
    PLACES.append(place)
    print(f"print {place}")
    if stdout is not None:
        stdout.write(f"early {place}\\n")
    if sys.stdout is not None:
        sys.stdout.write(f"write {place}\\n")
    if sys.__stdout__ is not None:
        sys.__stdout__.write(f"dunder {place}\\n")
    for number in (1,) if sys.__stderr__ is not None else (1, 2):
        try:
            os.write(number, f"descriptor {place}\\n".encode())
        except OSError:
            pass
    subprocess.run(["echo", f"child {place}"])


loud("import")
if Path("at exit").exists():
    atexit.register(loud, "exit")


async def task(ctx):
    loud("hook")
    thread = threading.Thread(target=loud, args=("thread",))
    thread.start()
    thread.join()
    if Path("fail").exists():
        raise DoNotRetry("no")
    return "end"


def factory():
    loud("factory")
    return Workflow(name="loud").register("task", task).add_exit_state("end")
"""
HOW = ("print", "early", "write", "dunder", "descriptor", "child")


@pytest.fixture
def loud(shop: Path) -> Iterator[Path]:
    (shop / "loud.py").write_text(LOUD)
    yield shop
    sys.modules.pop("loud", None)


RUN = ("run", "loud:factory", "task")
PLACES = {RUN: ("import", "factory", "hook", "thread"), ("graph", "loud:factory"): ("import", "factory")}


@pytest.mark.parametrize("arguments", PLACES)
def test_stdout_of_a_process_is_one_document_whatever_is_printed(loud: Path, arguments: tuple[str, ...]) -> None:
    (loud / "at exit").touch()
    answer = finished(spawn(loud, *arguments, "--json"))
    assert answer.code == 0
    assert answer.json["workflow"] == "loud"
    told = answer.err.splitlines()
    for place in (*PLACES[arguments], "exit"):
        for how in HOW:
            assert f"{how} {place}" in told


def test_a_run_that_fails_has_one_document_too(loud: Path) -> None:
    (loud / "fail").touch()
    answer = finished(spawn(loud, *RUN, "--json"))
    assert (answer.code, answer.json["outcome"]) == (1, "failed")
    assert "child hook" in answer.err


def test_without_json_what_is_printed_stays_on_stdout(loud: Path) -> None:
    answer = finished(spawn(loud, *RUN))
    assert (answer.code, answer.err) == (0, "")
    told = answer.out.splitlines()
    assert {f"{how} {place}" for how in HOW for place in PLACES[RUN]} < set(told)
    assert "loud: completed in end" in told


def test_within_a_program_that_looks_at_sys_stdout_it_is_one_document(loud: Path, cano: InProcess) -> None:
    answer = cano(*RUN, "--json")
    assert (answer.code, answer.json["outcome"]) == (0, "completed")
    assert "print hook" in answer.err


def test_within_a_program_that_looks_at_the_descriptor_it_is_one_document_and_stdout_is_put_back(
    loud: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before, descriptors = sys.stdout, len(os.listdir("/dev/fd"))
    for _ in range(3):
        capfd.readouterr()
        assert main((*RUN, "--json")) == 0
        out, err = capfd.readouterr()
        assert json.loads(out)["outcome"] == "completed"
        assert "child hook" in err
    assert sys.stdout is before
    assert len(os.listdir("/dev/fd")) == descriptors
    print("mine", flush=True)
    subprocess.run(["echo", "my child's"], check=True)
    assert capfd.readouterr().out.splitlines() == ["mine", "my child's"]
    assert main(RUN) == 0
    assert "child hook" in capfd.readouterr().out


@pytest.mark.parametrize(("closed", "told"), [(">&-", False), ("2>&-", True), (">&- 2>&-", False)])
def test_an_output_that_is_closed_is_no_error(loud: Path, closed: str, told: bool) -> None:
    command = f"{sys.executable} -m cano {' '.join(RUN)} --json {closed}"
    answer = subprocess.run(command, shell=True, cwd=loud, env=environment(), capture_output=True, timeout=30, check=False)
    assert answer.returncode == 0
    if told:
        assert json.loads(answer.stdout)["outcome"] == "completed"
    else:
        assert answer.stdout == b""


def test_a_reader_that_has_gone_is_no_error(loud: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = spawn(loud, *RUN, "--json", stdout=writing)
    os.close(writing)
    answer = process.communicate(timeout=30)[1]
    assert process.returncode == 0
    assert "Traceback" not in answer
    assert "Exception" not in answer
