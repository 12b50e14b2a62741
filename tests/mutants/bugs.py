"""Bugs that nobody must ever make in cano: where they would be, and what they would look like.

Each is a change of one place of the real code. If that code changes, so must the bug: it has to be found exactly once.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import cano

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Bug:
    """`good`, found in a file of cano, becomes `bad`; exploring `part` must end in an error that says `sign`."""

    name: str
    part: str
    file: str
    good: str
    bad: str
    sign: str

    def plant(self, folder: Path) -> Path:
        """Make a copy of cano and its tests that has this bug."""
        for source in (Path(cano.__file__).parent, ROOT / "tests"):
            shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        path = folder / self.file
        text = path.read_text()
        assert text.count(self.good) == 1, f"the place of the bug {self.name!r} is there {text.count(self.good)} times"
        path.write_text(text.replace(self.good, self.bad))
        return folder


BUGS = [
    Bug(
        "commit before flush",
        "streams",
        "cano/task/session.py",
        good="""        if outputs:
            stop = await self.call("flush_window", self.task.flush_window, outputs)
""",
        bad="""        if outputs:
            await self.host.commit(cursor, stop)
            stop = await self.call("flush_window", self.task.flush_window, outputs)
""",
        sign="AssertionError: committed",
    ),
    Bug(
        "a lost read: a deadline cancels it",
        "streams",
        "cano/task/session.py",
        good="""        self.window.due = True
        self.poke()
""",
        bad="""        self.window.due = True
        self.brake.cut()
""",
        sign="AssertionError: [",
    ),
    Bug(
        "a missed cancel: one that comes during a flush",
        "streams",
        "cano/task/loop.py",
        good="""        session.set_mark()
    return await _drain(session) if session.brake.on else None
""",
        bad="""        session.set_mark()
        return None
    return await _drain(session)
""",
        sign="AssertionError: an item was pulled after the stop",
    ),
    Bug(
        "a missed cancel: one that comes before a run begins",
        "scheduler",
        "cano/scheduler/handle.py",
        good="""        self.token.cancel(rollback)
        return True
""",
        bad="""        if self.task is not None:
            self.task.cancel()
        return True
""",
        sign="AssertionError: a run that was cancelled before it began was begun",
    ),
    Bug(
        "a lost fire: nobody looks at a wall clock that was put forward",
        "scheduler",
        "cano/scheduler/timing.py",
        good="    look: float | None = LOOK\n",
        bad="    look: float | None = None\n",
        sign="AssertionError: what came while it could not fire was never made up for",
    ),
    Bug(
        "a forgotten run: a fixed id begins anew",
        "scheduler",
        "cano/scheduler/session.py",
        good="resume=True, keeps_log=False",
        bad="resume=False, keeps_log=False",
        sign="AssertionError: resumed at None, and",
    ),
]
