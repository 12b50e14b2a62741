"""`cano --version` says the version of the code that runs, or that it does not know."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import cano.cli.version
from cano.cli.version import SOURCE, version
from tests.cli.commands import InProcess


def installed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a version 7.8.9 of cano be installed, without its code."""
    (directory / "cano-7.8.9.dist-info").mkdir()
    (directory / "cano-7.8.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: cano\nVersion: 7.8.9\n")
    monkeypatch.setattr(sys, "path", [str(directory)])


def test_it_is_the_version_that_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch)
    assert version() == "7.8.9"


def test_a_source_tree_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert version() == SOURCE


def test_the_command_says_it(cano: InProcess) -> None:
    answer = cano("--version")
    assert (answer.code, answer.out, answer.err) == (0, f"{version()}\n", "")


def test_a_source_tree_does_not_borrow_that_of_another_cano(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch)
    other = tmp_path / "cano" / "cli" / "version.py"
    other.parent.mkdir(parents=True)
    other.touch()
    assert version() == f"{SOURCE}; beside it 7.8.9 is"
    other.unlink()
    other.hardlink_to(cano.cli.version.__file__)
    assert version() == "7.8.9"
