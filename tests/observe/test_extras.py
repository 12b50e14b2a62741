"""The libraries behind the observers are extras: loaded on first use, and asked for by name if they are missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cano
from cano import ConfigurationError
from cano.observe.opentelemetry import OpenTelemetryObserver
from cano.observe.progress import ProgressObserver
from cano.observe.prometheus import PrometheusObserver

ROOT = Path(__file__).parents[2]


def test_importing_the_observers_loads_no_extra() -> None:
    rooms = ", ".join(f"cano.observe.{path.stem}" for path in sorted((Path(cano.__file__).parent / "observe").glob("[a-z]*.py")))
    assert "cano.observe.prometheus" in rooms
    program = f"""
import sys
import cano, {rooms}
print(sorted({{"prometheus_client", "opentelemetry", "rich"}} & set(sys.modules)))
"""
    finished = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=50)
    assert finished.stdout == "[]\n"


@pytest.mark.parametrize(
    ("make", "module", "extra"),
    [
        (PrometheusObserver, "prometheus_client", "prometheus"),
        (OpenTelemetryObserver, "opentelemetry", "otel"),
        (ProgressObserver, "rich.console", "progress"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(make: Callable[[], Any], module: str, extra: str, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=rf"pip install cano\[{extra}\]"):
        make()
