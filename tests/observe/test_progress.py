"""Live lines: what they say, that nothing in a name can disturb the terminal, and that it is given back."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cano import (
    ConfigurationError,
    FixedRetry,
    MemoryCheckpointStore,
    SkipAndContinue,
    Task,
    TaskConfig,
    TaskExecutionError,
)
from cano.observe.board import KEPT, SUMMARIES, Board
from cano.observe.progress import MOST, ProgressObserver
from cano.observer import RunEnded, RunStarted, WindowFlushed
from tests.streams import Probe, failing, machine, numbers, run, then_silence

ROOT = Path(__file__).parents[2]
SHOW, HIDE = "\x1b[?25h", "\x1b[?25l"

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("nothing_left")]


def terminal(height: int = 30, width: int = 160) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=width, height=height, color_system=None)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


async def shows(console: Console, *texts: str) -> str:
    """Wait until all of that has been on the screen."""
    async with asyncio.timeout(10):
        while not all(text in plain(written(console)) for text in texts):
            await asyncio.sleep(0.002)
    return plain(written(console))


async def test_a_run_has_a_line_while_it_goes_on_and_leaves_one(monkeypatch: Any) -> None:
    console, reached = terminal(), asyncio.Event()
    task = Probe(then_silence(7, reached), process=failing(2), on_item_error=SkipAndContinue())
    with ProgressObserver(console, refresh=0.005) as progress:
        running = asyncio.create_task(run(task, MemoryCheckpointStore(), observers=[progress], name="flow"))
        await shows(console, "flow r", "work", "6 items", "3 windows", "s ago", "/s", "1 dropped")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await shows(console, "flow r cancelled in work after ")
    text = written(console)
    assert "6 items in 3 windows" in plain(text)
    assert text.rindex(SHOW) > text.rindex(HIDE)
    assert [thread.name for thread in threading.enumerate() if thread.name == "cano-progress"] == []


async def test_several_runs_have_a_line_each_and_too_many_are_counted() -> None:
    console = terminal(height=8)

    async def work(ctx: Any) -> str:
        await asyncio.Event().wait()
        return "done"

    with ProgressObserver(console, refresh=0.005) as progress:
        flow = machine(work, observers=[progress], name="flow")
        runs = [asyncio.create_task(flow.orchestrate("work", workflow_id=f"run-{number:02}")) for number in range(43)]
        text = await shows(console, "run-00", "run-05", "+ 37 more")
        assert "run-06" not in text
        for task in runs:
            task.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    assert all(f"flow run-{number:02} cancelled in work" in plain(written(console)) for number in range(43))


async def test_a_name_is_no_markup_and_moves_no_cursor() -> None:
    console = terminal()

    async def work(ctx: Any) -> str:
        await shows(console, "[red]a[/red]\\x1b[2J [bold]id[/bold]")
        return "done"

    with ProgressObserver(console, refresh=0.005) as progress:
        flow = machine(work, observers=[progress], name="[red]a[/red]\x1b[2J")
        await flow.orchestrate("work", workflow_id="[bold]id[/bold]")
    assert "\x1b[2J" not in written(console)
    assert "[red]a[/red]\\x1b[2J [bold]id[/bold] completed in done" in plain(written(console))


async def test_retries_and_failures_are_shown_by_type_and_nothing_of_a_users() -> None:
    class Work(Task[str]):
        config = TaskConfig(retry=FixedRetry(2, 0))

        async def run(self, ctx: Any) -> str:
            ctx.data["key"] = "secret"
            raise ValueError("secret")

    console = terminal()
    with ProgressObserver(console) as progress, pytest.raises(Exception, match="failed 3 times"):
        await machine(Work(), observers=[progress]).orchestrate("work", workflow_id="r", data={"key": "secret"})
    assert "workflow r failed (RetryExhaustedError) in work after 0.0 s, 2 retries" in plain(written(console))
    assert "secret" not in written(console)


async def test_on_what_is_no_terminal_nothing_is_written_and_no_thread_is_there(monkeypatch: Any) -> None:
    file = io.StringIO()
    monkeypatch.setenv("FORCE_COLOR", "1")  # which rich takes for a terminal
    monkeypatch.setattr(sys, "stderr", file)
    for observer in (ProgressObserver(), ProgressObserver(Console(file=file, force_terminal=False))):
        with observer as progress:
            before = threading.active_count()
            await run(Probe(numbers(1, 5)), observers=[progress])
            assert threading.active_count() == before
    monkeypatch.setenv("TERM", "dumb")
    with ProgressObserver(Console(file=file, force_terminal=True)) as progress:
        await run(Probe(numbers(1, 5)), observers=[progress])
    assert file.getvalue() == ""


async def test_outside_its_block_it_shows_nothing_and_it_may_be_entered_again_but_not_twice_at_once() -> None:
    console = terminal()
    progress = ProgressObserver(console)
    await run(Probe(numbers(1, 5)), observers=[progress])
    assert written(console) == ""
    for _ in range(2):
        with progress:
            await run(Probe(numbers(1, 5)), observers=[progress])
            with pytest.raises(ConfigurationError, match="once"), progress:
                pass
    assert plain(written(console)).count("completed in done") == 2
    with pytest.raises(ConfigurationError):
        ProgressObserver(console, refresh=0)


async def test_the_lines_go_on_while_the_event_loop_is_blocked_and_lag_grows() -> None:
    console = terminal()

    def longest_lag() -> float:
        return max((float(lag) for lag in re.findall(r"([0-9.]+) s ago", plain(written(console)))), default=0.0)

    def block(item: int) -> None:
        if item == 3:
            deadline = time.monotonic() + 10
            while longest_lag() < 0.2 and time.monotonic() < deadline:
                time.sleep(0.01)  # blocks the loop, on purpose

    with ProgressObserver(console, refresh=0.01) as progress:
        await run(Probe(numbers(1, 4), process=block), observers=[progress])
    assert longest_lag() >= 0.2


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
async def test_whatever_ends_the_block_the_cursor_is_given_back(error: type[BaseException]) -> None:
    console = terminal()
    with pytest.raises(error), ProgressObserver(console, refresh=0.005):
        raise error
    assert written(console).rindex(SHOW) > written(console).rindex(HIDE)


async def test_a_terminal_that_has_gone_ends_the_showing_and_nothing_else(caplog: Any) -> None:
    class Gone(io.StringIO):
        gone = False

        def write(self, text: str) -> int:
            if self.gone:
                raise OSError("gone")
            return super().write(text)

    file = Gone()
    with ProgressObserver(Console(file=file, force_terminal=True), refresh=0.001) as progress:
        file.gone = True
        async with asyncio.timeout(10):
            while "not shown any more" not in caplog.text:
                await asyncio.sleep(0.001)
        with pytest.raises(TaskExecutionError):
            await run(Probe(numbers(1, 5), process=failing(1)), observers=[progress])
        assert await run(Probe(numbers(1, 5)), observers=[progress]) == "done"


async def test_very_many_ended_runs_are_summed_up() -> None:
    board = Board()
    for number in range(KEPT + 5):
        names: Any = {"run": number, "workflow_id": f"r{number}", "workflow": "w", "state": "s"}
        board.line(RunStarted(**names, resumed=False))
        board.ended(RunEnded(**names, outcome="completed" if number % 2 else "failed", seconds=1.0))
    lines = board.summaries()
    assert len(lines) == SUMMARIES + 1
    assert lines[-1] == "and 9,900 more: 4,950 completed, 4,950 failed"
    assert (board.summaries(), board.rows(0.0, MOST)) == ([], ([], 0))


async def test_a_rate_is_that_of_the_last_seconds() -> None:
    board = Board()
    names: Any = {"run": 1, "workflow_id": "r", "workflow": "w", "state": "s"}
    for second in range(60):
        board.window(WindowFlushed(**names, task="t", count=100 if second < 30 else 10, seconds=1.0, stopped=False))
        ((_, _, items, rate, windows, lag, _),), more = board.rows(float(second), MOST)
    assert (items, rate, windows, lag, more) == ("3,300 items", "10/s", "60 windows", "0.0 s ago", 0)
    ((*_, lag, _),), _ = board.rows(61.5, MOST)
    assert lag == "2.5 s ago"


PROGRAM = """
    import asyncio, os, signal
    from cano import Workflow
    from cano.observe.progress import ProgressObserver

    async def work(ctx):
        print("a line of the program's own")
        await asyncio.sleep(0.2)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)

    with ProgressObserver(refresh=0.01) as progress:
        workflow = Workflow(observers=[progress], name="flow").register("work", work).add_exit_state("done")
        asyncio.run(workflow.orchestrate("work", workflow_id="r"))
