"""Keeps what a process has in memory, as tokens, from other processes of its account.

Owns: the kernel's flag for it. Must not know: what is in memory. Standard library only.

A process that is not dumpable cannot be traced, nor its memory or environment read, but by root; it leaves no core. A
forked child is as its parent was, and as any other again once it execs.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
# Loaded before any fork: loading in a forked child could wait for a lock that nobody holds any more.
_LIBC = ctypes.CDLL(None, use_errno=True)


def hide() -> None:
    """Close this process's memory to others of its account."""
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def is_hidden() -> bool:
    """True after ``hide``."""
    return bool(_LIBC.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 1)


@contextlib.contextmanager
def shown() -> Iterator[None]:
    """Be as any other process for a moment: files of ``/proc/self`` belong to root while it is hidden."""
    was_hidden = is_hidden()
    _LIBC.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    try:
        yield
    finally:
        if was_hidden:
            hide()
