"""The figures as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.measure import SCALES, Figure, Spread

FOOT = "* absolute figures: of this machine at this moment, of no meaning elsewhere. A figure without a target only informs."

_ROW = "{:<46}  {:>9}  {:<15}  {:>7}  {:<6}  {:>10}  {:>10}  {}"


def header() -> str:
    """The head of the table."""
    head = _ROW.format("", "figure", "  low … high", "target", "", "engine*", "beside*", "* per").rstrip()
    return f"{head}\n{'-' * len(head)}"


def line(figure: Figure) -> str:
    """One row of the table."""
    value = figure.value
    bounds = f"{_short(value.low)} … {_short(value.high)}"
    marks = {None: "", True: "ok", False: "MISSED"}
    return _ROW.format(
        figure.title,
        f"{_short(value.median)} {figure.unit}",
        f"({bounds})",
        "" if figure.target is None else f"{'>=' if figure.target.at_least else '<='} {figure.target.limit:g}",
        marks[figure.reached],
        _absolute(figure, figure.engine),
        _absolute(figure, figure.other),
        figure.per,
    ).rstrip()


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"


def _absolute(figure: Figure, taken: Spread | None) -> str:
    if taken is None:
        return ""
    return f"{_short(taken.median * SCALES[figure.scale])} {figure.scale}"


def document(figures: Mapping[str, Figure], quick: bool) -> dict[str, Any]:
    """Everything, with where and when it was measured; times are seconds."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": sys.version.split()[0],
        "implementation": platform.python_implementation(),
        "sqlite": sqlite3.sqlite_version,
        "platform": platform.platform(),
        "load": os.getloadavg(),
        "quick": quick,
        "figures": {name: {**asdict(figure), "reached": figure.reached} for name, figure in figures.items()},
    }


def write(path: Path, figures: Mapping[str, Figure], quick: bool) -> None:
    """Write the JSON."""
    path.write_text(json.dumps(document(figures, quick), indent=2) + "\n")
