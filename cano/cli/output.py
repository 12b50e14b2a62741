"""The ways out: results to stdout, errors to stderr. A reader that has gone away is no error."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

_STDOUT, _STDERR = 1, 2

_kept: list[TextIO] = []
"""Where documents go while stdout is kept for them."""


def prepare() -> None:
    """Let no character be one that an output cannot write."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


@contextmanager
def kept_for_documents(*, for_good: bool) -> Iterator[None]:
    """Let stdout hold what `say_json` writes and nothing else: what the user's code, its threads and its child processes
    write there goes to stderr, while the block lasts or, with `for_good`, until the process ends.
    """
    stdout, copy = sys.stdout, _diverted()
    if stdout is None:  # the process was started without one
        yield
        return
    _kept.append(_opened(copy) if copy is not None and _is_of(stdout, _STDOUT) else stdout)
    sys.stdout = sys.__stdout__ if sys.stderr is None else sys.stderr
    try:
        yield
    finally:
        if not for_good:
            sys.stdout = stdout
            _kept.pop()
            if copy is not None:
                _flush()
                os.dup2(copy, _STDOUT)
                os.close(copy)


def _diverted() -> int | None:
    """Let file descriptor 1 lead to where 2 leads. Returns where it led to, on a descriptor that no child inherits; or None
    if the process was started without it, for it may be any file by now.
    """
    if sys.__stdout__ is None:
        return None
    _flush()
    copy = fcntl.fcntl(_STDOUT, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    if sys.__stderr__ is None:  # the process was started without one, and 2 may be any file by now
        _lead_nowhere(_STDOUT)
    else:
        os.dup2(_STDERR, _STDOUT)
    return copy


def _opened(descriptor: int) -> TextIO:
    return open(descriptor, "w", encoding="ascii", closefd=False)


def _is_of(stream: TextIO, descriptor: int) -> bool:
    try:
        return stream.fileno() == descriptor
    except (OSError, ValueError):  # one in memory
        return False


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None:
            with suppress(OSError, ValueError):
                stream.flush()


def say(text: str) -> None:
    """Write a result."""
    _write(sys.stdout, text)


def say_json(value: Any) -> None:
    """Write a result for programs: one JSON document, in ASCII."""
    _write(_kept[-1] if _kept else sys.stdout, json.dumps(value, indent=2, allow_nan=False))


def complain(text: str) -> None:
    """Write an error."""
    _write(sys.stderr, text)


def _write(stream: TextIO | None, text: str) -> None:
    if stream is None:  # the process was started without one
        return
    try:
        stream.write(f"{text}\n")
        stream.flush()
    except BrokenPipeError:  # what is still buffered goes nowhere, or Python would complain when it exits
        _lead_nowhere(stream.fileno())


def _lead_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
