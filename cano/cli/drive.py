"""Running and resuming a workflow, with signals as its brake, and saying how it ended."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Literal

from cano.cancel import CancellationToken, cancel_on_signals
from cano.cli.codes import CommandError, Exit, code_of
from cano.cli.output import complain, say, say_json
from cano.cli.target import state_called, workflow_at
from cano.cli.text import printable
from cano.errors import CanoError, TaskExecutionError, WorkflowCancelledError, label_text
from cano.workflow.workflow import Workflow

IfExists = Literal["error", "resume", "discard"]
Settle = Callable[["Ended"], None]
Life = Callable[[CancellationToken], Coroutine[Any, Any, Any]]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended. `resumable` says whether it has a log to go on with; None if that could not be found out."""

    workflow_id: str | None
    workflow: str
    state: Any = None
    error: BaseException | None = None
    resumable: bool | None = False

    @property
    def code(self) -> int:
        """The exit code."""
        return Exit.DONE if self.error is None else code_of(self.error)

    @property
    def outcome(self) -> str:
        """How it ended, in a word or two."""
        if isinstance(self.error, SystemExit):
            return "exited"
        return "interrupted" if isinstance(self.error, KeyboardInterrupt) else WORDS[self.code]


def run_here(target: str, label: str, *, workflow_id: str | None, data: str | None, if_exists: IfExists, settle: Settle) -> Ended:
    """`cano run`: run a workflow from a state to its end, here. `settle` is told how it ended as soon as that is known."""
    workflow = workflow_at(target)
    state, value = state_called(workflow, label), _data(workflow, data)
    if workflow_id is None and workflow.checkpoint_store is not None:
        workflow_id = uuid.uuid4().hex
        complain(f"run {workflow_id}")  # at once: it is needed to resume the run if this process is killed

    async def life(token: CancellationToken) -> Any:
        return await workflow.orchestrate(state, workflow_id=workflow_id, token=token, data=value, if_exists=if_exists)

    return _lived(workflow, workflow_id, life, settle)


def resume_here(target: str, workflow_id: str, *, settle: Settle) -> Ended:
    """`cano resume`: go on with an unfinished run, here. `settle` is told how it ended as soon as that is known."""
    workflow = workflow_at(target)

    async def life(token: CancellationToken) -> Any:
        if workflow.checkpoint_store is not None and not await workflow.checkpoint_store.load_run(workflow_id):
            raise CommandError(Exit.NOT_FOUND, f"no run {workflow_id!r}: it was never started, or has completed")
        return await workflow.resume_from(workflow_id, token=token)

    return _lived(workflow, workflow_id, life, settle)


def _data(workflow: Workflow[Any, Any], text: str | None) -> Any:
    if text is None:
        return None
    codec = workflow._planned().data
    try:
        return codec.decode(text.encode("utf-8", "surrogateescape"))
    except TaskExecutionError:
        raise CommandError(Exit.USAGE, "--data is not the JSON of what this workflow declares as its data") from None


def _lived(workflow: Workflow[Any, Any], workflow_id: str | None, life: Life, settle: Settle) -> Ended:
    """See a run to its end; the first signal drains it, the second aborts the drain, the third kills. How it ended is
    settled before the event loop is taken down, which may wait for threads of the user's.
    """
    ended = Ended(workflow_id, workflow.name, resumable=None)
    known = False

    def settled(**how: Any) -> Ended:
        nonlocal ended, known
        ended, known = replace(ended, **how), True
        settle(ended)
        return ended

    async def whole() -> Ended:
        try:
            end = await life(token)
        except _OF_THE_LOOP:
            raise
        except BaseException as error:
            settled(error=error)
            return settled(resumable=await _resumable(workflow, workflow_id))
        return settled(state=end, resumable=False)

    with cancel_on_signals(CancellationToken()) as token:
        try:
            return asyncio.run(whole())
        except BaseException as error:
            if known:  # raised by what was left running, which is no part of the run
                return ended
            settled(error=error)
            return settled(resumable=asyncio.run(_resumable(workflow, workflow_id)))


_OF_THE_LOOP = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)
"""What asyncio lets through, or cancels everything with: the loop is no good any more."""


async def _resumable(workflow: Workflow[Any, Any], workflow_id: str | None) -> bool | None:
    """Whether there is a log to go on with. It is read rather than guessed: a clean rollback has removed it."""
    if workflow.checkpoint_store is None or workflow_id is None:
        return False
    try:
        return bool(await workflow.checkpoint_store.load_run(workflow_id))
    except Exception:
        return None


WORDS: dict[int, str] = {
    Exit.DONE: "completed",
    Exit.FAILED: "failed",
    Exit.USAGE: "usage",
    Exit.CANCELLED: "cancelled",
    Exit.TIMED_OUT: "timed out",
    Exit.NOT_FOUND: "not found",
    Exit.OWNED: "owned",
    Exit.REFUSED: "refused",
    Exit.EXISTS: "exists",
}


def report(ended: Ended, *, as_json: bool) -> None:
    """Say how a run ended: success on stdout, anything else on stderr; and all of it as JSON on stdout if asked for."""
    name = ended.workflow_id or ended.workflow
    if ended.error is None:
        line = f"{name}: completed in {label_text(ended.state)}"
    else:
        line = f"{name}: {ended.outcome}: {told(ended.error)}"
        line += _REMEDY[ended.resumable] if ended.outcome in _ENDED else ""
    if as_json:
        say_json(_described(ended))
    if ended.error is not None:
        complain(printable(line))
    elif not as_json:
        say(printable(line))


_ENDED = ("failed", "cancelled", "timed out", "exited", "interrupted")
_REMEDY = {True: " [resumable]", False: " [not resumable]", None: ""}


def told(error: BaseException) -> str:
    """The message of an error whose messages are ours; of any other only the type."""
    if isinstance(error, CommandError):
        return str(error)
    if not isinstance(error, CanoError):
        return f"{type(error).__name__}; --traceback shows where"
    return str(error) if isinstance(error, WorkflowCancelledError) else f"{error.category}: {error}"


def _described(ended: Ended) -> dict[str, Any]:
    return {
        "id": ended.workflow_id,
        "workflow": ended.workflow,
        "outcome": ended.outcome,
        "state": None if ended.error is not None else label_text(ended.state),
        "resumable": ended.resumable,
        "error": None if ended.error is None else error_described(ended.error),
        "exit_code": int(ended.code),
    }


def error_described(error: BaseException) -> dict[str, Any]:
    """An error for programs. The messages of others than cano may hold anything, so they are left out."""
    described = {"type": type(error).__name__, "category": None, "message": None, "state": None, "attempt": None}
    if isinstance(error, CommandError):
        return {**described, "category": error.code.name.lower(), "message": str(error)}
    if not isinstance(error, CanoError):
        return described
    state = None if error.state is None else label_text(error.state)
    return {**described, "category": error.category, "message": str(error), "state": state, "attempt": error.attempt}
