"""Outside: what a crash leaves alone, as it was when the crash came."""

from __future__ import annotations

import copy
from collections import deque
from typing import Any

from cano.errors import ConfigurationError

_REMEDY = (
    "give what is a value, such as a list, or what only names a thing that is elsewhere, such as a path; or give its class a "
    "__deepcopy__"
)


class Outside:
    """What `outside` gave, with a copy of it from the moment of a kill.

    value:  what a life is given
    shared: whether the next life has no other way to it than that object, since its workflow is the same one

    Raises:
        ConfigurationError: it cannot be copied.
    """

    def __init__(self, value: Any, *, shared: bool) -> None:
        self.value = value
        self._shared = shared
        self._left: Any = None
        self._failure: ConfigurationError | None = None
        copied = _copied(value)
        if shared and not _can_be_put_back(value, copied):
            raise ConfigurationError(
                f"a {type(value).__name__} cannot be set back to what it was at a kill: give a function that builds the workflow"
            )

    def taken(self) -> None:
        """Keep what is there now. Raises nothing: it is called in the midst of a death."""
        try:
            self._left = _copied(self.value)
        except ConfigurationError as error:
            self._failure = error

    def put_back(self) -> None:
        """Give the next life what was there at the kill.

        Raises:
            ConfigurationError: it could not be copied then.
        """
        if self._failure is not None:
            raise self._failure
        if self._shared:
            _put_back(self.value, self._left)
        else:
            self.value = self._left

    def seen(self) -> Any:
        """What is there at last; for a shared one a copy, as the next run clears it."""
        return _copied(self.value) if self._shared else self.value


def _copied(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise ConfigurationError(
            f"what outside gives has to be copied at each kill, and this {type(value).__name__} cannot be copied "
            f"({type(error).__name__}): {_REMEDY}"
        ) from error


def _can_be_put_back(value: Any, copied: Any) -> bool:
    if isinstance(value, list | dict | set | deque | bytearray) or hasattr(value, "__dict__"):
        return True
    return copied is value or bool(copied == value)  # it cannot change


def _put_back(value: Any, left: Any) -> None:
    if isinstance(value, list | bytearray):
        value[:] = left
    elif isinstance(value, dict | set):
        value.clear()
        value.update(left)
    elif isinstance(value, deque):
        value.clear()
        value.extend(left)
    elif hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update(vars(left))
