"""Writes to tracked runs, kept on disk while MLflow is away.

Owns: the spool's file format; the spool of writes whose run is known and those of attempts whose run does not
exist yet, which may have to wait longer and must hold up nobody else. Must not know: who may write (the proxy
has checked that), what a write means, or how it is replayed (``tracking_replay``).

One file per upstream, appended and fsynced before a write is acknowledged to its sender. A record is ``length
crc32`` (big-endian, 4 bytes each) and a payload: one line of JSON, then the body. A torn last record, never
acknowledged, is cut off when the file is opened. How far the replay has come is a number in a second file,
written without fsync: after a power failure some writes are sent again, which MLflow takes as the same writes
(the same metric point, tag or status once more).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import struct
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airyard.core.errors import Unavailable

_log = logging.getLogger(__name__)

_FRAME = struct.Struct(">II")
_REFUSED_BYTES = 64 * 1024 * 1024
_DRAINING_S = 3.0
_HELD_LIMIT_BYTES = 256 << 20
_ATTEMPT = re.compile(r"\d+\.\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpooledWrite:
    """One JSON request to MLflow: ``path`` below its base URL, received at ``at_ms``."""

    path: str
    body: bytes
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits to be replayed and why, and how many writes MLflow refused since the start."""

    writes: int
    bytes: int
    refused: int
    reason: str = ""


class WriteSpool:
    """The durable queue of writes in ``folder``. Safe from several threads; one process at a time.

    ``on_append`` is told of each write, under the lock. What MLflow refuses goes to ``refused_path``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int = 1 << 30,
        refused_path: Path | None = None,
        on_append: Callable[[], None] = lambda: None,
    ) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._refused_path = refused_path or folder / "writes.refused"
        self._on_append = on_append
        self._retired = False
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._file = os.open(folder / "writes.spool", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._mark = os.open(folder / "writes.replayed", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._refused = self._appended = self._synced = 0
        self._reason = ""
        self._dropped_s = -_DRAINING_S
        self._start = self._read_mark()
        self._end, self._writes = self._recover()

    def close(self) -> None:
        """Close the files; what waits stays on disk."""
        with self._lock:
            if not self._retired:
                os.close(self._file)
                os.close(self._mark)

    def retire(self) -> bool:
        """Remove an empty spool for good, unless somebody is at a write; returns whether it is gone."""
        with self._lock:
            if self._retired or self._writes or self._synced < self._appended:
                return self._retired
            self._retired = True
            os.close(self._file)
            os.close(self._mark)
            shutil.rmtree(self._folder, ignore_errors=True)
            return True

    def backlog(self) -> Backlog:
        """Count what waits."""
        with self._lock:
            size = self._end - self._start
            return Backlog(writes=self._writes, bytes=size, refused=self._refused, reason=self._reason)

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits; never blocks behind a write to disk."""
        return self._writes == 0

    @property
    def is_draining(self) -> bool:
        """Whether something waits and MLflow took a write a moment ago: senders then wait for their turn."""
        return self._writes > 0 and time.monotonic() - self._dropped_s < _DRAINING_S

    def note_failure(self, reason: str) -> None:
        """Keep why the oldest write still waits, for ``backlog``."""
        self._reason = reason

    def append(self, write: SpooledWrite) -> bool:
        """Keep a write behind all earlier ones; durable on return. False where the spool was retired.

        Raises: ``Unavailable`` when the spool is full or the disk does not take it.
        """
        header = json.dumps({"path": write.path, "at_ms": write.at_ms}).encode() + b"\n"
        payload = header + write.body
        record = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        with self._lock:
            if self._retired:
                return False
            if self._end + len(record) > self._limit_bytes:
                raise Unavailable(
                    f"MLflow is away; {self._writes} writes fill the spool ({self._limit_bytes} bytes)",
                    code="TRACKING_SPOOL_FULL",
                    retry_after_ms=10_000,
                )
            try:
                written = os.pwrite(self._file, record, self._end)
            except OSError as error:
                raise _not_written(error) from error
            if written != len(record):
                raise _not_written("the disk is full")
            self._end += len(record)
            self._writes += 1
            self._appended += 1
            mine = self._appended
            self._on_append()
        self._sync(mine)
        return True

    def _sync(self, mine: int) -> None:
        """Make the first ``mine`` writes durable; one that waited here may be covered by another's sync."""
        with self._sync_lock:
            if self._synced >= mine:
                return
            reached = self._appended
            try:
                os.fdatasync(self._file)
            except OSError as error:
                raise _not_written(error) from error
            self._synced = reached

    def oldest(self, limit: int = 1) -> list[SpooledWrite]:
        """Return up to ``limit`` writes to replay next; they stay until ``drop_oldest``."""
        with self._lock:
            found: list[SpooledWrite] = []
            at = self._start
            while len(found) < limit and (read := self._read(at)) is not None:
                found.append(read[0])
                at = read[1]
            return found

    def drop_oldest(self, count: int = 1) -> None:
        """Forget the oldest writes; the file is emptied with its last one."""
        with self._lock:
            for _ in range(count):
                read = self._read(self._start)
                if read is None:
                    return
                self._start, self._writes = read[1], self._writes - 1
            self._dropped_s, self._reason = time.monotonic(), ""
            if self._start >= self._end:
                os.ftruncate(self._file, 0)
                os.fdatasync(self._file)
                self._start = self._end = 0
            self._write_mark()

    def refuse_oldest(self, reason: str) -> None:
        """Move the oldest write into ``writes.refused``, one JSON line with the reason."""
        found = self.oldest()
        if not found:
            return
        write = found[0]
        line = {
            "reason": reason,
            "path": write.path,
            "at_ms": write.at_ms,
            "body": write.body.decode("utf-8", "replace"),
        }
        with self._refused_path.open("a", encoding="utf-8") as file:
            if file.tell() < _REFUSED_BYTES:
                file.write(json.dumps(line) + "\n")
        with self._lock:
            self._refused += 1
        self.drop_oldest()

    def _recover(self) -> tuple[int, int]:
        """Find the end of the last whole record, cut the rest, count what waits."""
        size = os.fstat(self._file).st_size
        if self._start > size:
            self._start = 0
        self._end, writes, at = size, 0, self._start
        while (read := self._read(at)) is not None:
            writes, at = writes + 1, read[1]
        if at < size:
            _log.warning(
                "the tracking spool ended in a torn record of %d bytes, which was cut off", size - at
            )
            os.ftruncate(self._file, at)
        return at, writes

    def _read(self, at: int) -> tuple[SpooledWrite, int] | None:
        """Read the record at ``at``: the write and where the next begins; None at the end or a torn one."""
        frame = os.pread(self._file, _FRAME.size, at) if at < self._end else b""
        if len(frame) < _FRAME.size:
            return None
        length, checksum = _FRAME.unpack(frame)
        payload = os.pread(self._file, length, at + _FRAME.size)
        if len(payload) != length or zlib.crc32(payload) != checksum:
            return None
        header, _, body = payload.partition(b"\n")
        fields = json.loads(header)
        write = SpooledWrite(path=fields["path"], body=body, at_ms=fields["at_ms"])
        return write, at + _FRAME.size + length

    def _read_mark(self) -> int:
        text = os.pread(self._mark, 32, 0).strip()
        return int(text) if text.isdigit() else 0

    def _write_mark(self) -> None:
        os.pwrite(self._mark, f"{self._start:<20d}\n".encode(), 0)


