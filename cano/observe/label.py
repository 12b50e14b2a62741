"""Names as they may be shown: nothing in them moves a cursor, ends a line or runs on for ever."""

from __future__ import annotations

from typing import Any

from cano.errors import label_text

LONGEST = 300
"""How many characters of a name are shown. An id, of at most 255, is shown in full."""


def shown(text: str) -> str:
    """The text with whatever is not printable escaped, such as a line break or an escape sequence."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 1]}…"
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def state_name(state: Any) -> str:
    """How a state is shown: by its label, or as "-" if there is none yet."""
    return "-" if state is None else shown(label_text(state))
