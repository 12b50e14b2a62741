"""What becomes of a stream when one of its items fails. Nothing here awaits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from cano.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class FailFast:
    """The first item error fails the run. Its item comes again after a resume."""


@dataclass(frozen=True, slots=True)
class SkipAndContinue:
    """A failed item is dropped. It counts as consumed as soon as the cursor of a later item is committed."""


@dataclass(frozen=True, slots=True)
class RetryOnError:
    """Tolerate up to `max_errors` item errors in a row, dropping the items; one more fails the run.

    Any success resets the count, which spans windows and starts at 0 in a resumed run. The item itself is not tried
    again.

    Raises:
        ConfigurationError: `max_errors` is negative or no int.
    """

    max_errors: int

    def __post_init__(self) -> None:
        if isinstance(self.max_errors, bool) or not isinstance(self.max_errors, int) or self.max_errors < 0:
            raise ConfigurationError("RetryOnError(max_errors) must be an int of 0 or more")


ErrorPolicy = FailFast | SkipAndContinue | RetryOnError


class ErrorBudget:
    """Applies a policy to the item errors of one opened stream."""

    __slots__ = ("_in_a_row", "_policy", "_successes")

    def __init__(self, policy: ErrorPolicy) -> None:
        self._policy = policy
        self._in_a_row = 0
        self._successes = 0

    def tolerates(self, successes: int) -> bool:
        """Whether one more item error is tolerated; `successes` counts the items that went well so far."""
        if successes != self._successes:
            self._successes, self._in_a_row = successes, 0
        self._in_a_row += 1
        match self._policy:
            case FailFast():
                return False
            case SkipAndContinue():
                return True
            case RetryOnError(max_errors):
                return self._in_a_row <= max_errors
            case other:
                assert_never(other)
