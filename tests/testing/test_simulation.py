"""Time that jumps: what an hour costs, what a deadlock looks like, and what a seed may change and what not."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from cano import CancellationToken, ConfigurationError, SqliteCheckpointStore, Window, Workflow, WorkflowCancelledError, clock
from cano.testing import (
    Deadlock,
    Pause,
    ScriptedSource,
    VirtualTimeLoop,
    checkpoint_store_contract,
    every_crash_point,
    simulate,
    simulation,
)
from cano.testing.simulation import START
from tests.streams import Probe, numbers, run

ROOT = Path(__file__).parents[2]
SEEDS = range(40)


def elapsed(main: Any, **options: Any) -> tuple[float, Any]:
    """The virtual seconds that something took, and what it gave."""

    async def measured() -> tuple[float, Any]:
        began = asyncio.get_running_loop().time()
        result = await main()
        return asyncio.get_running_loop().time() - began, result

    return simulate(measured, **options)


def on_its_loop(main: Any) -> Any:
    """What something gives that is told the loop it runs on."""

    async def told() -> Any:
        return await main(asyncio.get_running_loop())

    return simulate(told)


# -- time ---------------------------------------------------------------------------------------------------------------


def test_a_day_passes_at_once_and_to_the_second() -> None:
    began = time.monotonic()
    assert elapsed(lambda: asyncio.sleep(86_400, "x")) == (86_400, "x")
    assert time.monotonic() - began < 5


def test_timeouts_wait_for_and_call_at_happen_when_they_are_due() -> None:
    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        seen: list[Any] = []
        loop.call_at(loop.time() + 7, lambda: seen.append(("call_at", loop.time())))
        loop.call_later(math.inf, seen.append, "never")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3):
                await asyncio.Event().wait()
        seen.append(("timeout", loop.time()))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(100), 2.5)
        seen.append(("wait_for", loop.time()))
        async with asyncio.TaskGroup() as group:
            for seconds in (30, 10, 20):
                group.create_task(asyncio.sleep(seconds))
        return [*seen, ("group", loop.time())]

    for seed in (None, *SEEDS):
        assert simulate(main, seed=seed) == [("timeout", 3), ("wait_for", 5.5), ("call_at", 7), ("group", 35.5)]


def test_a_timer_very_far_away_is_reached_and_one_in_the_past_is_due_at_once() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(1e12)
        past = asyncio.Event()
        loop.call_at(1.0, past.set)
        await past.wait()
        await asyncio.sleep(0.5)
        return loop.time()

    assert simulate(main, timeout=None) == 1e12 + 0.5


def test_the_clocks_of_cano_tell_virtual_time_while_it_lasts_in_threads_too() -> None:
    start = datetime(2031, 5, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    async def main() -> Any:
        await asyncio.sleep(5400)
        return clock.now(), clock.wall(), await asyncio.to_thread(clock.now)

    assert simulate(main, start=start) == (5400, datetime(2031, 5, 1, 11, 30, tzinfo=UTC), 5400)
    assert simulate(main)[1] == datetime(2024, 1, 1, 1, 30, tzinfo=UTC)
    assert abs(clock.wall() - datetime.now(UTC)) < timedelta(minutes=1)
    for wrong in (datetime(2031, 5, 1), "2031-05-01"):
        with pytest.raises(ConfigurationError, match="time zone"):
            simulate(main, start=wrong)  # type: ignore[arg-type]  # that is the point


def test_the_wall_clock_may_be_set_and_only_it() -> None:
    async def main(loop: VirtualTimeLoop) -> list[tuple[float, datetime]]:
        seen = []
        for step in (timedelta(hours=1), -7200.5, 0):
            loop.step_wall(step)
            await asyncio.sleep(1)
            seen.append((clock.now(), clock.wall()))
        return seen

    hour = timedelta(hours=1)
    assert on_its_loop(main) == [
        (1.0, START + hour + timedelta(seconds=1)),
        (2.0, START - hour + timedelta(seconds=1.5)),
        (3.0, START - hour + timedelta(seconds=2.5)),
    ]


def test_a_blocked_event_loop_is_late_for_what_was_due() -> None:
    async def main(loop: VirtualTimeLoop) -> list[float]:
        due: list[float] = []
        for delay in (1, 5, 9):
            loop.call_later(delay, lambda: due.append(loop.time()))
        await asyncio.sleep(2)
        loop.block(timedelta(seconds=4))
        assert due == [1], "it had no turn"
        assert (loop.time(), clock.now(), clock.wall()) == (6, 6, START + timedelta(seconds=6))
        await asyncio.sleep(4)
        return due

    assert on_its_loop(main) == [1, 6, 9]


@pytest.mark.parametrize("wrong", [float("inf"), float("nan"), "1", True])
def test_a_step_or_a_block_of_no_finite_duration_is_refused_and_changes_nothing(wrong: Any) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        for method, impossible in ((loop.step_wall, wrong), (loop.block, wrong), (loop.block, -1), (loop.step_wall, -1e12)):
            with pytest.raises(ConfigurationError):
                method(impossible)
        assert (loop.time(), loop.wall()) == (0, START)

    on_its_loop(main)


def test_a_time_window_of_an_hour_closes_with_a_silent_source() -> None:
    async def source(cursor: int | None) -> Any:
        yield 1
        await asyncio.sleep(5000)
        yield 2

    async def main() -> list[tuple[float, list[int]]]:
        seen: list[tuple[float, list[int]]] = []
        await run(Probe(source, window=Window(seconds=3600), flush=lambda outputs: seen.append((clock.now(), outputs))))
        return seen

    assert simulate(main) == [(3600, [1]), (5000, [2])]


def test_a_pause_takes_its_time() -> None:
    async def main() -> list[float]:
        return [clock.now() async for _ in ScriptedSource([1, Pause(timedelta(hours=1)), 2, Pause(0.5), 3]).after(None)]

    assert simulate(main) == [0, 3600, 3600.5]


def test_a_workflow_is_killed_at_every_append_in_virtual_time_too() -> None:
    def slow(sink: list[int]) -> Workflow[str]:
        async def wait(item: int) -> None:
            await asyncio.sleep(3600)

        task = Probe(numbers(1, 3), process=wait, flush=sink.extend)
        return Workflow[str]().register("work", task).add_exit_state("done")

    points = simulate(lambda: every_crash_point(slow, "work", between=["after"]))
    assert [point.seen for point in points] == [[1, 2, 3]] * 5


def test_time_beyond_the_limit_is_a_timeout_that_says_who_waits() -> None:
    async def every_minute() -> None:
        while True:
            await asyncio.sleep(60)

    with pytest.raises(TimeoutError, match=r"(?s)3600.0 s.*every_minute \(line \d+\) > sleep"):
        simulate(every_minute, timeout=timedelta(hours=1))


def test_those_who_are_cleaned_up_after_the_limit_may_still_wait() -> None:
    cleaned: list[str] = []

    async def main() -> None:
        await asyncio.sleep(9)
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(5)
            cleaned.append("yes")

    with pytest.raises(TimeoutError):
        simulate(main, timeout=10)
    assert cleaned == ["yes"]


# -- what never waits ------------------------------------------------------------------------------------------------------


async def spin(done: list[float]) -> int:
    turns = 0
    while not done:
        await asyncio.sleep(0)
        turns += 1
    return turns


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_loop_that_never_waits_takes_its_time(seed: int | None) -> None:
    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        done: list[float] = []
        loop.call_later(30, lambda: None)
        loop.call_later(7200, lambda: done.append(loop.time()))
        return [await spin(done), done, loop.time()]

    found = simulate(main, seed=seed)
    assert found[1:] == [[7200], 7200]
    assert 19_990 <= found[0] <= 20_000, "10,000 turns for each timer"
    assert simulate(main, seed=seed) == found


def test_what_is_busy_for_a_while_holds_the_clock_still() -> None:
    async def main() -> float:
        async with asyncio.timeout(0.001):
            for _ in range(9_000):
                await asyncio.sleep(0)
        await asyncio.sleep(1)
        async with asyncio.timeout(0.001):
            for _ in range(9_000):
                await asyncio.sleep(0)
        return clock.now()

    assert simulate(main) == 1


def test_a_limit_holds_for_what_never_waits_too() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(100, lambda: None)
        await spin([])

    with pytest.raises(TimeoutError, match="10.0 s have passed"):
        simulate(main, timeout=10)


@pytest.mark.parametrize("endless", [False, True])
def test_a_stream_that_is_always_ready_can_be_cancelled_by_a_timer_and_has_time_windows(endless: bool) -> None:
    async def always(cursor: int | None) -> Any:
        for number in itertools.count(1):
            yield number

    source = (lambda cursor: itertools.count(1)) if endless else always
    probe = Probe(source, window=Window(count=10**9, seconds=5))

    async def main() -> float:
        token = CancellationToken()
        asyncio.get_running_loop().call_later(8, token.cancel)
        with pytest.raises(WorkflowCancelledError):
            await run(probe, token=token)
        return clock.now()

    assert simulate(main) == 8
    assert [number for window in probe.flushed for number in window] == probe.processed
    assert len(probe.flushed) == 2


def test_going_round_without_end_is_an_error_that_says_who(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cano.testing.simulation._ENDLESS", 50_000)

    async def main(every: float | None) -> None:
        async def tick() -> None:
            while every:
                await asyncio.sleep(every)

        ticking = asyncio.create_task(tick(), name="ticking")
        await asyncio.create_task(spin([]), name="spinning")
        await ticking

    for every in (None, 60):
        for seed in (None, 5):
            with pytest.raises(
                Deadlock, match=r"(?s)50000 turns, and no end; these go round:\n  spinning: .*spin \(line \d+\)"
            ) as found:
                simulate(lambda: main(every), seed=seed)  # noqa: B023 - called at once
            assert "ticking" not in str(found.value)


def test_the_bound_of_what_never_ends_is_a_million_turns_in_a_row() -> None:
    assert simulation._ENDLESS == 1_000_000

    async def main() -> int:
        total = 0
        for _ in range(30):
            for _ in range(50_000):
                await asyncio.sleep(0)
                total += 1
            await asyncio.sleep(1)
        return total

    assert simulate(main) == 1_500_000


def test_a_loop_that_asks_a_thread_again_and_again_waits_for_it() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(None, time.sleep, 0.5)
        loop.call_later(1, lambda: None)
        while not answer.done():
            await asyncio.sleep(0)
        return loop.time()

    assert simulate(main) == 0


# -- an end --------------------------------------------------------------------------------------------------------------


def test_what_main_raises_is_raised_and_names_its_seed() -> None:
    async def main() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError) as failed:
        simulate(main, seed=77)
    assert failed.value.__notes__ == ["simulated with seed=77"]
    with pytest.raises(KeyError) as failed:
        simulate(main())
    assert not hasattr(failed.value, "__notes__")


def test_tasks_and_generators_that_are_left_are_ended() -> None:
    ended: list[str] = []

    async def forever() -> Any:
        try:
            await asyncio.sleep(10**6)
            yield
        finally:
            current = asyncio.current_task()
            ended.append("task" if current is not None and current.get_name() == "left" else "generator")

    async def numbers() -> Any:
        try:
            yield 1
        finally:
            ended.append("generator")

    async def main() -> int:
        left = asyncio.create_task(anext(forever()), name="left")
        generator = numbers()
        await anext(generator)
        main.kept = left, generator  # type: ignore[attr-defined]  # so that nothing is collected before the end
        await asyncio.sleep(1)
        return 5

    assert simulate(main) == 5
    assert sorted(ended) == ["generator", "task"]


def test_a_deadlock_is_an_error_that_names_functions_and_no_values() -> None:
    async def secret_waiter(secret: str) -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        asyncio.create_task(secret_waiter("hunter2"), name="helper-1").add_done_callback(lambda task: None)
        await asyncio.Queue().get()

    with pytest.raises(Deadlock) as found:
        simulate(main)
    text = str(found.value)
    assert "helper-1: " in text
    assert "secret_waiter (line" in text
    assert "Event.wait" in text
    assert "Queue.get" in text
    assert "hunter2" not in text


def test_a_deadlock_in_the_clean_up_does_not_hang_either() -> None:
    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        simulate(main)


def test_it_is_not_called_within_an_event_loop() -> None:
    async def inner() -> None: ...

    async def main() -> None:
        with pytest.raises(RuntimeError, match="plain function"):
            simulate(inner)
        with pytest.raises(RuntimeError, match="plain function"):
            simulate(inner())

    asyncio.run(main())


def test_the_loop_is_for_a_runner_too() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(asyncio.sleep(1000))
        assert runner.get_loop().time() == 1000
        runner.run(asyncio.sleep(1000))
        assert runner.get_loop().time() == 2000


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_ctrl_c_ends_it() -> None:
    async def main() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(10**9)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            simulate(main)
    finally:
        signal.signal(signal.SIGINT, before)


# -- threads -------------------------------------------------------------------------------------------------------------


def test_the_clock_stands_still_while_a_thread_works() -> None:
    pool = ThreadPoolExecutor(1)

    async def main() -> float:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(1):
            await asyncio.to_thread(time.sleep, 0.2)
            await loop.run_in_executor(pool, time.sleep, 0.2)
            await asyncio.wrap_future(pool.submit(time.sleep, 0.2))
        return loop.time()

    with pool:
        assert simulate(main) == 0
        assert simulate(main, seed=1) == 0


def test_a_sqlite_store_is_waited_for_whatever_timers_there_are(tmp_path: Path) -> None:
    async def main() -> float:
        store = SqliteCheckpointStore(tmp_path / "runs.db")
        ticking = asyncio.get_running_loop().call_later(0.000001, lambda: None)
        async with asyncio.timeout(0.001):
            await store.load_run("x")
            await checkpoint_store_contract_of_some(store)
        ticking.cancel()
        await store.close()
        return asyncio.get_running_loop().time()

    assert simulate(main) <= 0.000001


async def checkpoint_store_contract_of_some(store: Any) -> None:
    from cano.testing.contract import CLAUSES

    for clause in CLAUSES:
        if clause.number in (2, 3, 5, 7):
            await clause.check(store)


def test_a_sqlite_store_passes_its_contract_in_virtual_time(tmp_path: Path) -> None:
    began = time.monotonic()
    simulate(lambda: checkpoint_store_contract(lambda: SqliteCheckpointStore(tmp_path / "runs.db")), seed=3)
    assert time.monotonic() - began < 30


def test_a_stream_with_an_hour_long_window_on_a_sqlite_log_keeps_virtual_time(tmp_path: Path) -> None:
    async def source(cursor: int | None) -> Any:
        for number in range(1, 21):
            yield number
            await asyncio.sleep(1800)

    async def main() -> tuple[list[list[int]], float]:
        probe = Probe(source, window=Window(seconds=3600))
        async with SqliteCheckpointStore(tmp_path / "runs.db") as store:
            await run(probe, store)
        return probe.flushed, clock.now()

    began = time.monotonic()
    flushed, end = simulate(main)
    assert end == 20 * 1800
    assert [item for window in flushed for item in window] == list(range(1, 21))
    assert {len(window) for window in flushed[:-1]} <= {2, 3}
    assert time.monotonic() - began < 20


def test_a_thread_of_ones_own_is_listened_to_before_the_clock_jumps() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        thread = threading.Thread(target=lambda: (time.sleep(0.002), loop.call_soon_threadsafe(done.set)))
        thread.start()
        async with asyncio.timeout(1):
            await done.wait()
        thread.join()
        done.clear()
        late = threading.Thread(target=lambda: (time.sleep(0.2), loop.call_soon_threadsafe(done.set)))
        late.start()  # and without a timer it has more time
        await done.wait()
        late.join()
        return loop.time()

    assert simulate(main) == 0


def test_a_thread_that_waits_for_a_timer_does_not_hang_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cano.testing.simulation._PATIENCE", 0.2)

    async def main() -> float:
        loop = asyncio.get_running_loop()
        gate = threading.Event()
        for seconds in range(60):
            loop.call_later(seconds, lambda: None)
        loop.call_later(3600, gate.set)
        await asyncio.to_thread(gate.wait)
        return loop.time()

    began = time.monotonic()
    assert simulate(main) == 3600
    assert time.monotonic() - began < 6, "its patience ends only once"


def test_a_file_is_listened_to_before_the_clock_jumps() -> None:
    async def main() -> float:
        loop, spoken = asyncio.get_running_loop(), asyncio.Event()
        script = "import time; time.sleep(0.2); print('hello')"
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            loop.add_reader(process.stdout, spoken.set)
            await spoken.wait()
            loop.remove_reader(process.stdout)
        return loop.time()

    assert simulate(main) == 0


def test_a_subprocess_is_waited_for() -> None:
    async def main() -> tuple[bytes, float]:
        script = "import time; time.sleep(0.3); print('hello')"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
        return out.strip(), asyncio.get_running_loop().time()

    assert simulate(main) == (b"hello", 0)
