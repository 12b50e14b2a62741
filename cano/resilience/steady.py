"""Time for an object that outlives event loops."""

from __future__ import annotations

from cano.clock import now

_ANOTHER = 1.0


class SteadyTime:
    """Reads `cano.clock.now()`, but never goes back. Its owner's lock guards it.

    Event loops in different threads may disagree by a few milliseconds; then time stands still for as long. A reading
    that is over a second behind the last one comes from another clock, such as the virtual one of the next test's event
    loop; then time goes on from where it was. Otherwise whoever waits would wait for the new clock to catch up.
    """

    __slots__ = ("_last", "_offset", "_reading")

    def __init__(self) -> None:
        self._reading = self._last = now()
        self._offset = 0.0

    def now(self) -> float:
        """Seconds. Only differences mean something."""
        reading = now()
        if reading < self._reading - _ANOTHER:
            self._offset = self._last - reading
            self._reading = reading
        else:
            self._reading = max(self._reading, reading)
        self._last = max(self._last, reading + self._offset)
        return self._last
