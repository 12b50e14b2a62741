"""The exploration finds what it is there to find: each bug that is planted, within as many seeds as the real code passes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.bugs import BUGS, ROOT, Bug

SEEDS = 300


def explored(folder: Path, part: str, seeds: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.explore", part, "0", str(seeds)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


@pytest.mark.parametrize("part", sorted({bug.part for bug in BUGS}))
def test_the_real_code_passes(part: str) -> None:
    finished = explored(ROOT, part, SEEDS)
    assert finished.returncode == 0, finished.stderr


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_planted_bug_is_found_and_its_seed_named(bug: Bug, tmp_path: Path) -> None:
    finished = explored(bug.plant(tmp_path), bug.part, SEEDS)
    assert finished.returncode == 1
    assert bug.sign in finished.stderr
    found = re.search(r"^simulated with seed=(\d+)$", finished.stderr, re.MULTILINE)
    assert found is not None
    assert explored(tmp_path, bug.part, int(found[1])).returncode == 0, "the seeds before it pass"