def _not_written(why: object) -> Unavailable:
    return Unavailable(f"the tracking spool cannot be written: {why}", code="TRACKING_SPOOL")


class Spools:
    """All spools of a yard: ``main``, and one by attempt for writes that name its run by an alias.

    An attempt's spool exists from its first such write until it was emptied. Safe from several threads.
    """

    def __init__(self, folder: Path) -> None:
        self.arrived = threading.Event()
        self._held_folder = folder / "held"
        self._refused_path = folder / "writes.refused"
        self._lock = threading.Lock()
        self._held: dict[str, WriteSpool] = {}
        self._refused = 0
        self.main = WriteSpool(folder, on_append=self.arrived.set)
        for found in sorted(self._held_folder.glob("*")):
            if _ATTEMPT.fullmatch(found.name):
                self._open(found.name)
        self.arrived.set()

    def close(self) -> None:
        """Close the files; what waits stays on disk."""
        for spool in (self.main, *self._held.values()):
            spool.close()

    def backlog(self) -> Backlog:
        """Count what waits, everywhere."""
        every = [spool.backlog() for spool in (self.main, *self.held().values())]
        return Backlog(
            writes=sum(each.writes for each in every),
            bytes=sum(each.bytes for each in every),
            refused=self._refused + sum(each.refused for each in every),
            reason=next((each.reason for each in every if each.reason), ""),
        )

    def held(self) -> dict[str, WriteSpool]:
        """Return the spools of attempts, by attempt key."""
        with self._lock:
            return dict(self._held)

    def held_of(self, attempt_key: str) -> WriteSpool | None:
        """Return the attempt's spool while something waits in it."""
        spool = self._held.get(attempt_key)
        return spool if spool is not None and not spool.is_empty else None

    def hold(self, attempt_key: str, write: SpooledWrite) -> WriteSpool:
        """Keep a write of an attempt behind its earlier ones; durable on return. Raises: as ``WriteSpool.append``."""
        while True:
            with self._lock:
                spool = self._held.get(attempt_key) or self._open(attempt_key)
            if spool.append(write):
                return spool

    def retire(self, attempt_key: str) -> None:
        """Remove the attempt's spool if it is empty."""
        with self._lock:
            spool = self._held.get(attempt_key)
            if spool is not None and spool.retire():
                self._refused += spool.backlog().refused
                del self._held[attempt_key]

    def _open(self, attempt_key: str) -> WriteSpool:
        self._held[attempt_key] = spool = WriteSpool(
            self._held_folder / attempt_key,
            limit_bytes=_HELD_LIMIT_BYTES,
            refused_path=self._refused_path,
            on_append=self.arrived.set,
        )
        return spool
