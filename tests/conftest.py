"""Fixtures for all tests."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio


@pytest_asyncio.fixture
async def nothing_left() -> AsyncIterator[None]:
    """No asyncio task outlives its run, and no exception is lost on the way (BR-133)."""
    loop = asyncio.get_running_loop()
    lost: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda loop, context: lost.append(context))
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if task is not asyncio.current_task()}
    assert left == set()
    gc.collect()
    for _ in range(3):
        await asyncio.sleep(0)
    assert lost == []
