"""SIGTERM and SIGINT, sent to a real process: one drains, two abort, three kill."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import asyncio, sys
from cano import CancellationToken, SqliteCheckpointStore, Window, WorkflowCancelledError, cancel_on_signals
from tests.streams import Probe, machine, then_silence

path, stuck = sys.argv[1], sys.argv[2]

async def flush(outputs):
    print("flush", outputs, flush=True)
    while stuck != "no":
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            print("aborted", flush=True)
            if stuck == "once":
                raise

async def main(token):
    reached = asyncio.Event()
    probe = Probe(then_silence(3, reached), window=Window(seconds=3600), flush=flush)
    running = asyncio.create_task(machine(probe, SqliteCheckpointStore(path)).orchestrate("work", workflow_id="r", token=token))
    await reached.wait()
    print("ready", flush=True)
    try:
        await running
    except WorkflowCancelledError as error:
        print("cancelled", "mid-drain" in str(error), probe.closed != [], flush=True)

with cancel_on_signals(CancellationToken()) as token:
    asyncio.run(main(token))
"""


def start(path: Path, stuck: str) -> subprocess.Popen[str]:
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), stuck], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_drains_a_waiting_stream_at_once(tmp_path: Path, number: signal.Signals) -> None:
    child = start(tmp_path / "runs.db", "no")
    child.send_signal(number)
    output, _ = child.communicate(timeout=20)
    assert output == "flush [1, 2, 3]\ncancelled False True\n"
    assert child.returncode == 0


def test_a_second_signal_aborts_the_drain(tmp_path: Path) -> None:
    child = start(tmp_path / "runs.db", "once")
    assert child.stdout is not None
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "flush [1, 2, 3]\n"
    child.send_signal(signal.SIGTERM)
    output, _ = child.communicate(timeout=20)
    assert output == "aborted\ncancelled True False\n"
    assert child.returncode == 0


def test_a_third_signal_kills(tmp_path: Path) -> None:
    child = start(tmp_path / "runs.db", "always")
    assert child.stdout is not None
    child.send_signal(signal.SIGTERM)
    assert child.stdout.readline() == "flush [1, 2, 3]\n"
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "aborted\n"
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=20)
    assert child.returncode == -signal.SIGTERM
