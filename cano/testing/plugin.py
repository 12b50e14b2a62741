"""The pytest plugin: fixtures for whoever tests with cano.

checkpoint_store          an empty `MemoryCheckpointStore`
sqlite_checkpoint_store   an empty `SqliteCheckpointStore` in the test's own folder
recording_observer        a `RecordingObserver`
manual_clock              a `ManualClock` that tells the time while the test runs
simulate                  `cano.testing.simulate`; for a test that is a plain function

None is async, so they are the same for pytest-asyncio (strict or auto), for anyio's plugin, and for plain functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cano.recovery.memory import MemoryCheckpointStore
from cano.recovery.sqlite import SqliteCheckpointStore
from cano.testing import simulation
from cano.testing.manual import ManualClock
from cano.testing.recorder import RecordingObserver


@pytest.fixture
def checkpoint_store() -> MemoryCheckpointStore:
    """An empty checkpoint store in memory."""
    return MemoryCheckpointStore()


@pytest.fixture
def sqlite_checkpoint_store(tmp_path: Path) -> SqliteCheckpointStore:
    """An empty checkpoint store on SQLite, in the folder of this test. Each event loop closes its connections itself."""
    return SqliteCheckpointStore(tmp_path / "checkpoints.db")


@pytest.fixture
def recording_observer() -> RecordingObserver:
    """An observer that keeps every event."""
    return RecordingObserver()


@pytest.fixture
def manual_clock() -> Iterator[ManualClock]:
    """A clock that stands still until it is advanced; `cano.clock` tells its time while the test runs."""
    with ManualClock() as clock:
        yield clock


@pytest.fixture
def simulate() -> Callable[..., Any]:
    """Runs a coroutine function to its end in virtual time: `simulate(main, seed=...)`."""
    return simulation.simulate
