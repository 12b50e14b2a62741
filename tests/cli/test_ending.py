"""From the moment that a command's exit code is known, no signal gives the process another one."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cano.cli.codes import Exit
from cano.cli.ending import Ending
from tests.cli.commands import InProcess, await_file, environment, finished, spawn

LATE = '''
import asyncio, atexit, os, signal, sys, threading, time, weakref
from pathlib import Path
from cano import *

WHEN = Path("when").read_text()


def hit():
    """The process hits itself with both signals: nothing is left to chance."""
    sys.stderr.write("hit\\n")
    sys.stderr.flush()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    time.sleep(0.01)


class Tail:
    def __del__(self, hit=hit):
        hit()


if WHEN == "atexit":
    atexit.register(hit)
if WHEN == "taking apart":
    tail = Tail()


async def linger():
    try:
        await asyncio.Event().wait()
    finally:
        if WHEN == "loop raises":
            sys.exit(9)
        hit()


async def task(ctx):
    if WHEN.startswith("loop"):
        task.lingering = asyncio.ensure_future(linger())
        await asyncio.sleep(0)
    if WHEN == "thread":
        asyncio.get_running_loop().run_in_executor(None, hang)
    if WHEN == "own thread":
        threading.Thread(target=hang).start()
    if Path("fail").exists():
        raise DoNotRetry("no")
    if Path("odd").exists():
        raise Odd
    return "end"


class Odd(BaseException):
    pass


def hang():
    Path("hanging").touch()
    while not Path("go").exists():
        time.sleep(0.01)


workflow = Workflow(name="late", checkpoint_store=SqliteCheckpointStore("runs.db"))
workflow.register("task", task).add_exit_state("end")
'''


@pytest.fixture
def late(shop: Path) -> Path:
    (shop / "late.py").write_text(LATE)
    return shop


RUN = ("run", "late:workflow", "task", "--id", "a", "--json")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("when", ["loop", "atexit", "taking apart"])
def test_a_signal_after_the_end_of_a_run_does_not_replace_its_code(late: Path, when: str, fails: bool) -> None:
    (late / "when").write_text(when)
    if fails:
        (late / "fail").touch()
    answer = finished(spawn(late, *RUN))
    assert "hit\n" in answer.err
    assert answer.code == (Exit.FAILED if fails else Exit.DONE)
    assert (answer.json["outcome"], answer.json["exit_code"]) == ("failed" if fails else "completed", answer.code)
    assert "Traceback" not in answer.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("when", ["thread", "own thread"])
def test_a_signal_ends_a_process_that_waits_for_a_thread_at_once_with_the_code_of_the_run(
    late: Path, when: str, number: signal.Signals
) -> None:
    (late / "when").write_text(when)
    process = spawn(late, *RUN)
    if when == "own thread":  # the document is there already
        assert process.stdout is not None
        out = "".join(iter(process.stdout.readline, "}\n")) + "}"
    else:
        await_end_of_run(late, process)
        out = ""
    process.send_signal(number)
    answer = finished(process)
    assert (answer.code, answer.err) == (Exit.DONE, "")
    assert json.loads(out + answer.out)["outcome"] == "completed"
    assert not (late / "go").exists(), "nobody let the thread go"


def test_a_run_that_an_odd_error_has_ended_is_over_too_while_a_thread_goes_on(late: Path) -> None:
    (late / "when").write_text("thread")
    (late / "odd").touch()
    process = spawn(late, *RUN)
    await_file(late / "hanging", process)
    for _ in range(2):  # the third one kills, if the run is not over
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    answer = finished(process)
    assert (answer.code, answer.json["error"]["type"]) == (Exit.FAILED, "Odd")


def test_what_was_left_running_does_not_replace_how_the_run_ended(late: Path) -> None:
    (late / "when").write_text("loop raises")
    answer = finished(spawn(late, *RUN))
    assert (answer.code, answer.json["outcome"]) == (Exit.DONE, "completed")


def test_a_reader_that_takes_nothing_does_not_keep_the_process(shop: Path) -> None:
    program = """if True:
        import sys
        from cano.cli.ending import Ending
        ending = Ending()
        ending.settle(3)
        sys.stdout = open(1, "w", buffering=2**20, closefd=False)
        print("x" * 2**19, end="")  # more than a pipe holds
        print("ready", file=sys.stderr, flush=True)
        import threading
        threading.Event().wait()
    """
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "ready\n"
        patience = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < patience:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        process.kill()
        assert process.returncode == 3


def await_end_of_run(directory: Path, process: subprocess.Popen[str]) -> None:
    """Wait until the log is gone, which is when the run has completed."""
    program = """if True:
        import asyncio, time
        from pathlib import Path
        from cano import SqliteCheckpointStore

        async def main():
            while not Path("hanging").exists() or await SqliteCheckpointStore("runs.db").list_runs():
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.3)  # what is left is the way out of the engine

        asyncio.run(main())
    """
    subprocess.run([sys.executable, "-c", program], cwd=directory, env=environment(), check=True, timeout=30)
    assert process.poll() is None


def test_a_command_within_a_program_leaves_its_signal_handlers_alone(shop: Path, cano: InProcess) -> None:
    def mine(number: int, frame: Any) -> None:
        raise AssertionError

    before = {number: signal.signal(number, mine) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        (shop / "go").touch()
        for arguments in (("run", "shop:workflow", "READ"), ("graph", "shop:workflow"), ("runs", "no.db"), ("jump",)):
            cano(*arguments)
            assert [signal.getsignal(number) for number in before] == [mine, mine], arguments
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def hit_oneself(program: str, number: signal.Signals) -> tuple[int, str]:
    """Run a program in which `hit()` sends it the signal."""
    text = f"import os\nfrom cano.cli.ending import Ending\ndef hit(): os.kill(os.getpid(), {int(number)})\n{program}"
    done = subprocess.run(
        [sys.executable, "-c", text], env=environment(), capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    ("program", "code", "out"),
    [
        ("ending = Ending(); ending.settle(3, lambda: print('said')); hit(); print('not here')", 3, "said\n"),
        ("ending = Ending(); ending.settle(3, lambda: (hit(), print('said'))); ending.tell(); print('not here')", 3, "said\n"),
        (
            "ending = Ending(); ending.settle(3, lambda: (print('half'), hit(), hit(), print('not here'))); ending.tell()",
            3,
            "half\n",
        ),
        ("ending = Ending(); ending.settle(3, lambda: 1 / 0); hit(); print('not here')", 3, ""),
        (
            "ending = Ending(); ending.settle(3, lambda: print('said')); ending.tell(); ending.tell(); print('here')",
            0,
            "said\nhere\n",
        ),
        ("print('buffered', end=''); ending = Ending(); ending.settle(3); hit(); print('not here')", 3, "buffered"),
    ],
)
def test_what_remains_to_be_said_is_said_once_before_the_process_ends(
    number: signal.Signals, program: str, code: int, out: str
) -> None:
    assert hit_oneself(program, number) == (code, out)


def test_until_the_code_is_known_a_signal_does_what_it_did() -> None:
    assert hit_oneself("ending = Ending(); ending.arm(); hit(); print('not here')", signal.SIGTERM)[0] == -signal.SIGTERM
    interrupted = "ending = Ending(); ending.arm()\ntry: hit()\nexcept KeyboardInterrupt: print('raised')"
    assert hit_oneself(interrupted, signal.SIGINT) == (0, "raised\n")
    ignored = "import signal; signal.signal(2, signal.SIG_IGN); ending = Ending(); ending.arm(); hit(); print('here')"
    assert hit_oneself(ignored, signal.SIGINT) == (0, "here\n")


def test_a_third_signal_kills_while_the_run_is_going_on(late: Path) -> None:
    (late / "block.py").write_text(
        "import os, signal, time\n"
        "from cano import *\n"
        "async def task(ctx):\n"
        "    for _ in range(3):\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        time.sleep(0.01)\n"
        "workflow = Workflow(name='block').register('task', task).add_exit_state('end')\n"
    )
    answer = finished(spawn(late, "run", "block:workflow", "task"))
    assert (answer.code, answer.out) == (-signal.SIGTERM, "")


def test_an_ending_can_be_made_in_any_thread() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            ending = Ending()
            ending.settle(0)
            ending.tell()
        except BaseException as error:
            failed.append(error)

    before = signal.getsignal(signal.SIGTERM)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert signal.getsignal(signal.SIGTERM) is before
