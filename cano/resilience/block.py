"""How an `async with breaker:` block finds the permit that it entered with, whichever asyncio task leaves it.

A block asks its object for `__aexit__` before it calls `__aenter__`, and keeps what it was given until it is left; so does
an `AsyncExitStack`. Here each asking gives an exit of its own, and the call of `__aenter__` that follows in the same thread
puts its permit there. So a block settles its own permit and no other, and one that is thrown away without being left, as
an async generator may be when its event loop is gone, takes its permit with it, which releases it.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from cano.errors import ConfigurationError
from cano.resilience.permit import Permit


class Entered(Protocol):
    """What has such blocks."""

    def left_by_hand(self) -> Permit | None:
        """The permit of an `__aenter__` that no block made, if this asyncio task has one."""
        ...


class Exit:
    """The end of one block. Called like `__aexit__`, and with the breaker before the rest if its class was asked for it."""

    __slots__ = ("__weakref__", "_breaker", "permit")

    def __init__(self, breaker: Entered | None) -> None:
        self._breaker = breaker
        self.permit: Permit | None = None

    def of(self, breaker: Entered) -> bool:
        """Whether a block of this breaker may have asked for it."""
        return self._breaker in (None, breaker)

    async def __call__(self, *args: Any) -> None:
        """Tell the permit how the block ended, and swallow nothing.

        Raises:
            ConfigurationError: nothing was entered.
        """
        permit, self.permit = self.permit, None
        *bound, _kind, error, _trace = args
        if permit is None:  # nobody asked for it before entering: both were called by hand
            breaker: Entered = self._breaker or bound[0]
            permit = breaker.left_by_hand()
        if permit is not None:
            permit.tell(error)
        elif error is None:
            raise ConfigurationError("a circuit breaker was left by hand in an asyncio task that has not entered it")


class Exits:
    """The `__aexit__` of a breaker: an exit for each asking."""

    def __get__(self, breaker: Entered | None, kind: type | None = None) -> Exit:
        exit_ = Exit(breaker)
        _asked.exit = weakref.ref(exit_)  # what nobody keeps is no block's
        return exit_


def exit_of(breaker: Entered) -> Exit | None:
    """The exit that the block which is just entering has asked for; None if there is no block."""
    asked: weakref.ref[Exit] | None = getattr(_asked, "exit", None)
    found = None if asked is None else asked()
    if found is None or not found.of(breaker):
        return None
    _asked.exit = None
    return found


_asked = threading.local()
