"""Logs of members as the server keeps them: frames in order of seq, durable before they are acknowledged.

Owns: what routes and retention need. Must not know: HTTP. Any thread; one writer a member.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """How far a member's log is: the seq expected next, the bytes of user output, the SHA-256 of all frames so far."""

    next_seq: int
    bytes: int
    sha256: str


class LogStore(Protocol):
    """One append-only file of frames a member."""

    def append(self, key: MemberKey, frames: bytes) -> int:
        """Store whole frames and return the seq expected next; fsynced before it returns.

        Frames below the expected seq are dropped. Raises: Conflict (``LOG_GAP``, details ``next``) when the first
        new one is above it; UserError for a damaged frame; Unavailable when the disk refuses.
        """
        ...

    def end(self, key: MemberKey) -> LogEnd:
        """Return how far the log is; an unknown member's is empty."""
        ...

    def read(self, key: MemberKey, from_seq: int = 0, limit_bytes: int = 1 << 20) -> list[LogRecord]:
        """Return records from ``from_seq`` on, at least one if there is any, about ``limit_bytes`` in all."""
        ...

    def seek_time(self, key: MemberKey, time_ns: int) -> int:
        """Return a seq at or shortly before the first record of this time."""
        ...

    def seek_tail(self, key: MemberKey, lines: int) -> int:
        """Return a seq from which at least the last ``lines`` lines can be read (or the start)."""
        ...

    def delete_run(self, run_id: int) -> int:
        """Remove all logs of a run; return the bytes freed."""
        ...

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield (run id, bytes) of every run that has logs."""
        ...
