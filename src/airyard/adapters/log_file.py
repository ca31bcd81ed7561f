"""One member's log on the server's disk: frames as they came, durable before they are acknowledged.

Owns: which frames are accepted, recovery after a crash, the running hash, reading. Must not know: whose log it is.
Not safe for two threads at once: ``log_files`` holds ``lock`` around every call.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from airyard.adapters.log_index import STEP_BYTES, LogIndex, Mark
from airyard.adapters.term_files import copy_durably, newest, refuse_later, take_over
from airyard.core.errors import Conflict, UserError
from airyard.core.log_frames import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    DamagedFrame,
    Gap,
    LogRecord,
    LogStream,
    frame_at,
    iter_frames,
    spans,
)

_SCAN_BYTES = 4 * 1024 * 1024
_FOLDER_LEVELS = 3
"""Attempt, run and store: the folders whose entries may be new with a log."""


@dataclass(slots=True, kw_only=True)
class _Position:
    """Where the log ends, or would end with the frames that are being looked at."""

    offset: int = 0
    next_seq: int = 0
    time_ns: int = 0
    lines: int = 0
    payload_bytes: int = 0

    @classmethod
    def at(cls, mark: Mark) -> _Position:
        return cls(
            offset=mark.offset,
            next_seq=mark.seq,
            time_ns=mark.time_ns,
            lines=mark.lines,
            payload_bytes=mark.payload_bytes,
        )

    def mark(self) -> Mark:
        return Mark(
            offset=self.offset,
            seq=self.next_seq,
            time_ns=self.time_ns,
            lines=self.lines,
            payload_bytes=self.payload_bytes,
        )

    def take(self, frames: bytes, span: tuple[int, int, int, int, int]) -> None:
        """Move behind one frame of ``frames``."""
        stream, seq, time_ns, start, end = span
        self.offset += HEADER_BYTES + end - start
        self.next_seq = seq + 1
        self.time_ns = max(self.time_ns, time_ns)
        if stream != LogStream.GAP:
            self.payload_bytes += end - start
            self.lines += frames.count(b"\n", start, end)


class LogFile:
    """An append-only file of frames without a hole in their numbers."""

    def __init__(self, path: Path, term: int | None = None) -> None:
        """Name a log; nothing is touched before ``open``. ``term``: see ``term_files``; None: one server alone."""
        self.lock = threading.Lock()
        self.users = 0
        """How many calls hold it; kept by ``log_files``, which closes only what nobody uses."""
        self._path = path
        self._term = term
        self._is_ours = term is None
        """Whether the open file may be written: it is of this leader's term."""
        self._fd = -1
        self._index = LogIndex(path.with_suffix(".idx"))
        self._hash = hashlib.sha256()
        self._hashed_bytes = 0
        self._read_hint = (0, 0)  # where the last reading ended: seq, offset
        self._end = _Position()

    def open(self, *, create: bool) -> bool:
        """Open the files unless they are open, and cut off what a crash left half written; False: there is no log.

        Raises: OSError. Cost: reads what lies behind the last mark.
        """
        if self._fd >= 0 and (self._is_ours or not create):
            return True
        self.close()
        place = self._place(create=create)
        try:
            self._fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if not create:
                return False
            self._fd = _create(place)
        self._index = LogIndex(place.with_suffix(".idx"))
        self._hash, self._hashed_bytes, self._read_hint = hashlib.sha256(), 0, (0, 0)
        self._end = self._recover()
        return True

    def _place(self, *, create: bool) -> Path:
        """Return the file that counts; to write, that of this leader's term. Raises: Unavailable, OSError."""
        if create and self._term is not None:
            place = take_over(self._path, self._term, copy_durably)
            self._is_ours = True
            return place
        found = newest(self._path)
        if self._term is not None:
            refuse_later(found, self._term)
            self._is_ours = found is not None and found[0] == self._term
        return found[1] if found is not None else self._path

    def close(self) -> None:
        """Release the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def next_seq(self) -> int:
        """The number that must come next."""
        return self._end.next_seq

    @property
    def payload_bytes(self) -> int:
        """Bytes of output, headers and gaps left out."""
        return self._end.payload_bytes

    def append(self, frames: bytes) -> None:
        """Store the new ones of some whole frames durably.

        Raises: Conflict (``LOG_GAP``), UserError, OSError; then nothing is stored.
        """
        end, marks, new = self._accept(frames)
        if not new:
            return
        try:
            _write_at(self._fd, new, self._end.offset)
            os.fdatasync(self._fd)
        except OSError:
            # What was acknowledged before is on the disk; what may lie behind it is written over, or cut at a reopen.
            with suppress(OSError):
                os.ftruncate(self._fd, self._end.offset)
            raise
        if self._hashed_bytes == self._end.offset:
            self._hash.update(new)
            self._hashed_bytes = end.offset
        self._end = end
        if marks:
            self._index.add(marks)

    def _accept(self, frames: bytes) -> tuple[_Position, list[Mark], bytes | memoryview]:
        """Return the end with the new frames, marks within them, and their bytes."""
        end = _Position.at(self._end.mark())
        marked = self._index.last.offset
        marks: list[Mark] = []
        view = memoryview(frames)
        pieces: list[memoryview] = []
        from_byte = used = 0
        for span in spans(view):
            stream, seq, _, start, used = span
            frame_start = start - HEADER_BYTES
            if seq < end.next_seq:  # known already
                if from_byte < frame_start:
                    pieces.append(view[from_byte:frame_start])
                from_byte = used
                continue
            first = Gap.decode(bytes(view[start:used])).first_seq if stream == LogStream.GAP else seq
            if first > end.next_seq:
                raise _hole(self._end.next_seq, end.next_seq, first)
            if end.offset - marked >= STEP_BYTES:
                marks.append(end.mark())
                marked = end.offset
            end.take(frames, span)
        if used != len(frames):
            raise DamagedFrame(used, f"it ends after {len(frames) - used} bytes")
        if from_byte < used:
            pieces.append(view[from_byte:used])
        return end, marks, pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def sha256(self) -> str:
        """Return the hash over all frames. Cost: reads what was not hashed yet, all of it after a restart."""
        while self._hashed_bytes < self._end.offset:
            size = min(_SCAN_BYTES, self._end.offset - self._hashed_bytes)
            data = os.pread(self._fd, size, self._hashed_bytes)
            if not data:
                raise OSError(f"a log file became shorter than its {self._end.offset} bytes")
            self._hash.update(data)
            self._hashed_bytes += len(data)
        return self._hash.hexdigest()

    def read(self, from_seq: int, limit_bytes: int) -> list[LogRecord]:
        """Return records from ``from_seq`` on, at least one if there is any; what the disk spoiled as a gap."""
        mark = self._index.before_seq(from_seq)
        seq, offset = self._read_hint
        if not mark.seq <= seq <= from_seq:
            seq, offset = mark.seq, mark.offset
        found: list[LogRecord] = []
        room = limit_bytes
        while offset < self._end.offset and (room > 0 or not found):
            size = min(max(room, 0) + MAX_FRAME_BYTES, self._end.offset - offset)
            records = _good_frames(os.pread(self._fd, size, offset))
            if not records:
                if not found:
                    found.append(self._spoiled(max(seq, from_seq), offset))
                return found
            for record in records:
                offset += HEADER_BYTES + len(record.payload)
                seq = record.next_seq
                if record.seq < from_seq:
                    continue
                found.append(record)
                room -= HEADER_BYTES + len(record.payload)
                if room <= 0:
                    break
        if found:
            self._read_hint = (seq, offset)
        return found

    def _spoiled(self, seq: int, offset: int) -> LogRecord:
        """Stand for stored records that cannot be read any more, up to the next place that is known."""
        after = self._index.after(offset) or self._end.mark()
        gap = Gap(
            first_seq=seq,
            last_seq=after.seq - 1,
            payload_bytes=after.offset - offset,
            reason="the stored log is damaged here",
        )
        return gap.record(after.time_ns)

    def seek_time(self, time_ns: int) -> int:
        """Return a seq at or shortly before the first record of this time."""
        return self._index.before_time(time_ns).seq

    def seek_tail(self, lines: int) -> int:
        """Return a seq from which at least the last ``lines`` lines can be read whole, or the start."""
        return self._index.before_tail(lines, self._end.lines).seq

    def _recover(self) -> _Position:
        size = os.fstat(self._fd).st_size
        rebuilt = not self._index.load()
        while (last := self._index.last).offset and not self._bears_out(last, size):
            self._index.drop_last()
            rebuilt = True
        end = _Position.at(last)
        marks: list[Mark] = []
        marked = end.offset
        for frames, span in self._walk(end.offset, size):
            if span[0] != LogStream.GAP and span[1] != end.next_seq:
                break  # left over from a write that failed
            if end.offset - marked >= STEP_BYTES:
                marks.append(end.mark())
                marked = end.offset
            end.take(frames, span)
        if end.offset < size:
            os.ftruncate(self._fd, end.offset)
        if rebuilt:
            self._index.rewrite()
        if marks:
            self._index.add(marks)
        return end

    def _bears_out(self, mark: Mark, size: int) -> bool:
        """Whether the frame that a mark points to is there and follows the record before the mark."""
        if mark.offset >= size:
            return False
        data = os.pread(self._fd, MAX_FRAME_BYTES, mark.offset)
        try:
            found = frame_at(data, 0)
            records = iter_frames(data[: found[0]])[0] if found else []
        except DamagedFrame:
            return False
        return bool(records) and records[0].first_seq <= mark.seq <= records[0].seq

    def _walk(self, offset: int, size: int) -> Iterator[tuple[bytes, tuple[int, int, int, int, int]]]:
        """Yield the good frames from ``offset`` on, up to the first that is damaged or cut off."""
        while offset < size:
            frames = os.pread(self._fd, _SCAN_BYTES, offset)
            used = 0
            try:
                for span in spans(memoryview(frames)):
                    yield frames, span
                    used = span[4]
            except DamagedFrame:
                return
            if not used:
                return
            offset += used


def _hole(stored_seq: int, expected_seq: int, first_seq: int) -> Conflict | UserError:
    if expected_seq > stored_seq:
        return UserError(
            f"The batch of log records has a hole: {first_seq} follows {expected_seq - 1}.",
            code="LOG_BATCH_HOLE",
            fix="Send records without a hole, or a gap record in its place.",
            details={"next": stored_seq, "first": first_seq},
        )
    return Conflict(
        f"The log goes on with record {stored_seq}; the batch begins with {first_seq}.",
        code="LOG_GAP",
        fix=f"Send from record {stored_seq} on, or a gap record that covers what is lost.",
        details={"next": stored_seq, "first": first_seq},
    )


def _good_frames(data: bytes) -> list[LogRecord]:
    try:
        return iter_frames(data)[0]
    except DamagedFrame as error:
        return iter_frames(data[: error.offset])[0]


def _create(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for folder in list(path.parents)[:_FOLDER_LEVELS]:
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)
    return fd


def _write_at(fd: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view = view[written:]
        offset += written
