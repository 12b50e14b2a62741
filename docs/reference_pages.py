"""The pages of the reference: one for each group of names in the front door, made from the docstrings.

A name that is added to `cano/__init__.py` is in the reference from then on.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import cano
import cano.observer
import cano.testing

HEADINGS = ("Raises", "Cancellation", "Idempotency")
ENTRY = re.compile(r"((?:Raises|Cancellation|Idempotency)(?=:$)|[A-Za-z_]\w*(?:, [A-Za-z_]\w*)*(?=: +\S)):\s*(.*)")
ITEM = re.compile(r" ?(\d+\. )")

INTERNAL = (
    *(
        "context.RunData",
        "task.retry.Rules",
        "scheduler.handle.Ended",
        "recovery.transaction.SqliteTransaction",
        "recovery.letters.Letter",
    ),
    *("resilience.meter.Meter", "resilience.steady.SteadyTime", "resilience.gate.Debit"),
)
"""Types of the engine's own that stand in signatures of the front door."""
INTRODUCTIONS = {"errors": "cano.errors", "checkpoints": "cano.recovery.store"}
"""Modules whose docstrings stand at the head of a page."""
OTHERS = {
    "streams": {"cano.recovery.letters": ["SqliteDeadLetterSink", "StoredLetter"]},
    "checkpoints": {
        "cano.recovery.summary": ["RunSummary"],
        "cano.recovery.store": ["Claiming", "Noting", "Transaction", "Transactional"],
    },
    "schedules": {
        "cano.scheduler.handle": ["Fire"],
        "cano.scheduler.status": ["FlowStatus", "FireOutcome", "FlowCounters", "Phase"],
    },
    "resilience": {
        "cano.resilience.breaker": ["BreakerState", "Permit"],
        "cano.resilience.limiter": ["Limiter", "MeteredLimiter"],
        "cano.resilience.reservation": ["Reservation"],
        "cano.resilience.tiers": ["Tier"],
        "cano.resilience.meter": ["Usage"],
        "cano.resilience.counts": ["BreakerCounts", "LimiterCounts"],
    },
}
"""What users get or may name, and is not at the front door, by the page it belongs to. A signature that names a type which
is documented nowhere is an error of the build: put it here.
"""


