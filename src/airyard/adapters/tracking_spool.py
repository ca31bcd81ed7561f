"""Writes to tracked runs, kept on disk while MLflow is away, and their replay in order.

Owns: the spool's file format and the replaying thread. Must not know: who may write (the proxy has checked
that), or what a write means.

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
import struct
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from airyard.adapters.mlflow_endpoint import AWAY_STATUSES, MlflowEndpoint
from airyard.adapters.tracking_merge import Request, first_request
from airyard.core.errors import Unavailable

_log = logging.getLogger(__name__)

_FRAME = struct.Struct(">II")
_PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0)
_SERVER_ERRORS_UNTIL_REFUSED = 8
_REFUSED_BYTES = 64 * 1024 * 1024
_DRAINING_S = 3.0
_JOINED_WRITES = 200


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
    """The durable queue of writes in ``folder``. Safe from several threads; one process at a time."""

    def __init__(self, folder: Path, *, limit_bytes: int = 1 << 30) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._limit_bytes = limit_bytes
        self._refused_path = folder / "writes.refused"
        self._lock = threading.Lock()
        self._sync_lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
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
            os.close(self._file)
            os.close(self._mark)

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

    def append(self, write: SpooledWrite) -> None:
        """Keep a write behind all earlier ones; durable on return.

        Raises: ``Unavailable`` when the spool is full or the disk does not take it.
        """
        header = json.dumps({"path": write.path, "at_ms": write.at_ms}).encode() + b"\n"
        payload = header + write.body
        record = _FRAME.pack(len(payload), zlib.crc32(payload)) + payload
        with self._lock:
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
            self._arrived.notify_all()
        self._sync(mine)

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

    def wait(self, timeout_s: float) -> bool:
        """Wait until something is to be replayed; returns whether it is."""
        with self._lock:
            return self._arrived.wait_for(lambda: self._writes > 0, timeout_s)

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


class SpoolReplayer:
    """The thread that sends what waits, oldest first, and goes on only when MLflow took or refused it."""

    def __init__(
        self,
        spool: WriteSpool,
        endpoint: MlflowEndpoint,
        *,
        on_refused: Callable[[SpooledWrite, str], None] | None = None,
    ) -> None:
        self._spool = spool
        self._endpoint = endpoint
        self._on_refused = on_refused
        self._stopping = threading.Event()
        self._poked = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracking-replay", daemon=True)

    def start(self) -> None:
        """Start replaying."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the request in flight."""
        self._stopping.set()
        self._poked.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def poke(self) -> None:
        """Try again now: MLflow is said to be back."""
        self._poked.set()

    def _run(self) -> None:
        failures = server_errors = singly = 0
        with self._endpoint.client() as client:
            while not self._stopping.is_set():
                if not self._spool.wait(timeout_s=1.0):
                    continue
                found = self._spool.oldest(1 if singly else _JOINED_WRITES)
                if not found:
                    continue
                request = first_request([(write.path, write.body) for write in found])
                status, reason = self._send(client, request)
                server_errors = server_errors + 1 if status == 500 else 0
                poison = self._is_poison(status) or server_errors >= _SERVER_ERRORS_UNTIL_REFUSED
                if 200 <= status < 300:
                    self._spool.drop_oldest(request.writes)
                    failures, singly = 0, max(0, singly - 1)
                elif poison and request.writes > 1:
                    # One of them is refused: send each by itself to find out which.
                    singly, server_errors = request.writes, 0
                elif poison:
                    self._refuse(found[0], reason)
                    failures, server_errors, singly = 0, 0, max(0, singly - 1)
                else:
                    self._spool.note_failure(reason)
                    self._poked.wait(_PAUSES_S[min(failures, len(_PAUSES_S) - 1)])
                    self._poked.clear()
                    failures += 1

    def _is_poison(self, status: int) -> bool:
        """Whether asking again cannot help; a refused credential (401, 403) can be mended, so it waits."""
        return 400 <= status < 500 and status not in AWAY_STATUSES | {401, 403, 408}

    def _send(self, client: httpx.Client, request: Request) -> tuple[int, str]:
        """Send one request; status 0 stands for no answer."""
        headers = {"Content-Type": "application/json"}
        try:
            answer = client.post(request.path, content=request.body, headers=headers)
        except httpx.HTTPError as error:
            return 0, str(error)
        return answer.status_code, f"HTTP status {answer.status_code}: {answer.text[:500]}"

    def _refuse(self, write: SpooledWrite, reason: str) -> None:
        age_s = time.time() - write.at_ms / 1000
        _log.warning("MLflow refused the write to %s spooled %.0f s ago: %s", write.path, age_s, reason)
        self._spool.refuse_oldest(reason)
        if self._on_refused is not None:
            self._on_refused(write, reason)
