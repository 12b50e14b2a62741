"""What `cano --version` says."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

SOURCE = "unknown: this is a source tree that is not installed"


def version() -> str:
    """The version that is installed, if it is this code that is."""
    try:
        installed = distribution("cano")
    except PackageNotFoundError:
        return SOURCE
    there = Path(str(installed.locate_file("cano/cli/version.py")))
    if there.exists() and not there.samefile(__file__):  # an editable one has no file there
        return f"{SOURCE}; beside it {installed.version} is"
    return installed.version
