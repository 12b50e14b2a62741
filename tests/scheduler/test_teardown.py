"""The end of a stop: every teardown has its turn, and nothing goes on behind the back of whoever stopped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cano import Resource, WorkflowError
from cano.scheduler.scheduler import Scheduler
from cano.scheduler.session import GRACE
from cano.testing import VirtualTimeLoop
from tests.scheduler.runs import Runs, play

HANGS = 1e6


class Slow(Resource):
    """Takes its time to go, and notes when it went, or was cut."""

    def __init__(self, seconds: float, *, deaf: int = 0, setup: float = 0.0) -> None:
        self.seconds, self.deaf, self.setup_takes = seconds, deaf, setup
        self.state = "down"
        self.at = 0.0

    async def setup(self) -> None:
        self.state = "setting up"
        await asyncio.sleep(self.setup_takes)
        self.state = "up"

    async def teardown(self) -> None:
        self.state = "going down"
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.seconds
        while loop.time() < ends:
            try:
                await asyncio.sleep(ends - loop.time())
            except asyncio.CancelledError:
                self.deaf -= 1
                if self.deaf < 0:
                    self.state, self.at = "cut", loop.time()
                    raise
        self.state, self.at = "down", loop.time()


def scheduler_of(moments: VirtualTimeLoop, *flows: list[Slow], stop_timeout: float = 10.0) -> Scheduler:
    """A flow `f0`, `f1`, ... for each; they go down from the last to the first."""
    scheduler = Scheduler(stop_timeout=stop_timeout)
    for number, resources in enumerate(flows):
        named: dict[str, Any] = {f"r{place}": resource for place, resource in enumerate(resources)}
        scheduler.manual(f"f{number}", Runs(resources=named).workflow, "start")
    return scheduler


def since(began: float) -> float:
    return asyncio.get_running_loop().time() - began


def test_each_teardown_that_hangs_is_cut_in_its_turn_and_named(caplog: pytest.LogCaptureFixture) -> None:
    """BR-36."""

    async def main(moments: VirtualTimeLoop) -> None:
        slow = [Slow(HANGS), Slow(1.0), Slow(HANGS)]
        scheduler = scheduler_of(moments, *([one] for one in slow))
        await scheduler.start()
        await scheduler.stop()
        assert [(one.state, one.at) for one in slow] == [("cut", 11.0 + GRACE), ("down", 11.0), ("cut", 10.0)]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        for one in slow:
            one.seconds = 0.0
        async with scheduler:
            assert await scheduler.trigger("f0") == "done"

    play(main)
    assert [record.getMessage() for record in caplog.records] == [
        f"the resources of flow {name} did not tear down in time, and are cancelled" for name in ("f2", "f0")
    ]


def test_of_one_flow_too_each_resource_has_its_turn() -> None:
    async def main(moments: VirtualTimeLoop) -> None:
        slow = [Slow(HANGS), Slow(HANGS), Slow(HANGS)]
        scheduler = scheduler_of(moments, slow)
        await scheduler.start()
        await scheduler.stop()
        assert [(one.state, one.at) for one in slow] == [("cut", 10.0 + 2 * GRACE), ("cut", 10.0 + GRACE), ("cut", 10.0)]

    play(main)


@pytest.mark.parametrize("cancels", [(1.0,), (1.0, 1.0), (1.0, 1.5), (1.0, 2.0, 2.5, 3.5)])
@pytest.mark.parametrize("when", ["stop", "start", "block"])
def test_a_cancelled_stop_returns_when_everything_is_down(cancels: tuple[float, ...], when: str) -> None:
    async def main(moments: VirtualTimeLoop) -> None:
        slow = [Slow(3.0), Slow(3.0), Slow(3.0, setup=5.0 if when == "start" else 0.0)]
        scheduler = scheduler_of(moments, *([one] for one in slow), stop_timeout=900.0)

        async def live() -> None:
            if when == "block":
                async with scheduler:
                    pass
            else:
                await scheduler.start()
                await scheduler.stop()

        living = asyncio.create_task(live())
        loop = asyncio.get_running_loop()
        for at in cancels:
            await asyncio.sleep(at - loop.time())
            living.cancel()
        await asyncio.wait([living])
        assert living.cancelled()
        assert [one.state for one in slow if one.state not in ("cut", "down", "setting up")] == []
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert loop.time() <= cancels[0] + 3 * GRACE + 1
        for one in slow:
            one.setup_takes = 0.0
        async with scheduler:
            assert [one.state for one in slow] == ["up"] * 3

    play(main)


def test_a_cancel_cuts_the_teardown_that_goes_on_and_no_other() -> None:
    async def main(moments: VirtualTimeLoop) -> None:
        quick, hangs = Slow(1.0), Slow(HANGS)
        scheduler = scheduler_of(moments, [quick], [hangs], stop_timeout=900.0)
        await scheduler.start()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3.0):
                await scheduler.stop()
        assert [(one.state, one.at) for one in (hangs, quick)] == [("cut", 3.0), ("down", 4.0)]

    play(main)


def test_a_teardown_that_no_cancel_ends_is_left_behind_in_time_and_never_overlapped(caplog: pytest.LogCaptureFixture) -> None:
    """BR-36."""

    async def main(moments: VirtualTimeLoop) -> None:
        deaf, other = Slow(3600.0, deaf=99), Slow(1.0)
        scheduler = scheduler_of(moments, [other], [deaf])
        await scheduler.start()
        began = asyncio.get_running_loop().time()
        await scheduler.stop()
        assert since(began) == pytest.approx(10.0 + GRACE)
        assert "the resources of flow f1 do not tear down although cancelled" in caplog.text
        await scheduler.stop()
        with pytest.raises(WorkflowError, match="the resources of flow f1, which an earlier stop left behind"):
            await scheduler.start()
        assert since(began) == pytest.approx(10.0 + GRACE), "neither waits"
        await asyncio.sleep(3600)
        assert (deaf.state, other.state) == ("down", "down"), "what is left goes down when it can"
        deaf.seconds = 0.0
        async with scheduler:
            assert await scheduler.trigger("f1") == "done"

    play(main)


def test_impatience_does_not_leave_a_teardown_behind_that_only_needs_a_moment() -> None:
    async def main(moments: VirtualTimeLoop) -> None:
        slow = Slow(1.5, deaf=99)
        scheduler = scheduler_of(moments, [slow])
        await scheduler.start()
        stopping = asyncio.create_task(scheduler.stop())
        for _ in range(5):
            await asyncio.sleep(0.1)
            stopping.cancel()
        await asyncio.wait([stopping])
        assert (slow.state, slow.at, since(0.0)) == ("down", 1.5, 1.5)

    play(main)


def test_a_set_up_that_no_cancel_ends_is_named_as_one(caplog: pytest.LogCaptureFixture) -> None:
    class Deaf(Slow):
        async def setup(self) -> None:
            try:
                await asyncio.sleep(HANGS)
            except asyncio.CancelledError:
                await asyncio.sleep(HANGS)

    async def main(moments: VirtualTimeLoop) -> None:
        scheduler = scheduler_of(moments, [Deaf(0.0)], stop_timeout=5.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await scheduler.start()
        assert since(0.0) == pytest.approx(6.0)

    play(main)
    assert "the resources of flow f0 did not set up in time" in caplog.text
