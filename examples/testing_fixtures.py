"""The fixtures that pytest finds once cano is installed, and a clock that a test moves by hand.

The tests below are an ordinary file of tests: `python -m pytest examples/testing_fixtures.py` runs them too. A breaker
that stays open for a minute is tested without waiting for one, and so is a stream whose window lasts an hour.

Prints:
    ...                                                                      [100%]
    3 passed
"""

import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from cano import CircuitBreaker, CircuitOpenError, Context, SqliteCheckpointStore, Task, Workflow
from cano.testing import ManualClock, Pause, RecordingObserver, ScriptedSource


class Greet(Task[str]):
    async def run(self, ctx: Context[None]) -> str:
        return "done"


def test_an_open_breaker_lets_a_trial_through_after_a_minute(manual_clock: ManualClock) -> None:
    breaker = CircuitBreaker(failure_threshold=1, reset_timeout=60)
    breaker.acquire().failure()
    manual_clock.advance(59)
    with pytest.raises(CircuitOpenError):
        breaker.acquire()
    manual_clock.advance(1)
    breaker.acquire().success()


@pytest.mark.asyncio
async def test_a_run_takes_its_path_and_leaves_no_log(
    sqlite_checkpoint_store: SqliteCheckpointStore, recording_observer: RecordingObserver
) -> None:
    workflow = Workflow[str](checkpoint_store=sqlite_checkpoint_store, observers=[recording_observer])
    workflow.register("greet", Greet()).add_exit_state("done")
    assert await workflow.orchestrate("greet", workflow_id="one") == "done"
    recording_observer.assert_path("greet", "done")
    assert await sqlite_checkpoint_store.list_runs() == []


def test_what_lasts_an_hour_takes_no_time(simulate: Callable[..., Any]) -> None:
    async def read() -> list[str]:
        source: AsyncIterator[tuple[int, str]] = ScriptedSource[str](["first", Pause(3600), "second"]).after(None)
        return [item async for _, item in source]

    assert simulate(read) == ["first", "second"]


def main() -> None:
    command = [sys.executable, "-m", "pytest", __file__, "-q", "-p", "no:cacheprovider", "-o", "addopts="]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    print(re.sub(r"\n+(\d+ \w+) in .*", r"\n\1", finished.stdout.replace("=", "")), end="")


if __name__ == "__main__":
    main()
