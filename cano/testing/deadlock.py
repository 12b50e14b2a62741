"""Deadlock: nothing can happen any more."""

from __future__ import annotations

import asyncio
from typing import Any


class Deadlock(RuntimeError):
    """Every asyncio task waits, and nothing is left that could wake one: no timer, no thread, no file. Or some go round and
    round, such as a loop around `asyncio.sleep(0)`, and come to no end.

    The message says where each waits or goes round, by names of functions and asyncio tasks only.
    """


def whereabouts(tasks: set[asyncio.Task[Any]]) -> str:
    """Where asyncio tasks wait, one line each: the task's name, and the functions from its own to the innermost."""
    lines = [f"  {task.get_name()}: {' > '.join(_chain(task.get_coro())) or 'not started'}" for task in tasks if not task.done()]
    return "\n".join(sorted(lines)) or "  no asyncio task is left"


def _chain(awaited: Any) -> list[str]:
    found: list[str] = []
    while awaited is not None and len(found) < 50:
        for prefix in ("cr", "ag", "gi"):
            code = getattr(awaited, f"{prefix}_code", None)
            if code is not None:
                frame = getattr(awaited, f"{prefix}_frame")
                found.append(f"{code.co_qualname} (line {frame.f_lineno})" if frame is not None else code.co_qualname)
                awaited = getattr(awaited, f"{prefix}_await" if prefix != "gi" else "gi_yieldfrom", None)
                break
        else:
            return found
    return found
