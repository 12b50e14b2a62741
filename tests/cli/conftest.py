"""A directory with a module of workflows in it, and `cano` in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import SHOP, InProcess, started


@pytest.fixture
def cano(capsys: pytest.CaptureFixture[str]) -> InProcess:
    return InProcess(capsys)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current directory, which holds `shop.py`."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for process in started:  # what is left of a test that failed
        process.kill()
        process.wait()
    started.clear()
    sys.modules.pop("shop", None)
