"""`python -m benchmarks` (`make bench`): the engine beside what somebody would write by hand. Prints ratios, writes JSON.

What is compared: both sides call the same hooks of the same task object on the same items, fill the same windows and
keep the cursor. The hooks do next to nothing, which is the hardest case for the engine: with hooks that work, every
ratio comes nearer to 1. The loops by hand (`benchmarks/byhand.py`) do none of what the engine is for: they cannot be
cancelled, timed out, resumed or observed, they starve other tasks, and they check nothing. The durable ones block the
event loop while they commit; the engine commits in a thread, which costs a round trip for each row and leaves the loop
free (`durable-thread` shows how much of the difference that is).

A figure is the median of the ratios of several pairs of samples taken in turns; `low` and `high` are the extremes. What
only computes is measured in processor time of its thread, the rest by the clock on the wall, so a busy machine or disk
shows there: look at the load average and at how far the extremes are apart.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from benchmarks import durable, footprint, loops, machine, models, observers, report, runs
from benchmarks.measure import Benchmark, Effort, Figure

RESULTS = Path(__file__).with_name("results.json")
BENCHMARKS: dict[str, Benchmark] = {
    **loops.BENCHMARKS,
    **durable.BENCHMARKS,
    **machine.BENCHMARKS,
    **models.BENCHMARKS,
    **runs.BENCHMARKS,
    **observers.BENCHMARKS,
    **footprint.BENCHMARKS,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what was asked for. A missed target is reported and is no failure: a busy machine may miss one."""
    options = _parser().parse_args(arguments)
    effort = Effort(quick=options.quick)
    began = perf_counter()
    print(report.header(), flush=True)
    figures = asyncio.run(_measure(options.only or list(BENCHMARKS), effort))
    print(report.FOOT)
    report.write(options.json, figures, options.quick)
    missed = [name for name, figure in figures.items() if figure.reached is False]
    print(f"{perf_counter() - began:.0f} s, load average {os.getloadavg()[0]:.1f}, written to {options.json}")
    print(f"missed: {', '.join(missed) or 'none'}")
    return 0


async def _measure(names: Sequence[str], effort: Effort) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}
    for name in names:
        figures[name] = await BENCHMARKS[name](effort)
        print(report.line(figures[name]), flush=True)
    return figures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the engine beside loops written by hand.")
    parser.add_argument("--quick", action="store_true", help="less of everything: under half a minute, and less exact")
    parser.add_argument("--only", action="append", choices=BENCHMARKS, metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="PATH", help="where the JSON goes (%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
