"""Keeps one member's log on the node's disk until the server has it.

Owns: the numbering of records, batches for upload, the running hash, the limits, gaps for what was lost.
Must not know: HTTP, masking, processes.

One thread may append while another uploads. A batch that was handed out stays the same until acknowledged, so
that a repeated upload is byte for byte the first one.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from airyard.core.log_frames import (
    HEADER_BYTES,
    MAX_FRAME_BYTES,
    MAX_PAYLOAD_BYTES,
    DamagedFrame,
    Gap,
    LogStream,
    encode,
    encode_header,
    frame_at,
    iter_frames,
)
from airyard.node.spool_segments import Segment, recover, whole_frames

SEGMENT_BYTES = 8 * 1024 * 1024
LIMIT_BYTES = 8 * 1024**3
MEMORY_LIMIT_BYTES = 8 * 1024 * 1024
"""What is kept in memory while the disk takes nothing."""
_MEMORY_SEGMENT_BYTES = 1024 * 1024
_LOW_DISK_SEGMENTS = 2
_DISK_CHECK_BYTES = 1024 * 1024
_REASON_LIMIT = "the log spool reached its limit of {limit} bytes before the server took the records"
_REASON_DISK = "the node's disk is nearly full"
_REASON_REFUSED = "the node's disk took no more log records"
_REASON_UNREADABLE = "the node's disk did not give the records back"
_REASON_DIED = "the runner died before the records were on disk"


@dataclass(slots=True, kw_only=True)
class _Batch:
    """What was handed out and is not yet acknowledged."""

    frames: bytes
    next_seq: int


class LogSpool:
    """A member's log between the pipe and the server. Not shared between processes."""

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int = LIMIT_BYTES,
        min_free_fraction: float = 0.05,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        """Open ``folder`` (made when missing), with whatever an earlier process left in it."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._min_free_fraction = min_free_fraction
        self._segment_bytes = max(MAX_FRAME_BYTES, min(segment_bytes, limit_bytes // 4))
        self._lock = threading.Condition()
        self._hash = hashlib.sha256()
        self._hash_is_whole = True
        self._segments: deque[Segment] = deque()
        self._sent: list[Segment] = []  # wholly in the batch on its way
        self._disk_bytes = 0
        self._memory_bytes = 0
        self._position = 0  # in bytes, in the first segment: where the next batch starts
        self._position_seq = 0
        self._batch: _Batch | None = None
        self._last_time_ns = 0
        self._sealed = False
        self._until_disk_check = 0
        self._next_seq = 0
        self._take_over()
        self._acknowledged = self._position_seq

    @property
    def next_seq(self) -> int:
        """The number that the next record will get; the last record's plus one."""
        return self._next_seq

    @property
    def acknowledged_seq(self) -> int:
        """The first number that the server does not have."""
        return self._acknowledged

    @property
    def is_drained(self) -> bool:
        """Whether the server has everything."""
        return self._acknowledged >= self._next_seq

    @property
    def is_sealed(self) -> bool:
        """Whether ``seal`` was called."""
        return self._sealed

    @property
    def pending_bytes(self) -> int:
        """Frame bytes kept, the batch on its way included."""
        with self._lock:
            kept = sum(segment.size for segment in self._segments) - self._position
            return kept + (len(self._batch.frames) if self._batch else 0)

    def digest(self) -> str | None:
        """Return the SHA-256 (hex) over all acknowledged frames in order.

        None when this process did not see them all: after a reopen of a log that was partly sent.
        """
        with self._lock:
            return self._hash.hexdigest() if self._hash_is_whole else None

    def append(self, stream: LogStream | int, data: bytes, time_ns: int) -> int:
        """Store one read of output; return the number of its last record (more than 64 KiB becomes several).

        Never raises and never waits for the network: what the disk refuses is kept in memory within a bound;
        beyond it the oldest unacknowledged records become a gap. Empty data stores nothing.
        """
        with self._lock:
            self._last_time_ns = time_ns
            view = memoryview(data)
            for start in range(0, len(data), MAX_PAYLOAD_BYTES):
                self._append_one(stream, view[start : start + MAX_PAYLOAD_BYTES], time_ns)
            self._lock.notify_all()
            return self._next_seq - 1

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until something is there to be sent; return whether it is."""
        with self._lock:
            self._lock.wait_for(lambda: self._sealed or self._acknowledged < self._next_seq, timeout_seconds)
            return self._acknowledged < self._next_seq

    def seal(self) -> None:
        """Say that nothing will be appended any more: from now on ``wait`` does not wait."""
        with self._lock:
            self._sealed = True
            self._lock.notify_all()

    def batch(self, max_bytes: int = 1024 * 1024) -> bytes:
        """Return whole frames from the first unacknowledged one on, at least one frame if there is any.

        The same bytes again until ``acknowledge`` moved on; so ``max_bytes`` only counts for a new batch.
        """
        with self._lock:
            if self._batch is None:
                self._batch = self._next_batch(max_bytes)
            return self._batch.frames if self._batch else b""

    def acknowledge(self, next_seq: int) -> None:
        """Take the server's word that it has all records below ``next_seq``; lower than before is ignored.

        Higher than all that was written is believed too (records lost in a crash that the server had got).
        """
        with self._lock:
            while self._acknowledged < next_seq:
                if self._batch is None:
                    self._batch = self._next_batch(SEGMENT_BYTES)
                if self._batch is None:
                    self._jump_to(next_seq)
                else:
                    self._consume(self._batch, next_seq)

    def resync(self, expected_seq: int) -> None:
        """Take the server's refusal that named the record it expects, and go on from there.

        What lies before the first record kept, and the server lacks, becomes a gap.
        """
        self.acknowledge(expected_seq)
        with self._lock:
            if expected_seq >= self._acknowledged:
                return
            self._hash_is_whole = False
            lost = _lost_with_the_runner(expected_seq, self._acknowledged)
            frame = encode(lost.record(self._last_time_ns))
            after = self._batch or _Batch(frames=b"", next_seq=self._acknowledged)
            self._batch = _Batch(frames=frame + after.frames, next_seq=after.next_seq)
            self._acknowledged = expected_seq

    def close(self) -> None:
        """Let go of the files and leave them where they are."""
        with self._lock:
            for segment in (*self._sent, *self._segments):
                segment.close()
            self._sent.clear()
            self._segments.clear()

    # --- writing

    def _append_one(self, stream: int, payload: memoryview, time_ns: int) -> None:
        header = encode_header(stream, self._next_seq, time_ns, payload)
        wanted = len(header) + len(payload)
        self._until_disk_check -= wanted
        if self._until_disk_check <= 0:
            self._check_disk()
        tail = self._segments[-1] if self._segments else None
        if tail is None or tail.gap is not None or tail.size + wanted > self._capacity(tail):
            tail = self._new_segment()
        try:
            tail.append(header, payload)
        except OSError:
            tail = self._append_where_possible(header, payload)
        self._next_seq += 1
        if tail.is_on_disk:
            self._disk_bytes += wanted
            if self._disk_bytes > self._limit_bytes:
                reason = _REASON_LIMIT.format(limit=self._limit_bytes)
                self._drop_oldest(lambda: self._disk_bytes <= self._limit_bytes, reason)
        else:
            self._memory_bytes += wanted
            if self._memory_bytes > MEMORY_LIMIT_BYTES:
                self._drop_oldest(lambda: self._memory_bytes <= MEMORY_LIMIT_BYTES, _REASON_REFUSED)

    def _append_where_possible(self, header: bytes, payload: memoryview) -> Segment:
        """Write a frame that the disk refused: make room by dropping the oldest, else keep it in memory."""
        if self._segments[-1].size == 0:
            self._segments.pop().delete()
        goal = self._disk_bytes - 2 * self._segment_bytes
        self._drop_oldest(lambda: self._disk_bytes <= goal, _REASON_REFUSED)
        segment = self._new_segment()
        try:
            segment.append(header, payload)
        except OSError:
            self._segments.pop().delete()
            segment = Segment.in_memory(self._next_seq)
            segment.append(header, payload)
            self._segments.append(segment)
        return segment

    def _new_segment(self) -> Segment:
        try:
            segment = Segment.on_disk(self._folder, self._next_seq)
        except OSError:
            segment = Segment.in_memory(self._next_seq)
        self._segments.append(segment)
        return segment

    def _capacity(self, segment: Segment) -> int:
        return self._segment_bytes if segment.is_on_disk else _MEMORY_SEGMENT_BYTES

    # --- limits

    def _check_disk(self) -> None:
        """Keep a part of the disk free, but never less than two segments, so that live logs still pass."""
        self._until_disk_check = min(_DISK_CHECK_BYTES, self._segment_bytes)
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return
        missing = int(self._min_free_fraction * disk.f_blocks * disk.f_frsize) - disk.f_bavail * disk.f_frsize
        if missing > 0:
            goal = max(_LOW_DISK_SEGMENTS * self._segment_bytes, self._disk_bytes - missing)
            self._drop_oldest(lambda: self._disk_bytes <= goal, _REASON_DISK)

    def _drop_oldest(self, is_enough: Callable[[], bool], reason: str) -> None:
        """Replace the oldest segments by one gap until it is enough; the one being written stays.

        A batch that was handed out is kept in memory, so only what comes after it is lost.
        """
        first_seq = next_seq = self._position_seq
        lost_bytes = 0
        while len(self._segments) > 1 and not is_enough():
            segment = self._segments.popleft()
            next_seq = segment.next_seq
            lost_bytes += self._payload_bytes_left(segment)
            self._position = 0
            # Before the gap is written: on a full disk its bytes are what the gap needs.
            self._forget(segment)
        if next_seq > first_seq:
            self._put_gap_in_front(
                Gap(first_seq=first_seq, last_seq=next_seq - 1, payload_bytes=lost_bytes, reason=reason)
            )

    def _payload_bytes_left(self, segment: Segment) -> int:
        if self._position == 0:
            return segment.payload_bytes
        records = segment.next_seq - self._position_seq
        return segment.size - self._position - HEADER_BYTES * records

    def _put_gap_in_front(self, gap: Gap) -> None:
        try:
            segment = Segment.on_disk(self._folder, gap.first_seq)
            try:
                segment.put_gap(gap, self._last_time_ns)
            except OSError:
                segment.delete()
                raise
        except OSError:
            segment = Segment.in_memory(gap.first_seq)
            segment.put_gap(gap, self._last_time_ns)
        self._count(segment, 1)
        self._segments.appendleft(segment)

    def _forget(self, segment: Segment) -> None:
        self._count(segment, -1)
        segment.delete()

    def _count(self, segment: Segment, sign: int) -> None:
        if segment.is_on_disk:
            self._disk_bytes += sign * segment.size
        else:
            self._memory_bytes += sign * segment.size

    # --- sending

    def _next_batch(self, max_bytes: int) -> _Batch | None:
        """Read frames from the position on, and move it behind them; files stay until acknowledged."""
        pieces: list[bytes] = []
        room = max_bytes
        while self._segments and (room > 0 or not pieces):
            segment = self._segments[0]
            if self._position >= segment.size:
                if len(self._segments) == 1:
                    break
                self._sent.append(self._segments.popleft())
                self._position = 0
                continue
            found = self._frames_at_position(segment, room)
            if found is None and not pieces:
                self._give_up(segment)
                continue
            if found is None or (pieces and len(found[0]) > room):
                break
            frames, self._position_seq = found
            pieces.append(frames)
            self._position += len(frames)
            room -= len(frames)
        return _Batch(frames=b"".join(pieces), next_seq=self._position_seq) if pieces else None

    def _frames_at_position(self, segment: Segment, room: int) -> tuple[bytes, int] | None:
        """Return whole frames and the number after them; None when the disk does not give them back."""
        try:
            data = segment.read(self._position, max(room, MAX_FRAME_BYTES))
            found = whole_frames(data, room)
        except (OSError, DamagedFrame):
            return None
        return (data[: found[0]], found[1]) if found else None

    def _give_up(self, segment: Segment) -> None:
        """Put a gap in the place of the rest of the first segment, which cannot be read."""
        lost = Gap(
            first_seq=self._position_seq,
            last_seq=segment.next_seq - 1,
            payload_bytes=self._payload_bytes_left(segment),
            reason=_REASON_UNREADABLE,
        )
        self._segments.popleft()
        self._forget(segment)
        self._position = 0
        self._put_gap_in_front(lost)

    def _consume(self, batch: _Batch, next_seq: int) -> None:
        """Take the part of the batch below ``next_seq`` as sent."""
        if next_seq >= batch.next_seq:
            self._hash.update(batch.frames)
            self._acknowledged = batch.next_seq
            self._batch = None
            for segment in self._sent:
                self._forget(segment)
            self._sent.clear()
            return
        end = 0
        while (found := frame_at(batch.frames, end)) is not None and found[1] < next_seq:
            end = found[0]
        self._hash.update(batch.frames[:end])
        batch.frames = self._without_overlap(batch.frames[end:], next_seq)
        self._acknowledged = next_seq

    def _without_overlap(self, frames: bytes, next_seq: int) -> bytes:
        """Shorten a gap at the start whose first records the server did get from a runner that died.

        Its count of bytes stays, and is then an upper bound.
        """
        found = frame_at(frames, 0)
        assert found is not None
        first = iter_frames(frames[: found[0]])[0][0]
        if first.first_seq >= next_seq:
            return frames
        self._hash_is_whole = False
        shortened = replace(Gap.decode(first.payload), first_seq=next_seq)
        return encode(shortened.record(first.time_ns)) + frames[found[0] :]

    def _jump_to(self, next_seq: int) -> None:
        """The server has more than was ever kept here: number on behind it."""
        self._hash_is_whole = False
        self._acknowledged = self._position_seq = self._next_seq = next_seq
        while self._segments:
            self._forget(self._segments.popleft())
        self._position = 0
        self._new_segment()

    # --- opening

    def _take_over(self) -> None:
        """Take what an earlier process left; holes between its files become gaps."""
        for segment in recover(self._folder):
            if self._segments and segment.first_seq > self._segments[-1].next_seq:
                hole = Segment.in_memory(self._segments[-1].next_seq)
                hole.put_gap(_lost_with_the_runner(hole.first_seq, segment.first_seq), 0)
                self._count(hole, 1)
                self._segments.append(hole)
            self._count(segment, 1)
            self._segments.append(segment)
        if self._segments:
            self._position_seq = self._segments[0].first_seq
            self._next_seq = self._segments[-1].next_seq
            self._hash_is_whole = self._position_seq == 0


def _lost_with_the_runner(first_seq: int, next_seq: int) -> Gap:
    return Gap(first_seq=first_seq, last_seq=next_seq - 1, payload_bytes=0, reason=_REASON_DIED)
