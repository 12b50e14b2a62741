"""`cano runs`, `show` and `clear`: what they say, and what they leave alone."""

from __future__ import annotations

import asyncio
import hashlib
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cano import CheckpointRow, RowKind, SqliteCheckpointStore
from cano.cli.codes import Exit
from cano.recovery.schema import VERSION
from tests.cli.commands import LOG, ROOT, Answer, InProcess, cursor, entry, environment, write

HOSTILE = "--yes; $(rm -rf ~) 'x' \" \u6771 \\x1b["
READING = [("runs",), ("show", "a"), ("clear", "a", "--yes")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / LOG


def files(directory: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir() if file.is_file()}


def test_runs_lists_every_run_in_aligned_columns(path: Path, cano: InProcess) -> None:
    write(path, ("a", entry(0)), ("a", cursor(1, blob=b"7")), ("b", entry(0, "UNDO", visit=3)))
    answer = cano("runs", str(path))
    assert (answer.code, answer.err) == (0, "")
    head, first, second = (line.split() for line in answer.out.splitlines())
    assert head == ["ID", "WORKFLOW", "STATE", "VISIT", "AGE", "WINDOWS", "RESUMES", "ERROR"]
    assert (first[0], first[2:4], first[5:]) == ("a", ["READ", "0"], ["1", "0", "-"])
    assert (second[0], second[2:4], second[5:]) == ("b", ["UNDO", "3"], ["0", "0", "-"])


def test_runs_as_json_tells_moments_in_utc_and_ages_in_seconds(path: Path, cano: InProcess) -> None:
    before = datetime.now(UTC)
    write(path, ("a", entry(0)), ("a", cursor(1, blob=b"7", next_state="DONE", workflow_version=3)))
    (run,) = cano("runs", str(path), "--json").json
    assert set(run) == {
        *("id", "workflow", "state", "task", "visit", "next_state", "kind", "rolling_back", "windows", "rows"),
        *("workflow_version", "written_at", "progressed_at", "age_seconds", "resumes", "damaged"),
        *("error_type", "error_category", "failed_at"),
    }
    assert (run["id"], run["state"], run["next_state"], run["kind"]) == ("a", "READ", "DONE", "STEP_CURSOR")
    assert (run["windows"], run["rows"], run["workflow_version"], run["rolling_back"]) == (1, 2, 3, False)
    written = datetime.fromisoformat(run["written_at"])
    assert written.utcoffset() == timedelta(0)
    assert before - timedelta(seconds=1) <= written <= datetime.now(UTC)
    assert 0 <= run["age_seconds"] < 60


def test_runs_says_when_a_run_is_rolling_back_or_has_decided_where_to_go(path: Path, cano: InProcess) -> None:
    write(path, ("back", entry(0)), ("back", CheckpointRow(1, RowKind.ROLLBACK_STARTED, "READ", "Read", blob=b"{}")))
    write(path, ("on", entry(0)), ("on", cursor(1, blob=b"7", next_state="DONE")))
    out = cano("runs", str(path)).out
    assert "READ (rolling back)" in out
    assert "READ -> DONE" in out


def test_an_empty_log_has_no_runs(path: Path, cano: InProcess) -> None:
    write(path, ("a", entry(0)))
    assert cano("clear", str(path), "a", "--yes").code == Exit.DONE
    assert cano("runs", str(path), "--json").json == []
    assert len(cano("runs", str(path)).out.splitlines()) == 1


def test_show_tells_the_sizes_of_what_is_stored_and_its_values_only_if_asked(path: Path, cano: InProcess) -> None:
    write(path, ("a", entry(0, data=b'{"card": 4711}')), ("a", cursor(1, blob=b"\xff\x00", data=b"NaN")))
    plain, shown = cano("show", str(path), "a").out, cano("show", str(path), "a", "--values").out
    assert "4711" not in plain
    _, head, first, second = plain.splitlines()
    assert head.split() == ["SEQ", "KIND", "STATE", "TASK", "VISIT", "NEXT", "VERSION", "BLOB", "DATA"]
    assert first.split() == ["0", "STATE_ENTRY", "READ", "Read", "0", "-", "0", "-", "14", "B"]
    assert second.split() == ["1", "STEP_CURSOR", "READ", "Read", "0", "-", "0", "2", "B", "3", "B"]
    assert shown.startswith(plain)
    assert shown[len(plain) :].splitlines() == ['0 data: {"card": 4711}', "1 blob: base64:/wA=", "1 data: base64:TmFO"]


def test_show_as_json_marks_how_a_value_is_shown(path: Path, cano: InProcess) -> None:
    write(path, ("a", entry(0, data=b'["\\u001b", 12345678901234567890]')), ("a", cursor(1, blob=b"\xff\x00", data=b"1e999")))
    run = cano("show", str(path), "a", "--json").json
    assert run["id"] == "a"
    assert [(row["sequence"], row["kind"], row["blob_bytes"], row["data_bytes"]) for row in run["rows"]] == [
        (0, "STATE_ENTRY", None, 32),
        (1, "STEP_CURSOR", 2, 5),
    ]
    assert not any("blob" in row or "data" in row for row in run["rows"])
    rows = cano("show", str(path), "a", "--values", "--json").json["rows"]
    assert [(row["blob"], row["data"]) for row in rows] == [
        (None, {"json": ["\x1b", 12345678901234567890]}),
        ({"base64": "/wA="}, {"base64": "MWU5OTk="}),
    ]


def test_hostile_names_neither_reach_the_terminal_nor_pass_for_options(path: Path, cano: InProcess) -> None:
    write(path, (HOSTILE, entry(0, "\x1b[2J\nX", data=b'"\x1b"')), ("other", entry(0)))
    for answer in (
        cano("runs", str(path)),
        cano("runs", str(path), "--json"),
        cano("show", str(path), "--values", "--", HOSTILE),
    ):
        assert answer.code == Exit.DONE
        assert answer.out.replace("\n", "").isprintable()
    assert "\\x1b[2J\\x0aX" in cano("runs", str(path)).out
    assert cano("runs", str(path), "--json").json[0]["id"] == HOSTILE
    assert cano("clear", str(path), "--yes", "--", HOSTILE).code == Exit.DONE
    assert [run["id"] for run in cano("runs", str(path), "--json").json] == ["other"]


@pytest.mark.parametrize("arguments", READING)
def test_a_log_that_is_not_there_is_not_made(path: Path, cano: InProcess, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments
    answer = cano(command, str(path), *rest)
    assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")
    assert answer.err == f"cano: no log at {str(path)!r}\n"
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize("arguments", READING)
@pytest.mark.parametrize(
    "kind", ["text", "empty", "another database", "another in WAL mode", "newer", "directory", "damaged version"]
)
def test_what_is_no_log_or_a_newer_one_is_refused_and_left_as_it_was(
    path: Path, cano: InProcess, arguments: tuple[str, ...], kind: str
) -> None:
    if kind == "text":
        path.write_text("this is no database at all, though it is long enough to be one" * 100)
    elif kind == "empty":
        path.touch()
    elif kind == "directory":
        path.mkdir()
    elif kind.startswith("another"):
        with closing(sqlite3.connect(path)) as database:
            database.execute(f"PRAGMA journal_mode = {'WAL' if 'WAL' in kind else 'DELETE'}")
            database.execute("CREATE TABLE cano (x)")
    else:
        write(path, ("a", entry(0)))
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("UPDATE cano_schema SET version = ?", (VERSION + 1 if kind == "newer" else "one",))
    before = files(path.parent)
    command, *rest = arguments
    answer = cano(command, str(path), *rest)
    assert (answer.code, answer.out) == (Exit.REFUSED, "")
    assert "left untouched" in answer.err
    assert answer.err.count("\n") == 1
    assert ("newer cano" in answer.err) == (kind == "newer")
    assert files(path.parent) == before


def test_an_unknown_run_is_not_found(path: Path, cano: InProcess) -> None:
    write(path, ("a", entry(0)))
    before = files(path.parent)
    for answer in (cano("show", str(path), "b"), cano("clear", str(path), "b", "--yes")):
        assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")
        assert "no run 'b'" in answer.err
    assert files(path.parent) == before


def spoil(path: Path, change: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"UPDATE cano_checkpoints SET {change} WHERE workflow_id = 'a'", values)


def test_a_damaged_run_is_listed_as_such_beside_the_others_and_can_be_cleared(path: Path, cano: InProcess) -> None:
    write(path, ("a", entry(0)), ("b", entry(0)))
    spoil(path, "kind = 'NONSENSE'")
    answer = cano("runs", str(path))
    assert answer.code == Exit.REFUSED
    _, first, second = (line.split() for line in answer.out.splitlines())
    assert (first[:3], second[2]) == (["a", "-", "damaged"], "READ")
    assert answer.err.startswith("cano: 1 damaged run: ")
    assert answer.err.count("\n") == 1
    answer = cano("runs", str(path), "--json")
    assert answer.code == Exit.REFUSED
    assert [(run["id"], run["damaged"], run["kind"]) for run in answer.json] == [("a", True, None), ("b", False, "STATE_ENTRY")]
    assert cano("show", str(path), "a").code == Exit.REFUSED
    assert cano("show", str(path), "b").code == Exit.DONE
    assert cano("clear", str(path), "a", "--yes").code == Exit.DONE
    answer = cano("runs", str(path), "--json")
    assert (answer.code, [run["id"] for run in answer.json]) == (Exit.DONE, ["b"])


COLUMNS = (
    *("workflow_id", "sequence", "kind", "state", "task", "blob", "next_state"),
    *("visit", "data", "workflow_version", "workflow", "written_at"),
)


@pytest.mark.parametrize("value", [b"\xff", "abc", -1, 1.5, 2**62], ids=repr)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_value_of_any_type_in_a_row_is_told_as_damage_or_shown(path: Path, cano: InProcess, column: str, value: object) -> None:
    write(path, ("a", entry(0)), ("b", entry(0)))
    spoil(path, f"{column} = ?", value)
    for arguments in (("runs",), ("runs", "--json"), ("show", "a"), ("show", "a", "--json"), ("show", "b")):
        command, *rest = arguments
        answer = cano(command, str(path), *rest)
        codes = {Exit.DONE, Exit.REFUSED} | ({Exit.NOT_FOUND} if column == "workflow_id" else set())
        assert answer.code in codes, (arguments, answer)
        assert "Error" not in answer.err
        if command == "runs":
            assert "READ" in answer.out, "of the run that is whole"
    assert cano("show", str(path), "b").code == Exit.DONE


def test_the_age_is_the_time_since_progress_and_a_resume_is_none(path: Path, cano: InProcess) -> None:
    """A process that dies again and again without a commit grows older, and its resumes are counted."""
    write(path, ("a", entry(0)), ("a", cursor(1, blob=b"7")), ("a", entry(2)), ("a", entry(3)))
    now = time.time()
    for sequence, ago in enumerate((4000, 3720, 60, 30)):
        spoil(path, "written_at = CASE sequence WHEN ? THEN ? ELSE written_at END", sequence, now - ago)
    (run,) = cano("runs", str(path), "--json").json
    assert run["resumes"] == 2
    assert 3720 <= run["age_seconds"] < 3780
    assert run["progressed_at"] < run["written_at"]
    assert cano("runs", str(path)).out.splitlines()[1].split()[4:] == ["1h2m", "1", "2", "-"]
    assert "1 window, progressed 1h2m ago, resumed 2 times\n" in cano("show", str(path), "a").out


def test_a_clock_that_was_put_back_makes_no_negative_age(path: Path, cano: InProcess) -> None:
    write(path, ("a", entry(0)))
    spoil(path, "written_at = ?", time.time() + 5000)
    assert cano("runs", str(path), "--json").json[0]["age_seconds"] == 0


def test_looking_at_a_log_changes_nothing_of_it(path: Path, cano: InProcess) -> None:
    """Neither its bytes, nor its schema, nor its journal mode: a backup stays the one that was checked."""
    shutil.copy(ROOT / "tests" / "golden" / "v1.db", path)
    with closing(sqlite3.connect(path)) as database:
        ids = [workflow_id for (workflow_id,) in database.execute("SELECT DISTINCT workflow_id FROM cano_checkpoints")]
        database.execute("PRAGMA journal_mode = DELETE")
    before = files(path.parent)
    assert [run["id"] for run in cano("runs", str(path), "--json").json] == sorted(ids)
    assert {cano("show", str(path), workflow_id).code for workflow_id in ids} == {Exit.DONE}
    assert files(path.parent) == before


def test_clear_forgets_one_run_and_leaves_the_others(path: Path, cano: InProcess) -> None:
    write(path, ("a", entry(0)), ("a", cursor(1, blob=b"7")), ("b", entry(0)))
    answer = cano("clear", str(path), "a", "--yes", "--json")
    assert (answer.code, answer.json) == (Exit.DONE, {"id": "a", "cleared": True})
    assert [run["id"] for run in cano("runs", str(path), "--json").json] == ["b"]
    assert cano("clear", str(path), "b", "--yes").out == "cleared run b\n"


def test_clear_refuses_a_run_that_somebody_alive_holds(path: Path, cano: InProcess) -> None:
    write(path, ("a", entry(0)))

    async def held() -> tuple[int, str]:
        async with SqliteCheckpointStore(path) as store, store.claim("a"):
            answer = await asyncio.to_thread(cano, "clear", str(path), "a", "--yes")
            assert len(await store.load_run("a")) == 1
            return answer.code, answer.err

    code, told = asyncio.run(held())
    assert code == Exit.OWNED
    assert "'a'" in told
    assert cano("clear", str(path), "a", "--yes").code == Exit.DONE


def test_clear_asks_nobody_when_nobody_is_there(path: Path, cano: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    write(path, ("a", entry(0)))
    with open(os.devnull) as nobody:
        monkeypatch.setattr(sys, "stdin", nobody)
        answer = cano("clear", str(path), "a")
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "--yes" in answer.err
    monkeypatch.setattr(sys, "stdin", None)
    assert cano("clear", str(path), "a").code == Exit.USAGE
    assert len(cano("runs", str(path), "--json").json) == 1


@pytest.mark.parametrize(
    ("typed", "code", "left"),
    [("y\n", Exit.DONE, 0), ("YES\n", Exit.DONE, 0), ("\n", Exit.CANCELLED, 1), ("no\n", Exit.CANCELLED, 1), ("\x04", 3, 1)],
)
def test_clear_on_a_terminal_asks_and_takes_only_yes_for_an_answer(
    path: Path, cano: InProcess, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, left: int
) -> None:
    write(path, ("a", entry(0)))
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    with open(theirs, encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        answer = cano("clear", str(path), "a")
    os.close(ours)
    assert answer.code == code
    assert answer.err.startswith("Forget run a? It cannot be resumed then. [y/N] ")
    assert len(cano("runs", str(path), "--json").json) == left


def test_clear_does_not_hold_the_run_while_it_asks(path: Path, cano: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question that nobody answers must not keep a run from going on; and the run may end while it is asked."""
    write(path, ("a", entry(0)))

    async def work() -> None:
        async with SqliteCheckpointStore(path) as store, store.claim("a"):
            await store.clear("a")

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            asyncio.run(work())
            return "y\n"

    monkeypatch.setattr(sys, "stdin", Terminal())
    answer = cano("clear", str(path), "a")
    assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")


def humbled(directory: Path, *arguments: str) -> Answer:
    """`cano` as a process that may do only what the permissions of files let it, even if the tests are run by root."""
    drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search"]
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("root, whom no permission keeps from anything, and no setpriv to change that")
    command = [*(drop if os.geteuid() == 0 else []), sys.executable, "-m", "cano", *arguments]
    done = subprocess.run(command, cwd=directory, env=environment(), capture_output=True, text=True, timeout=30, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


NOT_ALLOWED = {
    "write beside": (0o555, 0o444),
    "look for": (0, 0o600),
    "read": (0o755, 0o200),
    "write": (0o755, 0o444),
}


@pytest.mark.parametrize("what", NOT_ALLOWED)
def test_a_log_that_may_not_be_read_is_not_called_damaged_or_missing(tmp_path: Path, what: str) -> None:
    """SQLite reads a log in WAL mode through a file beside it, and says that writing is refused. If it may make that file,
    as read-only as the log is, the writer of the log could not use it, and would fail from then on.
    """
    log = tmp_path / "theirs" / LOG
    log.parent.mkdir()
    write(log, ("a", entry(0)))
    of_directory, of_file = NOT_ALLOWED[what]
    log.chmod(of_file)
    log.parent.chmod(of_directory)
    try:
        for command in (("runs",), ("show", "a"), ("clear", "a", "--yes")):
            answer = humbled(tmp_path, command[0], str(log), *command[1:])
            assert (answer.code, answer.out) == (Exit.REFUSED, "")
            assert answer.err.startswith(f"cano: this user may not {what} {str(log)!r}")
            assert "as the user that writes it, or at a copy made by VACUUM INTO" in answer.err
            assert answer.err.count("\n") == 1
    finally:
        log.parent.chmod(0o755)
    assert os.listdir(log.parent) == [LOG]


def test_a_log_that_is_open_and_a_copy_need_no_more_than_reading(tmp_path: Path) -> None:
    live, copy = tmp_path / "live" / LOG, tmp_path / "copies" / LOG
    for directory in (live.parent, copy.parent):
        directory.mkdir()
    write(live, ("a", entry(0)))
    with closing(sqlite3.connect(live)) as database:
        database.execute("VACUUM INTO ?", (str(copy),))
        database.execute("UPDATE cano_checkpoints SET visit = 7")
        database.commit()  # the -wal and the -shm are there as long as somebody has the log open
        for log, visit, of_directory in ((live, 7, 0o555), (live, 7, 0o755), (copy, 0, 0o555), (copy, 0, 0o755)):
            for path in log.parent.iterdir():
                path.chmod(0o444)
            log.parent.chmod(of_directory)
            try:
                answer = humbled(tmp_path, "runs", str(log), "--json")
                assert (answer.code, [run["visit"] for run in answer.json]) == (Exit.DONE, [visit])
            finally:
                log.parent.chmod(0o755)
    assert os.listdir(copy.parent) == [LOG]


def test_a_copy_is_read_without_a_file_being_left_beside_it(path: Path, cano: InProcess) -> None:
    write(path, ("a", entry(0)))
    copy = path.parent / "copies" / "copy.db"
    copy.parent.mkdir()
    with closing(sqlite3.connect(path)) as database:
        database.execute("VACUUM INTO ?", (str(copy),))
    assert len(cano("runs", str(copy), "--json").json) == 1
    assert cano("show", str(copy), "a").code == Exit.DONE
    assert os.listdir(copy.parent) == ["copy.db"]
