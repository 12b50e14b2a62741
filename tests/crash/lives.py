"""A process that is killed when it has said enough."""

from __future__ import annotations

import signal
import subprocess
import sys


def live(program: str, *arguments: str, patience: int) -> bool:
    """Run a Python program, and kill it at so many lines unless it says "done" before. Whether it came to its end."""
    with subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        for lines, line in enumerate(child.stdout, 1):
            if line == "done\n":
                break
            if lines == patience:
                child.kill()
    assert child.returncode in (0, -signal.SIGKILL)
    return child.returncode == 0
