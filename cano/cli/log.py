"""Looking into a log, and clearing one run of it. Works beside the processes that write it; needs none of their code."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sqlite3
import sys
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from cano.cli.codes import CommandError, Exit
from cano.cli.output import complain, say, say_json
from cano.cli.text import age, printable, table
from cano.clock import wall
from cano.recovery.checkpoint import CheckpointRow
from cano.recovery.sqlite import SqliteCheckpointStore
from cano.recovery.summary import RunSummary

RUNS = ("ID", "WORKFLOW", "STATE", "VISIT", "AGE", "WINDOWS", "RESUMES", "ERROR")
ROWS = ("SEQ", "KIND", "STATE", "TASK", "VISIT", "NEXT", "VERSION", "BLOB", "DATA")


def open_log(path: str) -> SqliteCheckpointStore:
    """The log at `path`, which has to be there already: nothing is created.

    Raises:
        CommandError: there is no file, it is no log, or this user may not read it.
    """
    try:
        os.stat(path)
    except PermissionError as error:
        raise CommandError(Exit.REFUSED, f"this user may not look for {path!r}; {_BY_WHOM}") from error
    except (OSError, ValueError) as error:
        raise CommandError(Exit.NOT_FOUND, f"no log at {path!r}") from error
    if _would_be_in_the_way(path):
        why = f"this user may not write {path!r}, and looking would leave files beside it that its writer cannot use"
        raise CommandError(Exit.REFUSED, f"{why}; {_BY_WHOM}")
    if not _is_log(path):
        raise CommandError(Exit.REFUSED, f"{path!r} is no log of cano; it was left untouched")
    return SqliteCheckpointStore(path)


_BY_WHOM = "look as the user that writes it, or at a copy made by VACUUM INTO"
_DENIED = (sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def _would_be_in_the_way(path: str) -> bool:
    """Whether SQLite would make a -wal and a -shm here that are as read-only as the log is to this user, and this user's.
    It does for a log in WAL mode, which bytes 18 and 19 of the file say, that nobody has open.
    """
    path = os.path.realpath(path)
    if os.access(path, os.W_OK) or not os.access(os.path.dirname(path), os.W_OK) or os.path.exists(f"{path}-shm"):
        return False
    try:
        with open(path, "rb") as file:
            return file.read(20)[18:] == b"\2\2"
    except OSError:
        return False


def _is_log(path: str) -> bool:
    """Asked through SQLite, which alone knows how to look at a database that others are writing."""
    try:
        with closing(sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=rw", uri=True)) as database:
            found = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'cano_schema'").fetchone()
    except sqlite3.Error as error:
        raise CommandError(Exit.REFUSED, f"{_unreadable(path, error)}; it was left untouched") from error
    return found is not None


def _unreadable(path: str, error: sqlite3.Error) -> str:
    """Why, and what to do if it is for want of permission. A log is read with the help of a file beside it, so it is no
    damage if reading is seen as an attempt to write.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if os.path.isdir(path) or code not in _DENIED:
        return f"SQLite cannot read {path!r}: {error}"
    if not os.access(path, os.R_OK):
        return f"this user may not read {path!r}; {_BY_WHOM}"
    return f"this user may not write beside {path!r}, and SQLite reads a log through a -shm file there; {_BY_WHOM}"


def list_runs(path: str, *, as_json: bool) -> Exit:
    """`cano runs`: the runs of a log. Says so, too, if some are damaged."""
    runs, now = asyncio.run(_runs(path)), wall()
    if as_json:
        say_json([described(run, now) for run in runs])
    else:
        say(table(RUNS, [_line(run, now) for run in runs]))
    damaged = sum(run.damaged for run in runs)
    if not damaged:
        return Exit.DONE
    complain(f"cano: {damaged} damaged {'run' if damaged == 1 else 'runs'}: restore a backup, or forget them with cano clear")
    return Exit.REFUSED


async def _runs(path: str) -> list[RunSummary]:
    async with open_log(path) as store:
        return await store.summaries()


def described(run: RunSummary, now: datetime) -> dict[str, Any]:
    """A run for programs: moments in ISO 8601, UTC, and ages in seconds. Its age is the time since it last progressed."""
    return {
        "id": run.workflow_id,
        "workflow": run.workflow,
        "state": run.state,
        "task": run.task,
        "visit": run.visit,
        "next_state": run.next_state,
        "kind": None if run.kind is None else str(run.kind),
        "damaged": run.damaged,
        "rolling_back": run.rolling_back,
        "windows": run.windows,
        "rows": run.rows,
        "workflow_version": run.workflow_version,
        "written_at": _moment(run.written_at),
        "progressed_at": _moment(run.progressed_at),
        "age_seconds": _age(run.progressed_at, now),
        "resumes": run.resumes,
        "error_type": run.error_type,
        "error_category": run.error_category,
        "failed_at": _moment(run.failed_at),
    }


def _line(run: RunSummary, now: datetime) -> tuple[str, ...]:
    if run.damaged:
        return (run.workflow_id, "", "damaged", *[""] * 5)
    return (
        run.workflow_id,
        run.workflow,
        _where(run),
        str(run.visit),
        age(_age(run.progressed_at, now)),
        str(run.windows),
        str(run.resumes),
        run.error_type or "",
    )


