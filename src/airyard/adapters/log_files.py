"""The log store on a local disk: ``<run>/<attempt>/<member>.log`` below one folder.

Owns: which logs are open, paths, what a refusing disk means. Must not know: HTTP, how lines are shown.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from airyard.adapters.log_file import LogFile
from airyard.core.errors import Unavailable
from airyard.core.ids import MemberKey
from airyard.core.log_frames import LogRecord
from airyard.ports.log_store import LogEnd

OPEN_FILES = 256
_NOTHING = LogEnd(next_seq=0, bytes=0, sha256=hashlib.sha256().hexdigest())


class FileLogStore:
    """Logs as files. Any thread; calls for one member wait for each other."""

    def __init__(self, folder: Path, *, open_files: int = OPEN_FILES, term: int | None = None) -> None:
        """``term``: this leader's, among several servers on one folder; it writes to files of its own."""
        self._folder = folder
        self._term = term
        self._open_files = open_files
        self._lock = threading.Lock()
        self._logs: OrderedDict[MemberKey, LogFile] = OrderedDict()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def append(self, key: MemberKey, frames: bytes) -> int:
        """Store whole frames durably and return the seq expected next."""
        try:
            with self._using(key, create=True) as log:
                assert log is not None
                log.append(frames)
                return log.next_seq
        except OSError as error:
            raise self._unavailable(error) from error

    def end(self, key: MemberKey) -> LogEnd:
        """Return how far the log is."""
        with self._using(key) as log:
            if log is None:
                return _NOTHING
            return LogEnd(next_seq=log.next_seq, bytes=log.payload_bytes, sha256=log.sha256())

    def next_seq(self, key: MemberKey) -> int:
        """Return the seq expected next, without the cost of the hash."""
        with self._using(key) as log:
            return log.next_seq if log is not None else 0

    def read(self, key: MemberKey, from_seq: int = 0, limit_bytes: int = 1 << 20) -> list[LogRecord]:
        """Return records from ``from_seq`` on."""
        with self._using(key) as log:
            return log.read(from_seq, limit_bytes) if log is not None else []

    def seek_time(self, key: MemberKey, time_ns: int) -> int:
        """Return a seq at or shortly before the first record of this time."""
        with self._using(key) as log:
            return log.seek_time(time_ns) if log is not None else 0

    def seek_tail(self, key: MemberKey, lines: int) -> int:
        """Return a seq from which at least the last ``lines`` lines can be read."""
        with self._using(key) as log:
            return log.seek_tail(lines) if log is not None else 0

    def delete_run(self, run_id: int) -> int:
        """Remove all logs of a run; return the bytes freed."""
        self._drop(lambda key: key.run_id == run_id)
        folder = self._folder / str(run_id)
        freed = _size(folder)
        shutil.rmtree(folder, ignore_errors=True)
        self._drop(
            lambda key: key.run_id == run_id
        )  # whoever opened one meanwhile holds a file without a name
        return freed

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield (run id, bytes) of every run that has logs."""
        for run_id in sorted(int(folder.name) for folder in self._folder.iterdir() if folder.name.isdigit()):
            yield run_id, _size(self._folder / str(run_id))

    def close(self) -> None:
        """Release all files."""
        self._drop(lambda key: True)

    @contextmanager
    def _using(self, key: MemberKey, *, create: bool = False) -> Iterator[LogFile | None]:
        """Give one log, opened if need be and locked, or None when there is none."""
        with self._lock:
            log = self._logs.get(key)
            if log is None:
                path = self._folder / str(key.run_id) / str(key.attempt) / f"{key.member}.log"
                log = self._logs[key] = LogFile(path, self._term)
            self._logs.move_to_end(key)
            log.users += 1
            self._close_idle()
        try:
            with log.lock:
                yield log if log.open(create=create) else None
        finally:
            with self._lock:
                log.users -= 1
                if log.users == 0 and self._logs.get(key) is not log:
                    log.close()

    def _close_idle(self) -> None:
        """Close the files used longest ago, as far as nobody is at them."""
        surplus = len(self._logs) - self._open_files
        if surplus > 0:
            idle = [key for key, log in self._logs.items() if log.users == 0]
            for key in idle[:surplus]:
                self._logs.pop(key).close()

    def _drop(self, chosen: Callable[[MemberKey], bool]) -> None:
        """Forget logs; one in use is closed by its last user."""
        with self._lock:
            for key in [key for key in self._logs if chosen(key)]:
                log = self._logs.pop(key)
                if log.users == 0:
                    log.close()

    def _unavailable(self, error: OSError) -> Unavailable:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        disk = os.statvfs(self._folder)
        free_bytes = disk.f_bavail * disk.f_frsize
        why = "its disk is full" if full else str(error)
        return Unavailable(
            f"The log store {self._folder} takes no more records: {why} ({free_bytes} bytes free). "
            "The nodes keep what they have and send it again.",
            code="LOG_DISK_FULL" if full else "LOG_STORE_BROKEN",
            fix="Free space on that disk; `airyard admin gc --dry-run` shows what Airyard can remove."
            if full
            else "Look at the disk's health and the folder's permissions.",
            details={"path": str(self._folder), "free_bytes": free_bytes},
            retry_after_ms=5000,
        )


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
