"""For those who test what they build with cano.

simulate, VirtualTimeLoop, Deadlock      hours in milliseconds, and races found by a seed
ManualClock                              a clock for code without an event loop
every_crash_point, CrashPoint            a workflow killed at each durable write, and resumed
ScriptedSource, Pause, Fail, Crash       a source that gives, waits, fails and dies as it is told
FaultyStore, Crashed                     a checkpoint store that fails, stalls or dies
RecordingObserver                        what a run told its observers
checkpoint_store_contract                what every checkpoint store has to pass
"""

from cano.testing.contract import checkpoint_store_contract
from cano.testing.crash import Crashed
from cano.testing.crashes import CrashPoint, every_crash_point
from cano.testing.deadlock import Deadlock
from cano.testing.faults import FaultyStore
from cano.testing.manual import ManualClock
from cano.testing.recorder import RecordingObserver
from cano.testing.script import Crash, Fail, Pause, ScriptedSource
from cano.testing.simulation import VirtualTimeLoop, simulate

__all__ = [
    "Crash",
    "CrashPoint",
    "Crashed",
    "Deadlock",
    "Fail",
    "FaultyStore",
    "ManualClock",
    "Pause",
    "RecordingObserver",
    "ScriptedSource",
    "VirtualTimeLoop",
    "checkpoint_store_contract",
    "every_crash_point",
    "simulate",
]
