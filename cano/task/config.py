"""TaskConfig: how a task's attempts are run."""

from __future__ import annotations

from dataclasses import dataclass

from cano.clock import Duration, seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """How a task's attempts are run.

    attempt_timeout: the longest one `process_item` may take, in seconds or as a timedelta; None for no limit. An item
                     that takes longer fails with `AttemptTimeoutError`, an ordinary item error.

    Raises:
        ConfigurationError: the timeout is negative or no duration.
    """

    attempt_timeout: Duration | None = None

    def __post_init__(self) -> None:
        if self.attempt_timeout is not None:
            seconds(self.attempt_timeout, "attempt_timeout")
