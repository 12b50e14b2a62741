"""The end of a command: from the moment that its exit code is known, no signal can give the process another one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Ending:
    """What SIGTERM and SIGINT do: what they did before, until the exit code is known; then they end the process at once,
    with that code. What is left to be said is said first; another signal does not wait for it.
    """

    def __init__(self) -> None:
        self._before = {number: signal.getsignal(number) for number in NUMBERS}
        self._code: int | None = None
        self._words: Callable[[], None] | None = None
        self._telling = False
        self._called = False

    def arm(self) -> None:
        """Handle signals from now on; whoever handles them in between puts this handler back."""
        if threading.current_thread() is threading.main_thread():
            for number in NUMBERS:
                signal.signal(number, self._handle)

    def settle(self, code: int, words: Callable[[], None] | None = None) -> None:
        """The exit code is known, and `words` is what remains to be said."""
        self._words = words
        self._code = code
        self.arm()

    def tell(self) -> None:
        """Say what remains to be said, once."""
        words, self._words = self._words, None
        if words is None:
            return
        self._telling = True
        try:
            words()
        finally:
            self._telling = False
        if self._called:
            self._leave()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._code is None:
            self._pass_on(number, frame)
        elif self._telling and not self._called:
            self._called = True  # `tell` leaves when it is through
        else:
            self._leave()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        before = self._before[signal.Signals(number)]
        if callable(before):
            before(number, frame)
        elif before is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _leave(self) -> None:
        assert self._code is not None
        with suppress(Exception):  # a stream refuses that was being written to when the signal came
            self.tell()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # likewise, so that a reader who takes nothing keeps only the first signal waiting
                stream.flush()
        os._exit(self._code & 0xFF)


def deafen() -> None:
    """For the very end of the process: Python would put the default handlers back while it takes itself apart."""
    for number in NUMBERS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def handlers_put_back() -> Iterator[None]:
    """Let a command that is called within a program leave its signal handlers as they were."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
