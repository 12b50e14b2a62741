"""`cano run` and `cano resume` in this process: what they give back, print and refuse."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from cano.cli.codes import Exit
from cano.recovery.schema import VERSION
from tests.cli.commands import LOG, InProcess, cursor, entry, write


def test_a_completed_run_is_one_line_on_stdout(shop: Path, cano: InProcess) -> None:
    (shop / "go").touch()
    answer = cano("run", "shop:workflow", "READ", "--id", "a")
    assert (answer.code, answer.out, answer.err) == (0, "a: completed in DONE\n", "")
    assert (shop / "sum").read_text() == "15"


def test_without_an_id_a_fresh_one_is_told_before_the_run_begins(shop: Path, cano: InProcess) -> None:
    answer = cano("run", "shop:workflow", "FAIL", "--json")
    first, second = answer.err.splitlines()
    assert first == f"run {answer.json['id']}"
    assert len(answer.json["id"]) == 32
    assert second.startswith(f"{answer.json['id']}: failed: task_execution: ")
    assert cano("run", "shop:workflow", "FAIL", "--json").json["id"] != answer.json["id"]


def test_a_failed_run_says_that_it_can_be_resumed_and_nothing_of_what_the_user_raised(shop: Path, cano: InProcess) -> None:
    answer = cano("run", "shop:workflow", "FAIL", "--id", "a")
    assert (answer.code, answer.out) == (Exit.FAILED, "")
    assert answer.err.startswith("a: failed: task_execution: ")
    assert answer.err.endswith("(state FAIL, attempt 1) [resumable]\n")
    assert answer.err.count("\n") == 1
    assert "4711" not in answer.err
    (shop / "go").touch()
    answer = cano("resume", "shop:workflow", "a", "--json")
    assert answer.code == 0
    assert answer.err == ""
    assert answer.json == {
        "id": "a",
        "workflow": "shop",
        "outcome": "completed",
        "state": "DONE",
        "resumable": False,
        "error": None,
        "exit_code": 0,
    }


def test_a_failed_run_as_json_is_one_object(shop: Path, cano: InProcess) -> None:
    told = cano("run", "shop:workflow", "FAIL", "--id", "a", "--json").json
    assert (told["outcome"], told["state"], told["resumable"], told["exit_code"]) == ("failed", None, True, 1)
    assert told["error"].pop("message")
    assert told["error"] == {"type": "TaskExecutionError", "category": "task_execution", "state": "FAIL", "attempt": 1}


def test_a_run_that_was_rolled_back_cannot_be_resumed_and_says_so(shop: Path, cano: InProcess) -> None:
    answer = cano("run", "shop:workflow", "UNDO", "--id", "a")
    assert (answer.code, (shop / "undone").exists()) == (Exit.FAILED, True)
    assert answer.err.endswith("[not resumable]\n")
    assert cano("resume", "shop:workflow", "a").code == Exit.NOT_FOUND


def test_a_run_without_a_store_needs_no_id_and_cannot_be_resumed(shop: Path, cano: InProcess) -> None:
    answer = cano("run", "shop:storeless", "FAIL")
    assert (answer.code, answer.out) == (Exit.FAILED, "")
    assert answer.err.startswith("storeless: failed: ")
    assert answer.err.endswith("[not resumable]\n")
    answer = cano("resume", "shop:storeless", "a")
    assert answer.code == Exit.USAGE
    assert "checkpoint store" in answer.err


def test_a_traceback_is_shown_to_who_asks_for_it(shop: Path, cano: InProcess) -> None:
    answer = cano("run", "shop:workflow", "FAIL", "--id", "a", "--traceback")
    assert "ValueError: the secret 4711" in answer.err
    assert answer.err.splitlines()[-1].startswith("a: failed: ")


def test_a_run_that_outlives_its_total_timeout_has_a_code_of_its_own(shop: Path, cano: InProcess) -> None:
    answer = cano("run", "shop:hasty", "SLEEP", "--id", "a", "--json")
    assert answer.code == Exit.TIMED_OUT
    assert (answer.json["outcome"], answer.json["resumable"]) == ("timed out", True)
    assert answer.json["error"]["category"] == "workflow_timeout"


def test_an_unfinished_log_is_gone_on_with_or_discarded_only_if_asked(shop: Path, cano: InProcess) -> None:
    cano("run", "shop:workflow", "FAIL", "--id", "a")
    answer = cano("run", "shop:workflow", "READ", "--id", "a")
    assert (answer.code, answer.out) == (Exit.EXISTS, "")
    assert answer.err.startswith("a: exists: checkpoint_store: ")
    (shop / "go").touch()
    assert cano("run", "shop:workflow", "READ", "--id", "a", "--if-exists", "resume").code == 0
    assert not (shop / "sum").exists(), "it went on in FAIL"
    (shop / "go").unlink()
    cano("run", "shop:workflow", "FAIL", "--id", "a")
    (shop / "go").touch()
    assert cano("run", "shop:workflow", "READ", "--id", "a", "--if-exists", "discard").code == 0
    assert (shop / "sum").read_text() == "15"


ODD = """
import asyncio, sys
from pathlib import Path
from cano import *


