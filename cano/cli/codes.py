"""What an exit code says. A supervisor decides by them, so a number never changes its meaning.

    0  done: the run completed, or the command did what it was asked
    1  failed: the run, or code of the user's; the message says whether the run can be resumed
    2  usage: the arguments or the workflow's definition are wrong; nothing was run
    3  cancelled: by a signal, and paused if there is a store; or a question was not answered with yes
    4  timed out: the run outlived its total timeout; paused if there is a store
    5  not found: no such log, run, module or attribute
    6  owned: somebody alive is working on that run, or has written to its log meanwhile
    7  refused: the log is none, is damaged, is of a newer cano, may not be read, or does not fit the workflow; it was left
       as it is
    8  exists: the id has an unfinished log, and `--if-exists` does not say what to do with it

A process that was killed has its signal's code instead, which a shell shows as 128 + number: 137 for SIGKILL, and 143
for SIGTERM, the third one or one that comes before the run began. Ctrl-C outside a run is 130. Once a run has ended no
signal replaces its code. A `SystemExit` of the user's code keeps its own code, a `KeyboardInterrupt` of it is 130, and
whatever else it raises is 1.
"""

from __future__ import annotations

import signal
from enum import IntEnum

from cano.errors import (
    CanoError,
    CheckpointConflictError,
    CheckpointStoreError,
    ConfigurationError,
    CursorError,
    RunFencedError,
    RunOwnedError,
    TaskExecutionError,
    WorkflowCancelledError,
    WorkflowError,
    WorkflowTimeoutError,
    WorkflowVersionMismatchError,
)


class Exit(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    CANCELLED = 3
    TIMED_OUT = 4
    NOT_FOUND = 5
    OWNED = 6
    REFUSED = 7
    EXISTS = 8


MEANINGS = {
    Exit.DONE: "done",
    Exit.FAILED: "the run failed, or code of yours; the message says whether it can be resumed",
    Exit.USAGE: "wrong arguments, or a wrong workflow definition",
    Exit.CANCELLED: "cancelled by a signal; paused, if there is a store",
    Exit.TIMED_OUT: "outlived the total timeout; paused, if there is a store",
    Exit.NOT_FOUND: "no such log, run, module or attribute",
    Exit.OWNED: "somebody alive is working on that run",
    Exit.REFUSED: "the log is none, is damaged or newer, may not be read, or does not fit the workflow",
    Exit.EXISTS: "the id has an unfinished log; see --if-exists",
}


class CommandError(Exception):
    """A command cannot do what it was asked; `code` is its exit code."""

    def __init__(self, code: Exit, message: str) -> None:
        super().__init__(message)
        self.code = code


INTERRUPTED = 128 + signal.SIGINT
"""What a shell shows for a process that Ctrl-C has ended."""

_ALWAYS: tuple[tuple[type[CanoError], Exit], ...] = (
    (WorkflowCancelledError, Exit.CANCELLED),
    (WorkflowTimeoutError, Exit.TIMED_OUT),
    (RunOwnedError, Exit.OWNED),
    (RunFencedError, Exit.OWNED),
    (CheckpointConflictError, Exit.EXISTS),
    (WorkflowVersionMismatchError, Exit.REFUSED),
)
_BEFORE_THE_FIRST_STATE: tuple[tuple[type[CanoError], Exit], ...] = (
    (ConfigurationError, Exit.USAGE),
    (CheckpointStoreError, Exit.REFUSED),
    (WorkflowError, Exit.REFUSED),
    (CursorError, Exit.REFUSED),
)


def code_of(error: BaseException) -> int:
    """The exit code for an error. One that was raised before the run entered a state (`error.state` is None) tells of the
    log or of the definition, and a later one of the run.
    """
    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, SystemExit):
        return _own(error)
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    for kind, code in _ALWAYS:
        if isinstance(error, kind):
            return code
    if isinstance(error, CanoError) and error.state is None:
        for kind, code in _BEFORE_THE_FIRST_STATE:
            if isinstance(error, kind):
                return code
        if type(error) is TaskExecutionError and error.__cause__ is None:  # `ctx.data` of the log cannot be read
            return Exit.REFUSED
    return Exit.FAILED


def _own(error: SystemExit) -> int:
    """What Python makes of it."""
    if error.code is None:
        return Exit.DONE
    return error.code & 0xFF if isinstance(error.code, int) else Exit.FAILED
