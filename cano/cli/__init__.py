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

import sys
from collections.abc import Sequence

MISSING = "cano needs its command-line extra: pip install 'cano[cli]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command, by default that of `sys.argv`, and return its exit code. Raises nothing of its own."""
    try:
        from cano.cli.app import call  # noqa: PLC0415 - the extra is needed here and not before
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cyclopts":
            raise
        sys.stderr.write(f"{MISSING}\n")
        return 2
    return call(sys.argv[1:] if arguments is None else arguments)
