"""The ways out: results to stdout, errors to stderr. A reader that has gone away is no error."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO


def prepare() -> None:
    """Let no character be one that an output cannot write."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Write a result."""
    _write(sys.stdout, text)


def say_json(value: Any) -> None:
    """Write a result for programs: one JSON document, in ASCII."""
    _write(sys.stdout, json.dumps(value, indent=2, allow_nan=False))


def complain(text: str) -> None:
    """Write an error."""
    _write(sys.stderr, text)


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # the process was started without one
        return
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except BrokenPipeError:
        _hush(stream)


def _hush(stream: TextIO) -> None:
    """Nobody reads any more. What is still buffered goes nowhere, or Python would complain when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
