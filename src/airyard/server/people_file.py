"""The users file that the configuration names: read at the start, and again whenever it changes.

Owns: which version of the file counts. Must not know: its fields, tokens.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import structlog

from airyard.core.access.people import People, RunAs
from airyard.core.errors import UserError
from airyard.spec.people import load_people

LOOK_S = 1.0
_log = structlog.get_logger("airyard.people")
_Stamp = tuple[int, int, int]


class PeopleFile:
    """Says who there is. A broken edit is told once, and the last good version goes on counting. Any thread."""

    def __init__(
        self,
        path: Path | None,
        *,
        owner: str,
        look_s: float = LOOK_S,
        run_as: RunAs = RunAs.SERVER,
        allow_root: bool = False,
    ) -> None:
        """Read the file; ``run_as`` and ``allow_root`` are the configuration's.

        Raises: UserError with its problems: a server does not start on a broken one.
        """
        self._path = path
        self._owner = owner
        self._look_s = look_s
        self._lock = threading.Lock()
        self._stamp = _stamp(path)
        self._run_as = run_as
        self._allow_root = allow_root
        self._found = self._load(path)
        self._due = time.monotonic() + look_s
        self.problem: str | None = None
        """What is wrong with the newest version of the file; None when it counts."""

    def current(self) -> People:
        """Return the people of the newest good version. Cost: one stat a second."""
        if self._path is None or time.monotonic() < self._due:
            return self._found
        with self._lock:
            self._due = time.monotonic() + self._look_s
            stamp = _stamp(self._path)
            if stamp != self._stamp:
                self._stamp = stamp
                self._read(self._path)
            return self._found

    def _load(self, path: Path | None) -> People:
        found = load_people(path, owner=self._owner) if path is not None else People(owner=self._owner)
        return replace(found, run_as=self._run_as, allow_root=self._allow_root)

    def _read(self, path: Path) -> None:
        try:
            self._found = self._load(path)
        except UserError as error:
            self.problem = error.message
            _log.error("users_file_refused", file=str(path), problem=error.message)
        else:
            self.problem = None
            _log.info("users_file_read", file=str(path), users=len(self._found.known))


def _stamp(path: Path | None) -> _Stamp | None:
    """Return what differs after any edit, also one that keeps size and time to the second."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