class Odd(BaseException):
    pass


def thrown():
    kind = Path("kind").read_text()
    raise {"odd": Odd("the secret 4711"), "exit": SystemExit(9), "text": SystemExit("the secret 4711"),
           "none": SystemExit(), "key": KeyboardInterrupt("the secret 4711"), "closed": GeneratorExit("the secret 4711"),
           "value": ValueError("the secret 4711")}[kind]


def hook(ctx):
    thrown()


async def task(ctx):
    thrown()


async def later(ctx):
    await asyncio.sleep(0)
    thrown()


class Read(StreamTask):
    window = Window(count=1)

    def open(self, ctx, cursor):
        return iter([1])

    async def process_item(self, ctx, item):
        return item, item

    async def flush_window(self, ctx, outputs):
        thrown()

    async def on_close(self, ctx, reason):
        return "end"


workflow = Workflow(name="odd", checkpoint_store=SqliteCheckpointStore("runs.db"))
workflow.register("task", task).register("later", later).register("read", Read()).add_exit_state("end")

def factory():
    thrown()

if Path("at import").exists():
    thrown()
"""
THROWN = [
    ("odd", Exit.FAILED, "failed", "Odd"),
    ("closed", Exit.FAILED, "failed", "GeneratorExit"),
    ("exit", 9, "exited", "SystemExit"),
    ("text", Exit.FAILED, "exited", "SystemExit"),
    ("none", Exit.DONE, "exited", "SystemExit"),
    ("key", 130, "interrupted", "KeyboardInterrupt"),
]


@pytest.fixture
def odd(shop: Path) -> Iterator[Path]:
    (shop / "odd.py").write_text(ODD)
    yield shop
    sys.modules.pop("odd", None)


@pytest.mark.parametrize("state", ["task", "later", "read"])
@pytest.mark.parametrize(("kind", "code", "outcome", "name"), THROWN)
def test_whatever_a_hook_raises_is_one_line_and_one_document(
    odd: Path, cano: InProcess, kind: str, code: int, outcome: str, name: str, state: str
) -> None:
    (odd / "kind").write_text(kind)
    answer = cano("run", "odd:workflow", state, "--id", "a", "--json")
    assert answer.code == code
    assert answer.err == f"a: {outcome}: {name}; --traceback shows where [resumable]\n"
    told = answer.json
    assert (told["outcome"], told["state"], told["resumable"], told["exit_code"]) == (outcome, None, True, code)
    assert (told["error"]["type"], told["error"]["message"]) == (name, None)
    assert cano("resume", "odd:workflow", "a").err == answer.err
    assert "Traceback" in cano("resume", "odd:workflow", "a", "--traceback").err


@pytest.mark.parametrize("arguments", [("run", "odd:factory", "task"), ("graph", "odd:factory"), ("resume", "odd:factory", "a")])
@pytest.mark.parametrize("at_import", [True, False])
@pytest.mark.parametrize(("kind", "code", "outcome", "name"), [*THROWN, ("value", Exit.FAILED, "failed", "ValueError")])
def test_whatever_a_module_or_a_factory_raises_is_one_line_and_one_document(
    odd: Path, cano: InProcess, kind: str, code: int, outcome: str, name: str, at_import: bool, arguments: tuple[str, ...]
) -> None:
    (odd / "kind").write_text(kind)
    if at_import:
        (odd / "at import").touch()
    answer = cano(*arguments, "--json")
    assert (answer.code, answer.json["exit_code"]) == (code, code)
    assert answer.err.count("\n") == 1
    what = "importing odd" if at_import else "calling odd:factory"
    assert answer.err.startswith(f"cano: {name}; " if outcome in ("exited", "interrupted") else f"cano: {what} raised {name}; ")
    assert "4711" not in answer.out + answer.err


def test_data_is_decoded_to_the_type_that_the_workflow_declares(shop: Path, cano: InProcess) -> None:
    assert cano("run", "shop:typed", "start", "--data", '{"number": 7, "name": "x"}').code == 0
    assert (shop / "order").read_text() == "Order(number=7, name='x')"


@pytest.mark.parametrize(
    "text", ['{"number": "4711"}', "{", "4711", '{"number": 4711.5, "name": "x"}', '{"number": 1, "name": "\udc80"}']
)
def test_data_of_another_type_is_refused_without_being_shown(shop: Path, cano: InProcess, text: str) -> None:
    answer = cano("run", "shop:typed", "start", "--data", text)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert "--data" in answer.err
    assert "4711" not in answer.err
    assert not (shop / "order").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", "shop:workflow", "NOWHERE"), "no state 'NOWHERE'; the workflow has DONE, FAIL, READ, SLEEP, UNDO"),
        (("run", "shop:workflow", "read"), "no state 'read'"),
        (("run", "shop:workflow", "READ", "--id", "a\nb"), "printable"),
        (("run", "shop:workflow", "READ", "--id", ""), "printable"),
        (("run", "shop:workflow", "READ", "--if-exists", "perhaps"), "perhaps"),
        (("run", "shop:workflow"), "STATE"),
        (("resume", "shop:workflow"), "ID"),
        (("resume", "shop:workflow", "a", "b"), "b"),
        (("resume", "shop:workflow", "a", "--data", "1"), "--data"),
        (("jump",), "jump"),
    ],
)
def test_what_is_typed_wrongly_is_one_line_and_runs_nothing(
    shop: Path, cano: InProcess, arguments: tuple[str, ...], told: str
) -> None:
    answer = cano(*arguments)
    assert (answer.code, answer.out) == (Exit.USAGE, "")
    assert told in answer.err.splitlines()[-1]
    assert cano(*arguments, "--json").json["exit_code"] == Exit.USAGE
    assert not (shop / LOG).exists()


def test_a_run_that_is_not_there_is_not_found_and_no_log_is_made(shop: Path, cano: InProcess) -> None:
    answer = cano("resume", "shop:workflow", "a")
    assert (answer.code, answer.out) == (Exit.NOT_FOUND, "")
    assert answer.err.startswith("a: not found: no run 'a'")
    assert not (shop / LOG).exists()


@pytest.mark.parametrize("kind", ["version", "state", "cursor", "data", "newer", "damaged"])
def test_a_log_that_does_not_fit_is_refused_and_left_as_it_was(shop: Path, cano: InProcess, kind: str) -> None:
    path = shop / LOG
    states = {"state": "GONE"}
    write(path, ("a", entry(0, states.get(kind, "READ"), data=b"[]" if kind == "data" else None)))
    write(path, ("a", cursor(1, blob=b"{}" if kind == "cursor" else b"2", data=b"[]" if kind == "data" else b"3")))
    if kind == "state":
        write(path, ("a", entry(2, "GONE", visit=1)))
    with closing(sqlite3.connect(path)) as database, database:
        if kind == "newer":
            database.execute("UPDATE cano_schema SET version = ?", (VERSION + 1,))
        if kind == "damaged":
            database.execute("UPDATE cano_checkpoints SET kind = 'NONSENSE'")

    def stored() -> list[object]:
        with closing(sqlite3.connect(path)) as database:
            return database.execute("SELECT * FROM cano_checkpoints").fetchall()

    before = stored()
    answer = cano("resume", "shop:newer" if kind == "version" else "shop:workflow", "a")
    assert (answer.code, answer.out) == (Exit.REFUSED, "")
    assert answer.err.startswith("a: refused: ")
    assert stored() == before


def test_a_list_of_runs_names_the_workflow_and_the_last_error_of_each(shop: Path, cano: InProcess) -> None:
    cano("run", "shop:workflow", "FAIL", "--id", "a")
    head, line = (line.split() for line in cano("runs", LOG).out.splitlines())
    assert dict(zip(head, line, strict=True)) | {"AGE": ""} == {
        "ID": "a",
        "WORKFLOW": "shop",
        "STATE": "FAIL",
        "VISIT": "0",
        "AGE": "",
        "WINDOWS": "0",
        "RESUMES": "0",
        "ERROR": "ValueError",
    }
    (run,) = cano("runs", LOG, "--json").json
    assert (run["error_type"], run["error_category"]) == ("ValueError", "task_execution")
    assert datetime.fromisoformat(run["failed_at"]).utcoffset() == timedelta(0)
    assert "run a of shop: FAIL, 0 windows, progressed " in cano("show", LOG, "a").out
    assert "last error ValueError (task_execution)" in cano("show", LOG, "a").out
