"""What tasks share: named objects with a counted lifetime."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar

from cano.cancel import leaked
from cano.errors import ConfigurationError, ResourceNotFoundError, ResourceTypeMismatchError

T = TypeVar("T")

_log = logging.getLogger("cano")

_PLAIN = (asyncio.Lock, asyncio.Condition, asyncio.Semaphore)


@dataclass(frozen=True, slots=True)
class Health:
    """How a resource is: `status`, and a `reason` when it is not healthy."""

    status: Literal["healthy", "degraded", "unhealthy"] = "healthy"
    reason: str | None = None

    @classmethod
    def healthy(cls) -> Health:
        """All is well."""
        return cls()

    @classmethod
    def degraded(cls, reason: str) -> Health:
        """It works, but not as it should."""
        return cls("degraded", reason)

    @classmethod
    def unhealthy(cls, reason: str) -> Health:
        """It does not work."""
        return cls("unhealthy", reason)


class Resource:
    """A base class with the three optional hooks of a resource. Any object with some of them will do as well."""

    async def setup(self) -> None:
        """Called before the first run that uses the resource."""

    async def teardown(self) -> None:
        """Called when the last overlapping run has ended. Not called if `setup` raised."""

    async def health(self) -> Health:
        """How the resource is; see `Resources.health`."""
        return Health()


class Resources:
    """Named objects for a workflow's tasks, set up on first use and torn down after the last.

    An object with `async setup()` or `async teardown()` has those called; otherwise an async context manager is entered
    and exited, and `get` returns what entering it gave (asyncio's own locks are left alone). Set-up goes in insertion
    order, teardown in reverse. Runs that overlap share one lifetime, which ends with the last of them. `async with
    resources:` around many runs keeps them up throughout, and is the way for a resource that has to be left in the
    asyncio task that entered it.
    """

    def __init__(self, objects: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        if not isinstance(objects, Mapping | None):
            raise ConfigurationError(f"resources must be a mapping of names to objects, not a {type(objects).__name__}")
        self._objects: dict[str, Any] = {**(objects or {}), **named}
        for name in self._objects:
            if not isinstance(name, str) or not name:
                raise ConfigurationError("a resource needs a name: a string that is not empty")
        self._values = dict(self._objects)
        self._up: list[tuple[str, Any]] = []
        self._users = 0
        self._is_up = False
        self._changing = False
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def __repr__(self) -> str:
        return f"Resources({', '.join(self._objects)})"

    def __iter__(self) -> Iterator[str]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, name: object) -> bool:
        return name in self._objects

    def __getitem__(self, name: str) -> Any:
        return self.get(name)

    def get(self, name: str, kind: type[T] | None = None) -> T | Any:
        """The resource of that name, always the same object while it is up.

        Raises:
            ResourceNotFoundError: there is none; the known names are given.
            ResourceTypeMismatchError: it is not an instance of `kind`.
        """
        if name not in self._values:
            known = ", ".join(sorted(self._objects)) or "none"
            raise ResourceNotFoundError(f"there is no resource {name!r}; the known ones: {known}")
        value = self._values[name]
        if kind is not None and not isinstance(value, kind):
            raise ResourceTypeMismatchError(
                f"resource {name!r} is a {type(value).__name__}, not a {getattr(kind, '__name__', kind)}"
            )
        return value

    async def health(self) -> dict[str, Health]:
        """How each resource is, by name. Those with `async health()` are asked; the others are healthy.

        A check that raises makes its resource unhealthy, with the exception's type as the reason, and does not stop
        the rest.
        """
        found = {}
        for name, value in self._objects.items():
            check = getattr(value, "health", None)
            if not inspect.iscoroutinefunction(check):
                found[name] = Health()
                continue
            try:
                answer = await check()
                found[name] = answer if isinstance(answer, Health) else Health()
            except Exception as error:
                found[name] = Health.unhealthy(type(error).__name__)
        return found

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.release()

    async def acquire(self, guard: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]] | None = None) -> None:
        """Count one more user, and set everything up if it is not up. `guard` awaits each set-up, if it is given.

        Raises: whatever a set-up raised, after those already up were torn down in reverse.
        Cancellation: like a failed set-up.
        """
        if not self._objects:
            return
        with self._lock:
            self._users += 1
        try:
            turn = self._turn(up=True)
            if not await (turn if guard is None else guard(turn)):
                return
            try:
                for name, value in self._objects.items():
                    setup = _set_up(value)
                    self._values[name] = await (setup if guard is None else guard(setup))
                    self._up.append((name, value))
            except BaseException:
                await self._changed(up=False, tear_down=True, on_error=None)
                raise
            await self._changed(up=True)
        except BaseException:
            with self._lock:
                self._users -= 1
            raise

    async def release(self, on_error: Callable[[str, BaseException], None] | None = None) -> None:
        """Count one user less, and tear everything down after the last, in reverse.

        Exceptions of a teardown are logged and handed to `on_error` with the resource's name; they stop nothing.
        Cancellation: cuts the teardown that is going on, and is raised after the others.
        """
        if not self._objects:
            return
        with self._lock:
            self._users -= 1
        if await self._turn(up=False):
            await self._changed(up=False, tear_down=True, on_error=on_error)

    async def _turn(self, *, up: bool) -> bool:
        """Wait while somebody else is changing things. True if they then have to be changed, and by the caller."""
        while True:
            with self._lock:
                if not self._changing:
                    self._changing = self._is_up is not up and (up or self._users == 0)
                    return self._changing
                loop = asyncio.get_running_loop()
                waiter: asyncio.Future[None] = loop.create_future()
                self._waiters.append((loop, waiter))
            await waiter

    async def _changed(
        self,
        *,
        up: bool,
        tear_down: bool = False,
        on_error: Callable[[str, BaseException], None] | None = None,
    ) -> None:
        """Finish a change, and let those who wait look again."""
        try:
            if tear_down:
                await self._tear_down(on_error)
        finally:
            with self._lock:
                self._changing, self._is_up = False, up
                waiters, self._waiters = self._waiters, []
            for loop, waiter in waiters:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_wake, waiter)

    async def _tear_down(self, on_error: Callable[[str, BaseException], None] | None) -> None:
        cut: BaseException | None = None
        while self._up:
            name, value = self._up.pop()
            try:
                await _take_down(value)
            except BaseException as error:
                if not isinstance(error, Exception | asyncio.CancelledError) or (
                    isinstance(error, asyncio.CancelledError) and not leaked()
                ):
                    cut = cut or error
                    continue
                _log.warning("resource %s failed to tear down: %s", name, type(error).__name__)
                if on_error is not None:
                    on_error(name, error)
        self._values = dict(self._objects)
        if cut is not None:
            raise cut


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _managed(value: Any) -> bool:
    kind = type(value)
    return hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__") and not isinstance(value, _PLAIN)


def _hook(value: Any, name: str) -> Any:
    hook = None if isinstance(value, type) else getattr(value, name, None)
    return hook if inspect.iscoroutinefunction(hook) else None


async def _set_up(value: Any) -> Any:
    """Set one resource up and return what `get` shall give for it."""
    setup, teardown = _hook(value, "setup"), _hook(value, "teardown")
    if setup is not None:
        await setup()
    if setup is not None or teardown is not None or not _managed(value):
        return value
    entered = await type(value).__aenter__(value)
    return value if entered is None else entered


async def _take_down(value: Any) -> None:
    setup, teardown = _hook(value, "setup"), _hook(value, "teardown")
    if teardown is not None:
        await teardown()
    elif setup is None and _managed(value):
        await type(value).__aexit__(value, None, None, None)
