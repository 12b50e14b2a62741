"""`python -m cano` is the command `cano`."""

from __future__ import annotations

import sys

from cano.cli import main

if __name__ == "__main__":
    sys.exit(main())