def write(directory: Path) -> frozenset[str]:
    """Write the pages, where they differ from what is there, and return the names at the front door."""
    pages = {title: [f"cano.{name}" for name in names] for title, names in groups()}
    for title, modules in OTHERS.items():
        found = [(module, name) for module, names in modules.items() for name in names]
        pages[title] += [f"{module}.{name}" for module, name in found if name not in cano.__all__]
    pages["observers"] += [f"cano.observer.{name}" for name in events() if name not in cano.__all__]
    pages["tests of your own"] = [f"cano.testing.{name}" for name in sorted(cano.testing.__all__)]
    directory.mkdir(exist_ok=True)
    wanted = {f"{slug(title)}.rst": page(title, names) for title, names in pages.items()}
    wanted["index.rst"] = index(pages)
    for path in directory.glob("*.rst"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        path = directory / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return frozenset(cano.__all__)


def groups() -> Iterator[tuple[str, list[str]]]:
    """The groups of the front door: a comment, and the names imported below it."""
    source = Path(inspect.getfile(cano)).read_text(encoding="utf-8").partition("__all__")[0]
    for title, body in re.findall(r"^# (.+)\n((?:(?!# |\n\n).*\n)+)", source, flags=re.MULTILINE):
        names = re.findall(r"\w+", " ".join(re.findall(r"import (\([^)]*\)|[^\n]+)", body)))
        yield title, [name for name in names if name in cano.__all__]


def events() -> Iterator[str]:
    """What observers are told."""
    for name, thing in vars(cano.observer).items():
        if inspect.isclass(thing) and issubclass(thing, cano.observer.Event):
            yield name


def slug(title: str) -> str:
    """A title as a file's name."""
    return re.sub(r"\W+", "-", title.lower())


def heading(title: str) -> str:
    """A page's heading."""
    return f"{title[0].upper()}{title[1:]}\n{'=' * len(title)}\n"


def index(pages: dict[str, Any]) -> str:
    """The page that lists the others."""
    entries = "\n".join(f"   {slug(title)}" for title in pages)
    return f"""{heading("Reference")}
Names can be imported from ``cano`` unless they stand here with a module. The text is that of the docstrings.

.. toctree::
   :maxdepth: 2

{entries}
"""


def page(title: str, names: Iterable[str]) -> str:
    """One page of the reference."""
    parts = [heading(title)]
    if title in INTRODUCTIONS:
        parts.append(f".. automodule:: {INTRODUCTIONS[title]}\n   :no-members:\n")
    for dotted in names:
        module, _, name = dotted.rpartition(".")
        thing = getattr(importlib.import_module(module), name)
        kind = "class" if inspect.isclass(thing) else "function" if callable(thing) else "data"
        if inspect.isclass(thing) and issubclass(thing, BaseException):
            kind = "exception"
        parts.append(f".. auto{kind}:: {dotted}\n{'   :show-inheritance:' if has_known_base(thing) else ''}\n")
    return "\n".join(parts)


def has_known_base(thing: Any) -> bool:
    """Whether a class has a base that the reference knows, or is an exception."""
    known = {*cano.__all__, *(name for modules in OTHERS.values() for names in modules.values() for name in names), *events()}
    return any(base.__name__ in known or issubclass(base, BaseException) for base in getattr(thing, "__bases__", ()))


def restructured(lines: list[str]) -> list[str]:
    """A docstring of the house as reStructuredText.

    What differs: single backticks mean code, and lines such as `name: what it is`, whether in columns or under a heading
    such as `Raises:`, are a list of definitions. Numbers may be in a column, and what is indented stays as it is.
    """
    result: list[str] = []
    for block in blocks(lines):
        if block[0].startswith("    "):
            result += ["::", "", *block]
        elif ITEM.match(block[0]):
            result += coded(items(block))
        else:
            result += definitions(block) if ENTRY.fullmatch(block[0]) else coded(block)
        result.append("")
    return result


def blocks(lines: list[str]) -> Iterator[list[str]]:
    """The paragraphs; a docstring's heading with what is indented below it is one, and so is an example, empty lines and
    all.
    """
    found: list[list[str]] = []
    block: list[str] = []
    for line in [*lines, ""]:
        starts = not line.strip() or (block and line.partition(":")[0] in HEADINGS and not ENTRY.fullmatch(block[0]))
        if starts and block:
            if found and found[-1][0].startswith("    ") and block[0].startswith("    "):
                found[-1] += ["", *block]
            else:
                found.append(block)
            block = []
        if line.strip():
            block.append(line)
    yield from found


def items(block: list[str]) -> list[str]:
    """A numbered list whose lines are indented as its numbers want it."""
    result: list[str] = []
    width = 0
    for line in block:
        number = ITEM.match(line)
        width = len(number[1]) if number else width
        result.append(line.strip() if number else " " * width + line.strip())
    return result


def definitions(block: list[str]) -> list[str]:
    """Entries and their continuation lines as a list of definitions."""
    entries: list[tuple[str, list[str]]] = []
    for line in block:
        entry = ENTRY.fullmatch(line)
        if entry:
            entries.append((entry[1], [entry[2]] if entry[2] else []))
        else:
            entries[-1][1].append(line)
    result: list[str] = []
    for term, body in entries:
        text = [line.strip() for line in body]
        nested = term in HEADINGS and text and ENTRY.fullmatch(text[0])
        shown = definitions(text) if nested else coded(text)
        result += [named(term), *(f"    {line}" for line in shown)]
    return result


def named(term: str) -> str:
    """The term of a definition."""
    if term in HEADINGS:
        return f"**{term}**"
    return ", ".join(code(f"`{name}`") for name in term.split(", "))


def coded(lines: list[str]) -> list[str]:
    """Lines with inline code, which may go over the end of a line."""
    return code("\n".join(lines)).splitlines()


def code(line: str) -> str:
    """Inline code as reStructuredText has it, as a link if it is a name of the front door."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1].partition("(")[0]
        inline = f":py:obj:`{match[1]} <cano.{name}>`" if name in cano.__all__ else f"``{match[1]}``"
        return inline + "\\ " * (line[match.end() : match.end() + 1].isalnum())  # `Window`s: here the markup ends

    return re.sub(r"(?<!`)`([^`]+)`(?!`)", replaced, line)
