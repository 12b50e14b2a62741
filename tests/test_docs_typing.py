"""The mistakes that the page on types shows are found by both checkers, and nothing else is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.snippets import ROOT, Page

PAGE = ROOT / "docs" / "typing.md"


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("typing")
    for snippet in Page(PAGE).snippets:
        if snippet.file is not None:
            (directory / snippet.file).write_text(snippet.body, encoding="utf-8")
    return directory


def marked(path: Path) -> list[tuple[str, int]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(path.name, number) for number, line in enumerate(lines, start=1) if "# wrong" in line]


def test_mypy_finds_every_mistake_of_the_page_and_no_other(programs: Path) -> None:
    pytest.importorskip("mypy", reason="the type checkers are no dependency of the tests alone")
    (programs / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {ROOT}\n")
    finished = subprocess.run(
        [sys.executable, "-m", "mypy", "right.py", "mistakes.py", "unseen.py"],
        cwd=programs,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    found = re.findall(r"^([\w.]+):(\d+): error", finished.stdout, flags=re.MULTILINE)
    assert finished.stderr == ""
    assert sorted({(name, int(line)) for name, line in found}) == marked(programs / "mistakes.py"), finished.stdout


def pyright(*arguments: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyright", *arguments], cwd=directory, capture_output=True, text=True, timeout=55, check=False
    )


def test_pyright_finds_every_mistake_of_the_page_and_no_other(programs: Path) -> None:
    pytest.importorskip("pyright", reason="the type checkers are no dependency of the tests alone")
    (programs / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "standard", "extraPaths": [str(ROOT)]}))
    if pyright("--version", directory=programs).returncode:
        pytest.skip("pyright fetches itself on first use, and cannot do so here")
    arguments = ("--outputjson", "--pythonpath", sys.executable, "right.py", "mistakes.py", "unseen.py")
    finished = pyright(*arguments, directory=programs)
    found = json.loads(finished.stdout[finished.stdout.index("{") :])["generalDiagnostics"]
    places = {(Path(entry["file"]).name, entry["range"]["start"]["line"] + 1) for entry in found if entry["severity"] == "error"}
    assert sorted(places) == marked(programs / "mistakes.py"), finished.stdout
