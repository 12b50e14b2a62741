"""One fire of a flow: what is awaited, cancelled, and in the end known of it."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cano.cancel import CancellationToken
from cano.errors import WorkflowCancelledError, WorkflowError
from cano.scheduler.status import FireOutcome


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run came to: its exit state, or what it raised."""

    value: Any = None
    error: BaseException | None = None


class Fire:
    """One fire of a flow, from the moment it begins. `await fire` gives the exit state, or raises what the run raised;
    `WorkflowCancelledError` if it was stopped.

    It may be awaited any number of times, in the event loop of the scheduler, or not at all.

    Cancellation: of whoever awaits it does nothing to the run; call `cancel`.
    """

    __slots__ = ("_result", "began", "due", "epoch", "flow", "outcome", "resumed", "started_at", "task", "token", "workflow_id")

    def __init__(self, flow: str, workflow_id: str, due: datetime, *, began: float, started_at: datetime, epoch: int) -> None:
        self.flow = flow
        self.workflow_id = workflow_id
        self.due = due
        self.began = began
        self.started_at = started_at
        self.epoch = epoch
        self.token = CancellationToken()
        self.task: asyncio.Task[Ended] | None = None
        self.resumed = False
        self.outcome: FireOutcome | None = None
        self._result: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def __repr__(self) -> str:
        return f"<Fire of {self.flow}: {'going on' if self.outcome is None else self.outcome.kind}>"

    @property
    def done(self) -> bool:
        """Whether the run has ended; `outcome` then says how, and is None before."""
        return self._result.done()

    def cancel(self, rollback: bool = False) -> bool:
        """Stop this run, and only this: it drains. False if it has ended already. Like `CancellationToken.cancel`."""
        if self.done:
            return False
        self.token.cancel(rollback)
        return True

    def settle(self, ended: Ended, outcome: FireOutcome) -> None:
        """The fire is over; whoever awaits it is told. Scheduler use."""
        self.outcome = outcome
        self._result.set_result(ended)

    def __await__(self) -> Generator[Any, None, Any]:
        if current.get() is self and not self.done:
            raise WorkflowError(f"the run of flow {self.flow} awaits its own end, which would never come")
        ended = yield from asyncio.shield(self._result).__await__()
        if isinstance(ended.error, asyncio.CancelledError):  # it is the run's, not that of whoever awaits this
            raise WorkflowCancelledError(f"the run of flow {self.flow} was stopped") from ended.error
        if ended.error is not None:
            raise ended.error
        return ended.value


current: ContextVar[Fire | None] = ContextVar("cano-fire", default=None)
"""The fire in whose run the code is."""
