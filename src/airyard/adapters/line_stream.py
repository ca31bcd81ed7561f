"""What a thread needs that carries lines: a way to end its wait from another thread, and lines put together again.

Owns: the wake-up pipe, the rest of an unfinished line. Must not know: what is said, who says it.
"""

from __future__ import annotations

import contextlib
import os

READ_BYTES = 256 * 1024


class Waker:
    """A descriptor to wait for beside others: readable once somebody called ``wake``."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._read

    def wake(self) -> None:
        """End the wait. Any thread."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"x")

    def drain(self) -> None:
        """Be quiet again until the next ``wake``."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)


class LineBuffer:
    """Octets as they come, given back as whole lines without their ends."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take more; return the lines that became whole."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return lines
