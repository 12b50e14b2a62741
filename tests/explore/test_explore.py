"""Thousands of schedules, each of them named by its seed: what fails here fails again with `python -m tests.explore`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.explore import engine, sagas, scheduler, splits, stores, streams


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What cano logs of sources that fail when they are stopped is of no interest here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


PARTS = {"streams": (streams.explore, 4000), "engine": (engine.explore, 1500), "sagas": (sagas.explore, 1500)}
PARTS |= {"splits": (splits.explore, 1500), "stores": (stores.explore, 1000), "sqlite": (stores.explore_sqlite, 60)}
PARTS |= {"scheduler": (scheduler.explore, 2000)}
QUARTERS = 4


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("quarter", range(QUARTERS))
def test_whatever_the_order_of_events_the_promises_hold(part: str, quarter: int) -> None:
    explore, seeds = PARTS[part]
    explore(range(seeds * quarter // QUARTERS, seeds * (quarter + 1) // QUARTERS))
