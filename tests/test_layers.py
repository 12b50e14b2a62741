"""The house plan holds: who may import whom, no cycles, nothing too large."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cano

ROOT = Path(cano.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
ROOTS = {"errors", "clock", "cancel", "brake", "resources", "store", "context", "observer"}
MAY_IMPORT = {
    "task": ROOTS | {"task"},
    "recovery": ROOTS | {"recovery"},
    "workflow": ROOTS | {"task", "recovery", "workflow"},
    "testing": ROOTS | {"task", "recovery", "workflow", "testing", "cano"},
    "resilience": ROOTS | {"resilience"},
    "scheduler": ROOTS | {"task", "recovery", "workflow", "scheduler"},
    "observe": ROOTS | {"resilience", "scheduler", "observe"},
    "cli": ROOTS | {"recovery", "workflow", "observe", "cli"},
    "__main__": {"cli"},
    "errors": set(),
    "clock": {"errors"},
    "cancel": {"errors"},
    "brake": {"errors"},
    "store": {"errors"},
    "resources": {"errors", "cancel"},
    "observer": {"errors"},
    "context": {"errors", "cancel", "resources"},
}


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return "cano" if parts == ("__init__",) else parts[0]


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] == "cano"}


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_every_module_imports_only_what_its_room_may(path: Path) -> None:
    room = room_of(path)
    if room == "cano":
        return
    for name in imports_of(path):
        parts = name.split(".")
        imported = parts[1] if len(parts) > 1 else "cano"
        assert imported in MAY_IMPORT[room], f"{room} may not import {name}"


def test_no_module_imports_itself_through_others() -> None:
    graph = {module_of(path): imports_of(path) for path in FILES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail, module])
        if module in done:
            return
        for other in graph.get(module, ()):
            if other != "cano":
                visit(other, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_no_file_has_over_400_lines_and_no_function_over_60(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1] if ast.get_docstring(node) is not None and len(node.body) > 1 else node
            assert (node.end_lineno or 0) - first.lineno <= 60, f"{path}:{node.lineno} {node.name}"


def test_the_loop_fits_on_one_screen() -> None:
    assert len((ROOT / "task" / "loop.py").read_text().splitlines()) < 150


def test_only_the_journal_appends_and_only_the_codec_raises_cursor_errors() -> None:
    for path in FILES:
        name = module_of(path)
        raised = {
            ast.unparse(node.exc) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Raise) and node.exc
        }
        assert not any(text.startswith("CursorError") for text in raised) or name == "cano.recovery.codec", path
        if "._store.append(" in path.read_text():
            assert name == "cano.recovery.journal"


def test_nothing_is_unpickled_or_evaluated() -> None:
    """BR-76."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", "")}
                assert not names & {"pickle", "marshal", "shelve", "importlib"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), path