def _where(run: RunSummary) -> str:
    """The state, and what the log says of it beyond being there."""
    if run.rolling_back:
        return f"{run.state} (rolling back)"
    return run.state if run.next_state is None else f"{run.state} -> {run.next_state}"


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _age(moment: datetime | None, now: datetime) -> float | None:
    """In seconds; clocks that disagree make no negative ages."""
    return None if moment is None else max((now - moment).total_seconds(), 0.0)


def show_run(path: str, workflow_id: str, *, values: bool, as_json: bool) -> None:
    """`cano show`: the rows of one run. What a user stored is shown only with `values`."""
    (rows, run), now = asyncio.run(_log(path, workflow_id)), wall()
    if as_json:
        summary = {} if run is None else described(run, now)
        say_json({**summary, "id": workflow_id, "rows": [_row(row, values) for row in rows]})
        return
    if run is not None:
        say(_headline(run, now))
    say(table(ROWS, [_cells(row) for row in rows]))
    if values:
        for row in rows:
            for name, payload in (("blob", row.blob), ("data", row.data)):
                if payload is not None:
                    say(f"{row.sequence} {name}: {_text(payload)}")


async def _log(path: str, workflow_id: str) -> tuple[list[CheckpointRow], RunSummary | None]:
    async with open_log(path) as store:
        rows = await store.load_run(workflow_id)
        if not rows:
            _not_found(path, workflow_id)
        return rows, next((run for run in await store.summaries() if run.workflow_id == workflow_id), None)


def _headline(run: RunSummary, now: datetime) -> str:
    progressed = age(_age(run.progressed_at, now))
    parts = [
        f"run {run.workflow_id} of {run.workflow or 'a workflow'}: {_where(run)}",
        f"{run.windows} windows" if run.windows != 1 else "1 window",
    ]
    parts += [f"progressed {progressed} ago"] if progressed else []
    parts += [f"resumed {run.resumes} times" if run.resumes != 1 else "resumed once"] if run.resumes else []
    parts += [f"last error {run.error_type} ({run.error_category})"] if run.error_type else []
    return printable(", ".join(parts))


def _cells(row: CheckpointRow) -> tuple[str, ...]:
    sizes = ("" if payload is None else f"{len(payload)} B" for payload in (row.blob, row.data))
    place = (str(row.sequence), str(row.kind), row.state, row.task, str(row.visit))
    return (*place, row.next_state or "", str(row.workflow_version), *sizes)


def _row(row: CheckpointRow, values: bool) -> dict[str, Any]:
    described: dict[str, Any] = {
        "sequence": row.sequence,
        "kind": str(row.kind),
        "state": row.state,
        "task": row.task,
        "visit": row.visit,
        "next_state": row.next_state,
        "workflow_version": row.workflow_version,
    }
    for name, payload in (("blob", row.blob), ("data", row.data)):
        described[f"{name}_bytes"] = None if payload is None else len(payload)
        if values:
            described[name] = None if payload is None else decoded(payload)
    return described


def decoded(payload: bytes) -> dict[str, Any]:
    """What was stored, under the key that says how it is shown: as the JSON that it is, else as base64."""
    try:
        value = json.loads(payload)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return {"base64": base64.b64encode(payload).decode()}
    return {"json": value}


def _text(payload: bytes) -> str:
    shown = decoded(payload)
    return json.dumps(shown["json"]) if "json" in shown else f"base64:{shown['base64']}"


def clear_run(path: str, workflow_id: str, *, yes: bool, as_json: bool) -> None:
    """`cano clear`: forget one run that nobody is working on. Its damaged rows, if any, go with it.

    It asks between two event loops, which would keep Ctrl-C from ending the question; and before it claims the run, which
    a question that nobody answers must not keep from going on.

    Raises:
        CommandError: there is no such run, or the question was not answered with yes.
        RunOwnedError: somebody alive is working on it.
    """
    asyncio.run(_find(path, workflow_id))
    if not yes:
        _ask(workflow_id)
    asyncio.run(_clear(path, workflow_id))
    if as_json:
        say_json({"id": workflow_id, "cleared": True})
    else:
        say(printable(f"cleared run {workflow_id}"))


async def _find(path: str, workflow_id: str) -> None:
    async with open_log(path) as store:
        if workflow_id not in await store.list_runs():
            _not_found(path, workflow_id)


async def _clear(path: str, workflow_id: str) -> None:
    async with open_log(path) as store, store.claim(workflow_id):
        if workflow_id not in await store.list_runs():
            _not_found(path, workflow_id)
        await store.clear(workflow_id)


def _ask(workflow_id: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise CommandError(Exit.USAGE, "clear needs --yes when nobody can be asked")
    sys.stderr.write(printable(f"Forget run {workflow_id}? It cannot be resumed then. [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError(Exit.CANCELLED, "nothing was cleared")


def _not_found(path: str, workflow_id: str) -> NoReturn:
    raise CommandError(Exit.NOT_FOUND, f"no run {workflow_id!r} in {path!r}: it was never started, or has completed")
