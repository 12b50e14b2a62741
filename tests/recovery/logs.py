"""What the tests of recovery share: rows, waiting by name, and other processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cano import CheckpointRow, RowKind

ROOT = Path(__file__).parents[2]
PRELUDE = """
import asyncio, os, signal, sqlite3, sys
from cano import *
from tests.recovery.logs import cursor, entry

def say(*words):
    print(*words, flush=True)

def told():
    return sys.stdin.readline().strip()
"""


def entry(sequence: int, state: str = "STATE", **fields: Any) -> CheckpointRow:
    """A STATE_ENTRY row."""
    return CheckpointRow(sequence, RowKind.STATE_ENTRY, state, "task", **fields)


def cursor(sequence: int, blob: bytes | None = None, **fields: Any) -> CheckpointRow:
    """A STEP_CURSOR row; without a blob it holds its own sequence."""
    blob = b"%d" % sequence if blob is None else blob
    return CheckpointRow(sequence, RowKind.STEP_CURSOR, "STATE", "task", blob=blob, **fields)


async def turns(count: int) -> None:
    """Let the event loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def eventually(what: str, holds: Callable[[], Any], within: float = 10.0) -> None:
    """Poll until something holds."""
    patience = time.monotonic() + within
    while not holds():
        assert time.monotonic() < patience, f"not within {within} s: {what}"
        await asyncio.sleep(0.002)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run something in several threads that start together and take turns often, and raise what they raise."""
    errors: list[BaseException] = []
    together = threading.Barrier(count)

    def run(number: int) -> None:
        try:
            together.wait()
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.00002)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if errors:
        raise errors[0]


class Child:
    """A process that runs a script and is spoken to in lines."""

    def __init__(self, script: str, *arguments: object) -> None:
        command = [sys.executable, "-W", "error", "-c", PRELUDE + script, *map(str, arguments)]
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in `close`
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout

    def hear(self) -> str:
        """Wait for a line, without its end; '' if the process has died."""
        return self._out.readline().rstrip("\n")

    def tell(self, line: str = "") -> None:
        self._in.write(line + "\n")
        self._in.flush()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def end(self) -> tuple[int, str, str]:
        """Wait for it to end. Its exit code, what else it said, and its errors."""
        self._in.close()
        out = self._out.read()
        code = self._process.wait()
        self._errors.seek(0)
        return code, out, self._errors.read()

    def end_well(self) -> str:
        """Wait for it to end without an error; what else it said."""
        code, out, errors = self.end()
        assert (code, errors) == (0, "")
        return out

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()
        with suppress(BrokenPipeError):
            self._in.close()
        self._out.close()
        self._errors.close()


@contextmanager
def children(count: int, script: str, *arguments: object) -> Iterator[list[Child]]:
    """Start processes, each of which gets its number as the last argument; none outlives the block."""
    started = [Child(script, *arguments, number) for number in range(count)]
    try:
        yield started
    finally:
        for child in started:
            child.close()


@contextmanager
def child(script: str, *arguments: object) -> Iterator[Child]:
    """Start a process; it does not outlive the block."""
    with children(1, script, *arguments) as started:
        yield started[0]
