"""The reference has every public name, and reads docstrings as they are written here."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest

import cano
import cano.testing
from tests.snippets import ROOT


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference_pages", ROOT / "docs" / "reference_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_public_name_is_on_one_page_of_the_reference(pages: ModuleType, tmp_path: Path) -> None:
    pages.write(tmp_path)
    text = "".join(path.read_text(encoding="utf-8") for path in tmp_path.glob("*.rst"))
    named = Counter(re.findall(r"^\.\. auto\w+:: (cano[\w.]+)$", text, flags=re.MULTILINE))
    public = {f"cano.{name}" for name in cano.__all__} | {f"cano.testing.{name}" for name in cano.testing.__all__}
    assert public - set(named) == set()
    assert {name: count for name, count in named.items() if count > 1} == {}


def test_every_page_is_in_the_list_of_pages_and_one_that_is_no_more_is_removed(pages: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "of-old.rst").write_text("Of old\n")
    pages.write(tmp_path)
    listed = re.findall(r"^   ([\w-]+)$", (tmp_path / "index.rst").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in tmp_path.glob("*.rst") if path.stem != "index")


def test_a_page_that_is_as_it_was_is_not_written_again(pages: ModuleType, tmp_path: Path) -> None:
    pages.write(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.rst")}
    pages.write(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.rst")} == before


@pytest.mark.parametrize(
    ("docstring", "text"),
    [
        (
            "It is `ctx.data`, two\n`Window`s and `a\nb`.",
            "It is ``ctx.data``, two\n:py:obj:`Window <cano.Window>`\\ s and ``a\nb``.\n",
        ),
        ("Use `Window(count=1)`.", "Use :py:obj:`Window(count=1) <cano.Window>`.\n"),
        ("name:   what\n        it is\na, b:   both", "``name``\n    what\n    it is\n``a``, ``b``\n    both\n"),
        (
            "Raises:\n    OSError: no\n        disk.\n    ValueError: no.",
            "**Raises**\n    ``OSError``\n        no\n        disk.\n    ``ValueError``\n        no.\n",
        ),
        ("Text.\nIdempotency: again.\nRaises: anything.", "Text.\n\n**Idempotency**\n    again.\n**Raises**\n    anything.\n"),
        ("See:\n\n    a = `b`\n      c", "See:\n\n::\n\n    a = `b`\n      c\n"),
        ("See:\n\n    a\n\n    class B:\n\n        c\n\nThen.", "See:\n\n::\n\n    a\n\n    class B:\n\n        c\n\nThen.\n"),
        (" 9. One,\n    two.\n10. Three,\n    four.", "9. One,\n   two.\n10. Three,\n    four.\n"),
        ("Of each, in this order: one, two.", "Of each, in this order: one, two.\n"),
    ],
)
def test_a_docstring_of_the_house_becomes_what_sphinx_reads(pages: ModuleType, docstring: str, text: str) -> None:
    assert "\n".join(pages.restructured(docstring.splitlines())) == text


def names() -> list[tuple[str, object]]:
    return [(name, getattr(module, name)) for module in (cano, cano.testing) for name in module.__all__]


@pytest.mark.parametrize(("name", "thing"), names(), ids=lambda given: given if isinstance(given, str) else "")
def test_no_signature_shows_what_only_the_source_knows(name: str, thing: object) -> None:
    public = (
        [each for title, each in vars(thing).items() if not title.startswith("_") or title == "__init__"]
        if inspect.isclass(thing)
        else []
    )
    for function in filter(inspect.isfunction, [thing, *public]):
        with suppress(OSError):  # written by dataclass
            header = inspect.getsource(function).partition(":\n")[0]
            assert not re.findall(r"= (_\w+)", header), f"{name} has such a default"


@pytest.mark.parametrize(("name", "thing"), names(), ids=lambda given: given if isinstance(given, str) else "")
def test_no_docstring_sends_its_reader_to_what_is_documented_nowhere(pages: ModuleType, name: str, thing: object) -> None:
    known = {
        *cano.__all__,
        *cano.testing.__all__,
        *(each for there in pages.OTHERS.values() for them in there.values() for each in them),
    }
    known |= set(pages.events())
    members = [thing, *vars(thing).values()] if inspect.isclass(thing) else [thing]
    text = " ".join(str(each.__doc__) for each in members if getattr(each, "__doc__", None))
    for seen in re.findall(r"[Ss]ee `([A-Z]\w+)", text):
        assert seen in known, f"{name} says: see `{seen}`"
