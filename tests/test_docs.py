"""The pages of the documentation do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "docs" / "models.md"
REWRITE = os.environ.get("CANO_REWRITE_EXAMPLES") == "1"
"""Set to put the diagram into the page, instead of comparing the two."""


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def run(program: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=50,
        check=False,
    )


def test_the_snippets_of_the_models_page_run_and_its_diagram_is_what_they_print(tmp_path: Path) -> None:
    text = MODELS.read_text(encoding="utf-8")
    program = tmp_path / "models.py"
    program.write_text("\n\n".join(blocks(text, "python")), encoding="utf-8")
    finished = run(program)
    assert (finished.returncode, finished.stderr) == (0, "")
    if REWRITE:
        before, _, rest = text.partition("```mermaid\n")
        after = rest[rest.index("```") :]
        text = f"{before}```mermaid\n{finished.stdout}{after}"
        MODELS.write_text(text, encoding="utf-8")
    assert blocks(text, "mermaid") == [finished.stdout]


def test_the_diagram_of_the_models_page_shows_a_router_a_split_a_step_that_can_be_undone_and_a_stream() -> None:
    (diagram,) = blocks(MODELS.read_text(encoding="utf-8"), "mermaid")
    for text in ("CHOOSE --> CHECK", "CHOOSE --> NOTHING", "All: in_stock | credit", "Pay (undoable)", "READ --> CHOOSE"):
        assert text in diagram


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], ids=lambda page: page.stem)
def test_every_example_that_a_page_names_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:examples/)?(\w+\.py)`", text)) if "`examples/" in text else set()
    there = {path.name for path in ROOT.rglob("*.py")}
    assert named <= there


def test_the_models_page_has_a_section_for_every_row_of_its_table() -> None:
    text = MODELS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\)", text, flags=re.MULTILINE)
    sections = re.findall(r"^## (\w+)$", text, flags=re.MULTILINE)
    assert [name for name, _ in rows] == sections
    assert [anchor for _, anchor in rows] == [section.lower() for section in sections]
