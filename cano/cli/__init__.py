"""The command `cano`: looks into a log, and runs and resumes workflows. It needs the extra `cano[cli]`.

    cano runs LOG                       the runs of a log
    cano show LOG ID                    the rows of one run
    cano clear LOG ID                   forget one run
    cano run MODULE:WORKFLOW STATE      run a workflow to its end
    cano resume MODULE:WORKFLOW ID      go on with an unfinished run
    cano graph MODULE:WORKFLOW          draw a workflow

The exit codes are in `cano.cli.codes`, in `cano --help` and in `docs/operations.md`.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Sequence

MISSING = "cano needs its command-line extra: pip install 'cano[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Raises nothing of its own.

    Without `arguments` it is that of `sys.argv`, and the process has to end with it: SIGTERM and SIGINT cannot replace its
    exit code from the moment that it is known, and with `--json` nothing follows on stdout.
    """
    try:
        from cano.cli.app import call  # noqa: PLC0415 - the extra is needed here and not before
        from cano.cli.ending import deafen  # noqa: PLC0415 - only now, so that a missing extra is told of first
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cyclopts":
            raise
        sys.stderr.write(f"{MISSING}\n")
        return 2
    if arguments is not None:
        return call(arguments)
    atexit.register(deafen)
    return call(sys.argv[1:], for_good=True)
