"""A sparse index beside a member's log, so that reading can start near any record, time or line.

Owns: its entries, their file, the three searches. Must not know: frames. The file is never fsynced: what a crash
takes from it is rebuilt from the log.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from pathlib import Path

STEP_BYTES = 256 * 1024
_ENTRY = struct.Struct("<QQqQQ")
_CRC = struct.Struct("<I")
_ENTRY_BYTES = _ENTRY.size + _CRC.size
_EDGE_LINES = 3
"""A place in the log may lie within a line of each of the three streams."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """What lies before the frame at ``offset``, whose records begin with ``seq``."""

    offset: int = 0
    seq: int = 0
    time_ns: int = 0
    """The highest time of all records before."""
    lines: int = 0
    payload_bytes: int = 0


class LogIndex:
    """Marks in the order of the log, in memory and in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._marks: list[Mark] = []

    @property
    def last(self) -> Mark:
        """The last mark, or the start."""
        return self._marks[-1] if self._marks else Mark()

    def load(self) -> bool:
        """Read the file up to the first entry that is torn or out of order; return whether it was whole."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return True
        for start in range(0, len(data) - _ENTRY_BYTES + 1, _ENTRY_BYTES):
            (crc,) = _CRC.unpack_from(data, start + _ENTRY.size)
            if zlib.crc32(data[start : start + _ENTRY.size]) != crc:
                break
            offset, seq, time_ns, lines, payload_bytes = _ENTRY.unpack_from(data, start)
            if offset <= self.last.offset:
                break
            self._marks.append(
                Mark(offset=offset, seq=seq, time_ns=time_ns, lines=lines, payload_bytes=payload_bytes)
            )
        return len(data) == len(self._marks) * _ENTRY_BYTES

    def drop_last(self) -> None:
        """Forget the last mark: the log does not bear it out."""
        self._marks.pop()

    def rewrite(self) -> None:
        """Make the file hold what memory holds. Raises: OSError."""
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"".join(map(_packed, self._marks)))
        finally:
            os.close(fd)

    def add(self, marks: list[Mark]) -> None:
        """Take further marks. A file that refuses them is left behind: the log can rebuild it."""
        self._marks += marks
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, b"".join(map(_packed, marks)))
            finally:
                os.close(fd)
        except OSError:
            return

    def before_seq(self, seq: int) -> Mark:
        """Return the last mark at or before a record."""
        return self._at(bisect_right(self._marks, seq, key=lambda mark: mark.seq))

    def before_time(self, time_ns: int) -> Mark:
        """Return the last mark before which every record is older than this."""
        return self._at(bisect_left(self._marks, time_ns, key=lambda mark: mark.time_ns))

    def before_tail(self, lines: int, all_lines: int) -> Mark:
        """Return the last mark with at least ``lines`` whole lines behind it."""
        wanted = all_lines - lines - _EDGE_LINES
        return self._at(bisect_right(self._marks, wanted, key=lambda mark: mark.lines))

    def after(self, offset: int) -> Mark | None:
        """Return the first mark behind a place in the file."""
        at = bisect_right(self._marks, offset, key=lambda mark: mark.offset)
        return self._marks[at] if at < len(self._marks) else None

    def _at(self, count: int) -> Mark:
        return self._marks[count - 1] if count else Mark()


def _packed(mark: Mark) -> bytes:
    data = _ENTRY.pack(mark.offset, mark.seq, mark.time_ns, mark.lines, mark.payload_bytes)
    return data + _CRC.pack(zlib.crc32(data))
