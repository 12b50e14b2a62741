"""MemoryStore: a key-value resource that lives as long as its process."""

from __future__ import annotations

import threading
from typing import Any, TypeVar, overload

from cano.errors import StoreError

T = TypeVar("T")


class MemoryStore:
    """A thread-safe mapping for values that tasks hand to one another.

    It is not durable: after a crash a resumed run finds it empty. What a resume needs belongs in `ctx.data`.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<MemoryStore of {len(self)} keys>"

    def put(self, key: str, value: Any) -> None:
        """Store a value under a key, in place of any other."""
        with self._lock:
            self._values[key] = value

    @overload
    def get(self, key: str, kind: type[T]) -> T: ...
    @overload
    def get(self, key: str) -> Any: ...

    def get(self, key: str, kind: type[Any] | None = None) -> Any:
        """The very object stored under a key.

        Raises:
            StoreError: there is no such key, or its value is not an instance of `kind`.
        """
        with self._lock:
            if key not in self._values:
                raise StoreError(f"key {key!r} not found in store")
            value = self._values[key]
        if kind is not None and not isinstance(value, kind):
            raise StoreError(f"key {key!r} holds a {type(value).__name__}, not a {kind.__name__}")
        return value

    def append(self, key: str, value: Any) -> None:
        """Add to the end of the list under a key, which starts empty; atomic among threads.

        Raises:
            StoreError: the key holds something else than a list, which stays as it is.
        """
        with self._lock:
            values = self._values.setdefault(key, [])
            if not isinstance(values, list):
                raise StoreError(f"cannot append to key {key!r}: it holds a {type(values).__name__}, not a list")
            values.append(value)

    def remove(self, key: str) -> None:
        """Forget a key; an unknown one is fine."""
        with self._lock:
            self._values.pop(key, None)

    def clear(self) -> None:
        """Forget every key."""
        with self._lock:
            self._values.clear()

    def keys(self) -> list[str]:
        """The keys, in the order in which they were first put."""
        with self._lock:
            return list(self._values)

    def __contains__(self, key: object) -> bool:
        with self._lock:
            return key in self._values

    def __len__(self) -> int:
        with self._lock:
            return len(self._values)
