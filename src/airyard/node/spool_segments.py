"""The bounded pieces that a log spool consists of: files of whole frames, or memory when the disk refuses.

Owns: how frames lie in a segment, how a folder of segments is read back after a crash of the writer.
Must not know: the server, limits, which segments are dropped and when.

A segment file is named by its first record's number (``00000000000000000042.seg``), so that a hole between
files, and the next number to give, can be seen from the names. Nothing is fsynced: the page cache outlives a
crash of the process, and a crash of the machine is a lost attempt anyway.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from airyard.core.log_frames import (
    HEADER_BYTES,
    DamagedFrame,
    Gap,
    LogRecord,
    LogStream,
    encode,
    frame_at,
    iter_frames,
)

SUFFIX = ".seg"


class Segment:
    """Frames ``first_seq`` to ``next_seq - 1`` (none at first), in a file, or in memory without one."""

    __slots__ = ("_data", "_fd", "_path", "first_seq", "gap", "next_seq", "size")

    def __init__(self, first_seq: int, path: Path | None, fd: int | None) -> None:
        self.first_seq = first_seq
        self.next_seq = first_seq
        self.size = 0
        self.gap: Gap | None = None
        """Set when the segment is one gap record."""
        self._path = path
        self._fd = fd
        self._data = bytearray()

    @classmethod
    def on_disk(cls, folder: Path, first_seq: int) -> Segment:
        """Create the segment's file. Raises: OSError."""
        path = folder / f"{first_seq:020d}{SUFFIX}"
        # Truncated, because a file of that name can only be an empty one, or records that a gap replaces.
        return cls(first_seq, path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))

    @classmethod
    def in_memory(cls, first_seq: int) -> Segment:
        """Make a segment that dies with the process."""
        return cls(first_seq, None, None)

    @property
    def is_on_disk(self) -> bool:
        """Whether a crash of the process leaves it."""
        return self._fd is not None

    @property
    def payload_bytes(self) -> int:
        """Bytes of output in it, or lost in it when it is a gap."""
        if self.gap is not None:
            return self.gap.payload_bytes
        return self.size - HEADER_BYTES * (self.next_seq - self.first_seq)

    def append(self, header: bytes, payload: bytes | memoryview) -> None:
        """Add one whole frame or nothing. Raises: OSError (disk full, quota)."""
        if self._fd is None:
            self._data += header
            self._data += payload
        else:
            wanted = len(header) + len(payload)
            written = os.pwritev(self._fd, (header, payload), self.size)
            if written != wanted:
                os.ftruncate(self._fd, self.size)
                raise OSError(errno.ENOSPC, f"only {written} of {wanted} bytes could be written")
        self.size += len(header) + len(payload)
        self.next_seq += 1

    def put_gap(self, gap: Gap, time_ns: int) -> None:
        """Make the segment stand for a range of lost records. Raises: OSError."""
        record = gap.record(time_ns)
        self.append(encode(record)[:HEADER_BYTES], record.payload)
        self.gap = gap
        self.next_seq = record.next_seq

    def read(self, offset: int, count: int) -> bytes:
        """Return up to ``count`` bytes from ``offset``. Raises: OSError."""
        count = min(count, self.size - offset)
        if self._fd is None:
            return bytes(self._data[offset : offset + count])
        return os.pread(self._fd, count, offset)

    def close(self) -> None:
        """Let go of the file and leave it where it is."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def delete(self) -> None:
        """Let go of the file and remove it."""
        self.close()
        self._data = bytearray()
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def whole_frames(data: bytes, limit: int) -> tuple[int, int] | None:
    """Return (bytes, next seq) of the whole frames within ``data[:limit]``, at least one; None without any.

    Cost: one header read a frame; checksums are not looked at.
    """
    end, next_seq = 0, -1
    while (found := frame_at(data, end)) is not None and (end == 0 or found[0] <= limit):
        end, seq = found
        next_seq = seq + 1
    return (end, next_seq) if end else None


def recover(folder: Path) -> list[Segment]:
    """Open the segments that a dead process left, in order, with a torn last frame cut off.

    Holes between them stay holes; the caller sees them from the numbers. Empty files are removed, except the
    last, whose name is the next number to give. Cost: one pass over all bytes kept.
    """
    paths = sorted(path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdecimal())
    segments: list[Segment] = []
    for path in paths:
        segment = _reopen(path)
        is_empty = segment.size == 0 and path != paths[-1]
        if is_empty or (segments and segment.first_seq < segments[-1].next_seq):
            segment.delete()
        else:
            segments.append(segment)
    return segments


def _reopen(path: Path) -> Segment:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    segment = Segment(int(path.stem), path, fd)
    records = _sound_records(path.read_bytes())
    for record in records:
        if record.stream is LogStream.GAP:
            segment.gap = Gap.decode(record.payload)
        segment.next_seq = record.next_seq
        segment.size += HEADER_BYTES + len(record.payload)
    os.ftruncate(fd, segment.size)
    return segment


def _sound_records(data: bytes) -> list[LogRecord]:
    try:
        return iter_frames(data)[0]
    except DamagedFrame as error:
        return iter_frames(data[: error.offset])[0]
