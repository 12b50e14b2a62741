"""What a seed may change in the order of callbacks, and what it may not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from cano.testing import simulate

ROOT = Path(__file__).parents[2]
SEEDS = range(60)


async def racing() -> str:
    seen: list[str] = []

    async def walk(name: str) -> None:
        for _ in range(4):
            seen.append(name)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(walk(name))
    return "".join(seen)


def test_without_a_seed_the_order_is_that_of_asyncio() -> None:
    assert simulate(racing) == asyncio.run(racing()) == "abcd" * 4


def test_different_seeds_give_different_orders_and_the_same_seed_the_same() -> None:
    orders = [simulate(racing, seed=seed) for seed in SEEDS]
    assert len(set(orders)) > 50
    assert orders == [simulate(racing, seed=seed) for seed in SEEDS]
    assert {order[:4] for order in orders} == {"abcd"}, "who was started first starts first"
    assert {order[4] for order in orders} == set("abcd"), "from then on any may come first"
    assert any("aaa" in order for order in orders), "and some are put off for more than a turn"


async def aborted() -> str:
    """In which order the asyncio tasks of a group are cancelled, which the group keeps in a set."""
    seen: list[str] = []

    async def wait(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(name)

    garbage = [object() for _ in range(id(seen) // 16 % 1000)]
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                garbage.append([object()] * (hash(str(number)) % 50))  # so that each process has its own places in memory
                group.create_task(wait(f"{number} "))
            await asyncio.sleep(1)
            raise ValueError
    except* ValueError:
        pass
    return "".join(seen)


def test_a_seed_means_the_same_in_every_process() -> None:
    script = """if True:
        from tests.testing.test_order import aborted, racing, simulate
        print([simulate(main, seed=seed) for seed in range(20) for main in (racing, aborted)])
    """
    here = [simulate(main, seed=seed) for seed in range(20) for main in (racing, aborted)]
    outputs = [
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={"PYTHONHASHSEED": str(hashing), "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for hashing in (0, 1, 2)
    ]
    assert outputs == [f"{here}\n".encode()] * 3


def test_what_one_callback_asks_for_is_done_in_that_order() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        seen: list[int] = []
        asyncio.create_task(racing())  # noqa: RUF006 - only there to disturb
        await asyncio.sleep(0)
        future = loop.create_future()
        for number in range(5):
            loop.call_soon(seen.append, number)
        for number in range(5, 8):
            future.add_done_callback(lambda _, number=number: seen.append(number))
        future.set_result(None)
        loop.call_soon_threadsafe(seen.append, 8)
        await asyncio.sleep(0)
        return seen

    for seed in SEEDS:
        assert simulate(main, seed=seed) == list(range(9))


def test_callbacks_that_are_no_steps_keep_their_order_whoever_asked_for_them() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        asked: list[int] = []
        done: list[int] = []

        async def ask() -> None:
            for _ in range(5):
                for _ in range(2):
                    asked.append(len(asked))
                    loop.call_soon(done.append, asked[-1])
                await asyncio.sleep(0)

        await asyncio.gather(*(ask() for _ in range(4)))
        assert done == asked == list(range(40))

    for seed in SEEDS:
        simulate(main, seed=seed)


def test_a_new_task_starts_before_the_one_that_made_it_goes_on_after_a_turn() -> None:
    async def main() -> bool:
        begun = asyncio.Event()

        async def other() -> None:
            begun.set()

        tasks = [asyncio.create_task(racing()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(other()))
        await asyncio.sleep(0)
        started = begun.is_set()
        await asyncio.wait(tasks)
        return started

    assert all(simulate(main, seed=seed) for seed in SEEDS)


def test_timers_of_one_instant_change_places_and_others_do_not() -> None:
    async def main() -> str:
        loop, seen = asyncio.get_running_loop(), []
        for name in "abc":
            loop.call_at(5, seen.append, name)
        for late, name in ((-1, "y"), (-2, "x"), (0, "z")):
            loop.call_at(late, seen.append, name)  # all of them are due at once
        await asyncio.sleep(6)
        return "".join(seen)

    orders = {simulate(main, seed=seed) for seed in SEEDS}
    assert {order[:3] for order in orders} == {"xyz"}
    assert len({order[3:] for order in orders}) == 6


def test_what_a_thread_hands_over_comes_in_its_order() -> None:
    async def main() -> list[int]:
        loop, seen = asyncio.get_running_loop(), []

        def hand_over() -> None:
            for number in range(50):
                loop.call_soon_threadsafe(seen.append, number)

        disturbing = asyncio.create_task(racing())
        await asyncio.to_thread(hand_over)
        await disturbing
        return seen

    for seed in range(10):
        assert simulate(main, seed=seed) == list(range(50))


def test_nothing_is_starved() -> None:
    async def main() -> float:
        ahead = 0
        stop = False

        async def spin() -> None:
            nonlocal ahead
            while not stop:
                ahead += 1
                await asyncio.sleep(0)

        spinning = asyncio.create_task(spin())
        for _ in range(2000):
            await asyncio.sleep(0)
        stop = True
        await spinning
        return ahead / 2000

    assert all(0.8 < simulate(main, seed=seed) < 1.25 for seed in range(10))


def test_no_time_passes_while_a_step_is_put_off() -> None:
    async def main() -> float:
        await asyncio.gather(*(racing() for _ in range(4)), asyncio.sleep(0.001))
        return asyncio.get_running_loop().time()

    assert {simulate(main, seed=seed) for seed in SEEDS} == {0.001}


def test_a_lost_update_is_found_by_some_seed_and_found_again_by_it() -> None:
    async def main() -> int:
        total = 0

        async def add(turns: int) -> None:
            nonlocal total
            for _ in range(turns):
                await asyncio.sleep(0)
            seen = total
            await asyncio.sleep(0)
            total = seen + 1

        await asyncio.gather(add(1), add(3))
        return total

    assert simulate(main) == 2, "asyncio's own order hides it"
    found = [seed for seed in SEEDS if simulate(main, seed=seed) != 2]
    assert found
    assert [simulate(main, seed=seed) for seed in found] == [1] * len(found)


def test_locks_queues_and_semaphores_keep_their_promises() -> None:
    async def main() -> None:
        queue: asyncio.Queue[int] = asyncio.Queue(2)
        lock, slots, inside, most = asyncio.Lock(), asyncio.Semaphore(2), 0, 0
        seen: list[int] = []

        async def produce() -> None:
            for number in range(20):
                await queue.put(number)

        async def consume() -> None:
            for _ in range(20):
                seen.append(await queue.get())

        async def enter(gate: Any) -> None:
            nonlocal inside, most
            async with gate:
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(produce(), consume(), *(enter(lock) for _ in range(9)))
        assert seen == list(range(20))
        assert most == 1
        await asyncio.gather(*(enter(slots) for _ in range(9)))
        assert most == 2

    for seed in SEEDS:
        simulate(main, seed=seed)
