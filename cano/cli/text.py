"""What people read: aligned columns, ages, and text that cannot take over a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

WIDEST = 64
"""How many columns of a terminal one value may take in a table. `--json` gives all of it."""

_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def printable(text: str) -> str:
    """The text with everything that does not print, control and direction characters among it, as an escape."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _escape(ord(character)) for character in text)


def _escape(number: int) -> str:
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def width(text: str) -> int:
    """How many columns of a terminal a printable text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, limit: int = WIDEST) -> str:
    """The text, or as much of its beginning as fits into `limit` columns, and an ellipsis."""
    if width(text) <= limit:
        return text
    kept, used = [], 1
    for character in text:
        used += _columns(character)
        if used > limit:
            break
        kept.append(character)
    return "".join(kept) + "…"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows as columns under their names, two spaces apart. An empty value is shown as `-`, so that every line has as
    many words as there are columns, unless a value holds spaces.
    """
    lines = [list(head), *([cut(printable(value)) or "-" for value in row] for row in rows)]
    widths = [max(map(width, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(line, widths) for line in lines)


def _line(values: Sequence[str], widths: Sequence[int]) -> str:
    padded = [value + " " * (size - width(value)) for value, size in zip(values, widths, strict=True)]
    return "  ".join(padded).rstrip()


def age(seconds: float | None) -> str:
    """A duration in its two largest units: `4s`, `3m12s`, `2d5h`. Clocks that disagree make no negative ages."""
    if seconds is None:
        return ""
    left = max(int(seconds), 0)
    parts: list[str] = []
    for size, unit in _UNITS:
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
        left %= size
    parts.append(f"{left}s")
    return "".join(parts[:2])
