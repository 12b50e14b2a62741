"""Processes killed with SIGKILL in the midst of steps, waits and nested runs, again and again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.crash.lives import live

CHILD = """
import asyncio, sys, time
from cano import Done, More, SqliteCheckpointStore, SteppedTask, SubWorkflow, TimerTask, Workflow

path, sink = sys.argv[1], open(sys.argv[2], "a", buffering=1)

class Steps(SteppedTask[str, int]):
    def __init__(self, name, then):
        self.name, self.then = name, then

    async def step(self, ctx, cursor):
        if cursor == 60:
            return Done(self.then)
        sink.write(f"{self.name} {cursor} {len(ctx.data)}" + chr(10))
        print("step", flush=True)
        ctx.data.append(cursor)
        return More((cursor or 0) + 1)

class Timer(TimerTask[str]):
    async def wait(self, ctx):
        sink.write("asked" + chr(10))
        return 0.5

    async def after_wait(self, ctx):
        sink.write(f"waited {len(ctx.data)} {time.time()}" + chr(10))
        return "done"

store = SqliteCheckpointStore(path)
inner = Workflow(checkpoint_store=store).register("deep", Steps("inner", "up")).add_exit_state("up")
flow = Workflow(checkpoint_store=store).register("steps", Steps("outer", "nest"))
flow.register("nest", SubWorkflow(inner, "deep", exits={"up": "timer"}, data=lambda ctx: []))
flow.register("timer", Timer()).add_exit_state("done")
print(asyncio.run(flow.orchestrate("steps", workflow_id="r", if_exists="resume", data=[])), flush=True)
"""


def test_steps_waits_and_nested_runs_survive_being_killed_again_and_again(tmp_path: Path) -> None:
    chance, sink, kills, began = random.Random(11), tmp_path / "sink.txt", 0, time.time()
    while True:
        if live(CHILD, str(tmp_path / "runs.db"), str(sink), patience=chance.randint(3, 30)):
            break
        kills += 1
    lines_ = [line.split() for line in sink.read_text().splitlines()]
    expected = [str(cursor) for cursor in [None, *range(1, 60)]]
    for name in ("outer", "inner"):
        steps = [line[1:] for line in lines_ if line[0] == name]
        assert list(dict.fromkeys(cursor for cursor, _ in steps)) == expected
        assert all(int(length) == (0 if cursor == "None" else int(cursor)) for cursor, length in steps)
    assert sum(line[0] in ("outer", "inner") for line in lines_) <= 120 + kills
    assert kills >= 4
    waited = [line for line in lines_ if line[0] == "waited"]
    assert [line[1] for line in waited] == ["60"]
    assert float(waited[0][2]) >= began + 0.5


def test_a_wait_that_was_killed_is_waited_to_its_end_and_no_longer(tmp_path: Path) -> None:
    sink = tmp_path / "sink.txt"
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD.replace("return 0.5", "return 2"), str(tmp_path / "runs.db"), str(sink)],
        stdout=subprocess.DEVNULL,
        env=os.environ,
    )
    while not sink.exists() or "asked" not in sink.read_text():
        time.sleep(0.01)
    asked = time.time()
    time.sleep(0.5)  # it waits now, and its deadline is durable
    child.send_signal(signal.SIGKILL)
    child.wait()
    again = CHILD.replace("return 0.5", "return 3600")
    subprocess.run([sys.executable, "-c", again, str(tmp_path / "runs.db"), str(sink)], check=True, stdout=subprocess.DEVNULL)
    text = sink.read_text()
    assert text.count("asked") == 1
    assert 1.9 <= float(text.split()[-1]) - asked < 30
