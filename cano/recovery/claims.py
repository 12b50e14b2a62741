"""Claims taken from the operating system: one locked byte of a file for each run.

The lock belongs to the process and goes with it, `kill -9` included; a forked child does not inherit it. Within the
process a set tells the holders apart. POSIX drops every lock of a process on a file as soon as the process closes any
descriptor of it, so there is one descriptor for each file in the whole process, closed when nothing is held.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from cano.errors import CheckpointStoreError
from cano.recovery.memory import owned


class _LockFile:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.held: set[str] = set()


_files: dict[tuple[int, int], _LockFile] = {}
_lock = threading.Lock()


def _forget_in_child() -> None:
    """Locks are not inherited, so neither are claims. Whoever held the mutex at the fork is not here to let it go."""
    if _lock.locked():
        _lock.release()
    for file in _files.values():
        os.close(file.descriptor)
    _files.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@contextmanager
def locked(path: str, workflow_id: str) -> Iterator[None]:
    """Hold the byte of `workflow_id` in the file at `path`, which is created if need be and never removed.

    Raises:
        RunOwnedError: somebody alive, in this process or another, holds it.
        CheckpointStoreError: the file cannot be used.
    """
    offset = int.from_bytes(hashlib.sha256(workflow_id.encode("utf-8", "surrogatepass")).digest()[:8], "big") >> 2
    owner = os.getpid()
    try:
        key, file = _take(path, workflow_id, offset)
    except OSError as error:
        raise CheckpointStoreError(f"cannot use the claims file beside the log: {error.strerror}") from error
    try:
        yield
    finally:
        if os.getpid() == owner:
            _release(key, file, workflow_id, offset)


def _take(path: str, workflow_id: str, offset: int) -> tuple[tuple[int, int], _LockFile]:
    with _lock:
        key, file = _file_at(path)
        try:
            if workflow_id in file.held:
                raise owned(workflow_id)
            try:
                fcntl.lockf(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
            except (BlockingIOError, PermissionError):
                raise owned(workflow_id) from None
            file.held.add(workflow_id)
        finally:
            _close_if_idle(key, file)
        return key, file


def _release(key: tuple[int, int], file: _LockFile, workflow_id: str, offset: int) -> None:
    with _lock:
        file.held.discard(workflow_id)
        fcntl.lockf(file.descriptor, fcntl.LOCK_UN, 1, offset)
        _close_if_idle(key, file)


def _file_at(path: str) -> tuple[tuple[int, int], _LockFile]:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        found = None
    if found is not None and (file := _files.get((found.st_dev, found.st_ino))):
        return (found.st_dev, found.st_ino), file
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    status = os.fstat(descriptor)
    key = (status.st_dev, status.st_ino)
    return key, _files.setdefault(key, _LockFile(descriptor))


def _close_if_idle(key: tuple[int, int], file: _LockFile) -> None:
    if not file.held:
        os.close(file.descriptor)
        del _files[key]
