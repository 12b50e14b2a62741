"""For those who test against cano: what every checkpoint store has to pass."""

from cano.testing.contract import checkpoint_store_contract
from cano.testing.deadlock import Deadlock
from cano.testing.simulation import VirtualTimeLoop, simulate

__all__ = ["Deadlock", "VirtualTimeLoop", "checkpoint_store_contract", "simulate"]
