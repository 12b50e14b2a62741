"""THE windowed loop. There is one, and nothing happens in it for each item but the read and `process_item`.

    between items, in this order:  stop?  ·  window full or due?  ·  the next item
    for each window, always:       encode the cursor  ·  flush_window  ·  the row  ·  the next item

`brake.alert` says that something of the first line is there. `brake.mark` is the number of outputs at which the loop
looks up: to start a timer, to look at the clock, because the window is full, or at once, because of an alert. How a
stream ends: by a `Stop` from a flush, already committed; by `on_close` after the source ran out; or by a drain, which
has no next state.
"""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any

from cano.errors import RunFencedError
from cano.task.items import resolve
from cano.task.session import StreamSession
from cano.task.stream import CloseReason


@dataclass(frozen=True, slots=True)
class Ending:
    """How a stream ended: with a next state, or `drained`."""

    state: Any = None
    drained: bool = False


async def run_windows(session: StreamSession) -> Ending:
    """Run an opened stream to its end.

    Raises: the error that fails the run. Whatever was buffered is discarded and nothing more is committed.
    Cancellation: only an aborted drain reaches into it; then nothing more is committed either.
    """
    brake, window, ctx = session.brake, session.window, session.ctx
    outputs, process, fix = window.outputs, session.begin(), session.host.fix
    add, awaits = outputs.append, inspect.iscoroutinefunction(process)
    failure: Exception | None = None
    try:
        brake.exposed = True
        async for item in session.source.items:
            brake.exposed = False
            if brake.alert and (ending := await _arrived(session)) is not None:
                return ending
            try:
                pair = await process(ctx, item) if awaits else process(ctx, item)
                if type(pair) is not tuple:
                    pair = await resolve(pair)
            except (asyncio.CancelledError, Exception) as error:
                await session.judge(item, error)
            else:
                try:
                    output, cursor = pair
                except ValueError:
                    raise session.no_pair("tuple of another length") from None
                window.cursor = cursor if fix is None else fix(cursor)
                add(output)
            if len(outputs) >= brake.mark:
                session.reckon()
                if brake.alert and (ending := await _attend(session)) is not None:
                    return ending
            brake.exposed = True
    except (asyncio.CancelledError, Exception) as error:
        if not brake.exposed:
            raise
        failure = session.read_failed(error)  # None: it was a stop, and the reason for it is looked at next
    brake.settle()
    return await _finish(session, failure)


async def _arrived(session: StreamSession) -> Ending | None:
    """An item came while something was going on: let the flush beside the read end first."""
    if session.brake.settle():
        await session.brake.absorb()
    stop = await session.join()
    return None if stop is None else Ending(stop.state)


async def _attend(session: StreamSession) -> Ending | None:
    """Between items, when something is to be done: a stop comes first, then the window, then a stop that came meanwhile."""
    await session.give_turn()
    if not session.brake.on:
        session.brake.alert = False
        if (stop := await session.attend()) is not None:
            return Ending(stop.state)
        session.set_mark()
    return await _drain(session) if session.brake.on else None


async def _finish(session: StreamSession, failure: Exception | None) -> Ending:
    """No item follows: flush the rest, then `on_close` chooses. If it was a stop that ended the reading, drain.

    If it was a failure of the source, it comes after the items before it, as they come after one another.
    """
    if failure is None and session.brake.on:
        return await _drain(session)
    if (stop := await session.join() or session.decided) is not None:
        return Ending(stop.state)
    if (stop := await session.land(draining=False)) is not None:
        return Ending(stop.state)
    if failure is not None:
        raise failure
    if session.brake.on:
        return await _drain(session)
    if session.window.holds and (stop := await session.flush()) is not None:
        return Ending(stop.state)
    if session.brake.on:
        return await _drain(session)
    return Ending(await session.close(CloseReason.EXHAUSTED))


async def _drain(session: StreamSession) -> Ending:
    """Stopped: flush and commit what is in hand, close the source, `on_close(CANCELLED)`. The first error surfaces."""
    failure: BaseException | None = None
    try:
        stop = await session.join() or session.decided
        if stop is not None:  # decided and committed before the stop was seen
            return Ending(stop.state)
        await session.drain()
    except RunFencedError:
        raise
    except Exception as error:
        if not session.spoiled:
            raise  # it was an item that failed the run
        failure = error
    try:
        await session.close(CloseReason.CANCELLED)
    except (asyncio.CancelledError, Exception) as error:  # aborted: what the flush raised is what surfaces all the same
        failure = failure or error
    if failure is not None:
        raise failure
    return Ending(drained=True)
