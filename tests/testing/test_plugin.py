"""The fixtures, in runs of pytest of their own: plain, under pytest-asyncio in strict mode, and under anyio's plugin."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTALLED = any(entry.value == "cano.testing.plugin" for entry in importlib.metadata.entry_points(group="pytest11"))
LOADED = () if INSTALLED else ("-p", "cano.testing.plugin")
FLOW = """
    from cano import StreamTask, Window, Workflow, clock
    from cano.testing import ScriptedSource, Pause

    class Read(StreamTask[str, tuple[int, str], str, int]):
        window = Window(seconds=3600)

        def __init__(self, sink, *script):
            self.sink, self.source = sink, ScriptedSource(script)

        def open(self, ctx, cursor):
            return self.source.after(cursor)

        async def process_item(self, ctx, item):
            return item[1], item[0]

        async def flush_window(self, ctx, outputs):
            self.sink.append((clock.now(), outputs))

        async def on_close(self, ctx, reason):
            return "done"

    def flow(store, observer, *script):
        sink = []
        built = Workflow(checkpoint_store=store, observers=[observer]).register("read", Read(sink, *script))
        return built.add_exit_state("done"), sink
"""
PLAIN = """
    def test_plain(simulate, checkpoint_store, recording_observer, manual_clock):
        manual_clock.advance(5)
        built, sink = flow(checkpoint_store, recording_observer, "a", Pause(5000), "b")
        assert simulate(lambda: built.orchestrate("read", workflow_id="r"), seed=5) == "done"
        assert sink == [(3600, ["a"]), (5000, ["b"])]
        recording_observer.assert_path("read", "done")
        assert clock.now() == 5

    def test_the_next_test_has_new_ones(checkpoint_store, recording_observer, sqlite_checkpoint_store, tmp_path, simulate):
        assert recording_observer.events == []
        assert simulate(lambda: checkpoint_store.list_runs()) == []
        assert simulate(lambda: sqlite_checkpoint_store.list_runs()) == []
        built, sink = flow(sqlite_checkpoint_store, recording_observer, "a", Pause(5000), "b")
        assert simulate(lambda: built.orchestrate("read", workflow_id="r")) == "done"
        assert [when for when, _ in sink] == [3600, 5000]
        assert (tmp_path / "checkpoints.db").exists()
"""
ASYNC = """
    import pytest

    {mark}

    async def test_async(checkpoint_store, sqlite_checkpoint_store, recording_observer):
        for store in (checkpoint_store, sqlite_checkpoint_store):
            built, sink = flow(store, recording_observer, "a", "b")
            assert await built.orchestrate("read", workflow_id="r") == "done"
            assert [outputs for _, outputs in sink] == [["a", "b"]]
        assert recording_observer.path == ["read", "done"] * 2
"""
LOOP = """
    import pytest

    @pytest.mark.asyncio
    async def test_an_hour(recording_observer):
        built, sink = flow(None, recording_observer, "a", Pause(5000), "b")
        began = clock.now()
        assert await built.orchestrate("read") == "done"
        assert [(when - began, outputs) for when, outputs in sink] == [(3600, ["a"]), (5000, ["b"])]
"""
FACTORY = """
from cano.testing import VirtualTimeLoop

def pytest_asyncio_loop_factories(config, item):
    return {"virtual": VirtualTimeLoop}
"""
LOOP_OF_ANYIO = """
    import pytest
    from cano.testing import VirtualTimeLoop

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend():
        return "asyncio", {"loop_factory": VirtualTimeLoop}

    async def test_an_hour(recording_observer):
        built, sink = flow(None, recording_observer, "a", Pause(5000), "b")
        began = clock.now()
        assert await built.orchestrate("read") == "done"
        assert [(when - began, outputs) for when, outputs in sink] == [(3600, ["a"]), (5000, ["b"])]
"""
ANYIO = """pytestmark = pytest.mark.anyio

    @pytest.fixture
    def anyio_backend():
        return "asyncio"
"""


def run(folder: Path, *options: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Run pytest over files; each has the flow above."""
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(textwrap.dedent(FLOW) + textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *LOADED, "-W", "error", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "files", "passed"),
    [
        pytest.param(("-p", "no:asyncio", "-p", "no:anyio"), {"plain": PLAIN}, 2, id="plain"),
        pytest.param(
            ("-p", "no:anyio", "-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function"),
            {"plain": PLAIN, "async": ASYNC.format(mark="pytestmark = pytest.mark.asyncio")},
            3,
            id="pytest-asyncio strict",
        ),
        pytest.param(("-p", "no:asyncio"), {"plain": PLAIN, "async": ASYNC.format(mark=ANYIO)}, 3, id="anyio"),
        pytest.param(("-p", "no:asyncio"), {"loop": LOOP_OF_ANYIO}, 1, id="anyio on virtual time"),
        pytest.param(
            ("-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function", "-W", "default"),
            {"one": ASYNC.format(mark="pytestmark = pytest.mark.asyncio"), "two": ASYNC.format(mark=ANYIO)},
            2,
            id="both",
        ),
    ],
)
def test_the_fixtures_work_with(options: tuple[str, ...], files: dict[str, str], passed: int, tmp_path: Path) -> None:
    finished = run(tmp_path, *options, **files)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert f"{passed} passed" in finished.stdout


def test_pytest_asyncio_can_be_given_the_virtual_loop(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(FACTORY)
    finished = run(tmp_path, "-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function", loop=LOOP)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "1 passed" in finished.stdout
