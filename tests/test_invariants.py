"""The numbered properties name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "INVARIANTS.md").read_text()


def test_every_invariant_has_a_number_of_its_own_and_a_test() -> None:
    rows = re.findall(r"^\| ([A-Z]\d+) \| .* \| (.*) \|$", TEXT, flags=re.MULTILINE)
    numbers = [number for number, _ in rows]
    assert len(numbers) == len(set(numbers)) >= 40
    assert all("`" in tests for _, tests in rows)


def test_every_test_that_an_invariant_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)
    assert len(named) > 40
    for path, test in named:
        source = (ROOT / path).read_text()
        assert not test or f"def {test}(" in source, f"{path}::{test}"