"""


def _on_a_terminal(program: Path, output: int | None = None) -> tuple[int, str]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    before = termios.tcgetattr(follower)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    output = follower if output is None else output
    command = [sys.executable, str(program)]
    with subprocess.Popen(command, stdin=follower, stdout=output, stderr=follower, env=environment) as child:
        text = b""
        while child.poll() is None or select.select([leader], [], [], 0)[0]:
            if select.select([leader], [], [], 0.05)[0]:
                text += os.read(leader, 65_536)
        code = child.returncode
    assert termios.tcgetattr(follower) == before
    os.close(follower)
    os.close(leader)
    return code, text.decode()


async def test_on_a_real_terminal_an_interrupt_leaves_it_as_it_was(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    code, text = await asyncio.to_thread(_on_a_terminal, program)
    assert code in (-signal.SIGINT, 130)
    assert "flow r  work" in plain(text)
    assert "a line of the program's own" in plain(text)
    assert "flow r cancelled in work" in plain(text)
    assert text.rindex(SHOW) > text.rindex(HIDE)


async def test_what_the_program_prints_goes_where_its_output_goes(tmp_path: Path) -> None:
    program, output = tmp_path / "program.py", tmp_path / "output"
    program.write_text(textwrap.dedent(PROGRAM))
    with output.open("w") as file:
        _, text = await asyncio.to_thread(_on_a_terminal, program, file.fileno())
    assert "flow r  work" in plain(text)
    assert "a line of the program" not in plain(text)
    assert output.read_text() == "a line of the program's own\n"
