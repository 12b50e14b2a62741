"""For those who test against cano: what every checkpoint store has to pass."""

from cano.testing.contract import checkpoint_store_contract

__all__ = ["checkpoint_store_contract"]
