"""The pages of the documentation do what they say."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.snippets import Page, chapters, matches

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "docs" / "models.md"
README = ROOT / "README.md"
PAGES = [README, *(path for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr")]
CHAPTERS = chapters(PAGES)
REWRITE = os.environ.get("CANO_REWRITE_EXAMPLES") == "1"
"""Set to put what was printed into the pages, instead of comparing the two."""
LANGUAGES = {"", "python", "console", "text", "mermaid", "ini", "yaml", "toml", "sql", "dockerfile"}
"""What fences may say; Python has one name, so that no snippet is overlooked."""
SHOWN_ONLY = 12
"""How many snippets may be shown without being run."""


@pytest.mark.timeout(180)  # the tutorial is one session of many programs
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_snippets_of_a_page_run_and_print_what_it_shows(chapter: str, tmp_path: Path) -> None:
    for path in CHAPTERS[chapter]:
        if path == README:
            (tmp_path / "access.log").write_text("a line\n" * 1200)
        page = Page(path)
        page.run(tmp_path)
        if REWRITE:
            path.write_text(page.rewritten(), encoding="utf-8")
            page.text = page.rewritten()
        for snippet in page.snippets:
            if snippet.found is not None and not REWRITE:
                assert matches(snippet.body, snippet.found), f"{path.name} shows\n{snippet.body}\nand it is\n{snippet.found}"


def test_few_snippets_are_shown_only_and_each_says_why() -> None:
    shown_only = [snippet for path in PAGES for snippet in Page(path).snippets if snippet.why_not is not None]
    assert len(shown_only) <= SHOWN_ONLY
    assert all(len((snippet.why_not or "").split()) > 2 for snippet in shown_only)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_output_that_a_page_shows_is_compared(path: Path) -> None:
    snippets = Page(path).snippets
    for place, snippet in enumerate(snippets):
        if snippet.language == "text" and snippet.why_not is None:
            assert place > 0
            assert snippets[place - 1].fragment, f"{path.name}: a text that no fragment prints:\n{snippet.body}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_no_snippet_hides_from_these_tests(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    fences = re.findall(r"^([ >]*)(`{3,}|~{3,})(.*)$", text, flags=re.MULTILINE)
    assert {(indent, ticks) for indent, ticks, _ in fences} <= {("", "```")}
    assert {language for _, _, language in fences} <= LANGUAGES
    assert len(fences) == 2 * len(Page(path).snippets), "each one that opens is closed"


@pytest.mark.parametrize(
    ("shown", "found", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\nc\n", "a\nb\nb\nc\n", True),
        ("a 1 in ... s\n", "a 1 in 0.2 s\n", True),
        ("a (1)\n", "a 1\n", False),
        ("a\n...\nc\n", "a\nb\n", False),
    ],
)
def test_dots_stand_for_anything_and_nothing_else_does(shown: str, found: str, same: bool) -> None:
    assert matches(shown, found) is same


def test_a_page_that_shows_what_is_not_printed_is_found(tmp_path: Path) -> None:
    path = tmp_path / "wrong.md"
    path.write_text("```python\nprint(1)\n```\n\n```text\n2\n```\n\n```console\n$ python -c 'print(3)'\n4\n```\n")
    page = Page(path)
    page.run(tmp_path)
    assert [snippet.found for snippet in page.snippets] == [None, "1\n", "$ python -c 'print(3)'\n3\n"]
    assert not any(matches(snippet.body, snippet.found) for snippet in page.snippets if snippet.found is not None)
    path.write_text("```python\n1 / 0\n```\n")
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        Page(path).run(tmp_path)


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


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


def test_every_invariant_that_a_page_names_has_that_number() -> None:
    numbers = set(
        re.findall(r"^\| ([A-Z]\d+) \|", (ROOT / "docs" / "INVARIANTS.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    concepts = [path for path in PAGES if path.parent.name == "concepts"]
    named = {number for path in concepts for number in re.findall(r"\b[SCALE]\d{1,2}\b", path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    assert named <= numbers


def test_the_models_page_has_a_section_for_every_row_of_its_table() -> None:
    text = MODELS.read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[`(\w+)`\]\(#(\w+)\)", text, flags=re.MULTILINE)
    sections = re.findall(r"^## (\w+)$", text, flags=re.MULTILINE)
    assert [name for name, _ in rows] == sections
    assert [anchor for _, anchor in rows] == [section.lower() for section in sections]
