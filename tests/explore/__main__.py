"""`python -m tests.explore streams 0 500`: explore one part over a range of seeds; the first that fails ends it."""

from __future__ import annotations

import importlib
import sys


def main(part: str, first: int, last: int) -> None:
    importlib.import_module(f"tests.explore.{part}").explore(range(first, last))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
