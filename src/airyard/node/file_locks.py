"""Locks between processes of one machine, on files, waited for in a way that can be cancelled.

Owns: flock calls and the waiting. Must not know: what the locks protect.

The kernel lets go of a lock when the last process that holds the descriptor ends, so a crash leaves none behind.
A lock file is never removed: a second process could otherwise lock another file of the same name.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from airyard.core.errors import AiryardError

_POLL_SECONDS = 0.05


class Cancelled(AiryardError):
    """The caller's ``should_stop`` turned true while work or a wait went on."""

    default_code = "CANCELLED"
    exit_code = 6


class FileLock:
    """One descriptor on a lock file; holds the lock shared, exclusively or not at all."""

    __slots__ = ("_fd", "path")

    def __init__(self, path: Path) -> None:
        """Open (and create) the lock file. Raises: OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @property
    def fd(self) -> int:
        """The descriptor, to be inherited by a child that must keep the lock when this process dies."""
        return self._fd

    def try_shared(self) -> bool:
        """Take or keep a shared lock if nobody has it exclusively. A held exclusive lock becomes shared."""
        return self._try(fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """Take the exclusive lock if nobody else has any. Another lock held before may be lost on failure."""
        return self._try(fcntl.LOCK_EX)

    def unlock(self) -> None:
        """Let go of the lock and keep the file open."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Let go for good; may be repeated."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self._fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def obtain(
    lock: FileLock,
    *,
    is_ready: Callable[[], bool],
    make: Callable[[], None],
    should_stop: Callable[[], bool],
    on_wait: Callable[[], None] = lambda: None,
) -> bool:
    """Make a shared thing once per machine and return holding it shared; return whether this call made it.

    Whoever gets the exclusive lock first makes it; the others wait. ``on_wait`` is called once, when waiting starts.
    Raises: Cancelled while waiting; whatever ``make`` raises. The lock is not held after an exception.
    """
    made = waited = False
    while True:
        if lock.try_shared():
            if is_ready():
                return made
            lock.unlock()
            if lock.try_exclusive():
                try:
                    if not is_ready():
                        make()
                        made = True
                except BaseException:
                    lock.unlock()
                    raise
                # Turning exclusive into shared is not atomic, so the loop looks again.
                continue
        if should_stop():
            raise Cancelled(f"Waiting for {lock.path.name} was cancelled.")
        if not waited:
            waited = True
            on_wait()
        time.sleep(_POLL_SECONDS)
