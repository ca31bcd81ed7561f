"""Gets torch's flight recorders to write what each rank of a stuck member is at, and reads it.

Owns: the variables that switch them on, asking for a dump, the thread that waits for it. Must not know: what a dump
looks like (``flight_dump``), who is late, HTTP. Standard library only.

A rank writes a dump when something comes through its pipe, from a thread of torch that runs as long as the process
does not hold the interpreter's lock for good; and by itself before a watchdog ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from airyard.node.flight_dump import MOST_OCTETS
from airyard.node.identity import Identity
from airyard.node.job_files import read_small

_DUMP = "flight-"
_PIPE = "flight-pipe-"
_WAIT_S = 30.0
_POLL_S = 0.5
_READ_S = 20.0
_ENTRIES = "2000"
_RENAMED = (2, 9)


def variables(
    folder: Path, *, at_once: bool, users: Container[str] = (), bin_folder: Path | None = None
) -> dict[str, str]:
    """Return what switches the recorders on; ``folder`` is the command's own, ``users`` names what the user sets.

    ``at_once``: also have them listen for a request. Only where the run speaks of hangs: torch ends a process that
    cannot make its pipe, as in a container that does not see the folder. ``bin_folder`` is the environment's, whose
    torch says which names it takes without a warning in every rank's log.
    """
    size = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_FR_BUFFER_SIZE")
    file = ("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE")
    newer = int(not is_older(bin_folder))
    wanted = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
    # The new name goes before the old one in torch: ours must not go before the user's.
    if not any(name in users for name in size):
        wanted[size[newer]] = _ENTRIES
    if not any(name in users for name in file):
        wanted[file[newer]] = str(folder / _DUMP)
    if at_once:
        wanted["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = str(folder / _PIPE)
    return wanted


def is_older(bin_folder: Path | None) -> bool:
    """True where an environment has a torch from before its variables got their new names (2.9)."""
    if bin_folder is None:
        return False
    for found in bin_folder.parent.glob("lib/python*/site-packages/torch-*.dist-info"):
        numbers = found.name.removeprefix("torch-").split(".")[:2]
        if len(numbers) == 2 and all(number.isdigit() for number in numbers):
            return (int(numbers[0]), int(numbers[1])) < _RENAMED
    return False


class FlightReader:
    """The dumps of one member's ranks. ``ask`` may be called again for another stall."""

    def __init__(self, folder: Path, owner: Identity | None) -> None:
        self._folder = folder
        self._owner = owner
        self._found: dict[int, list[dict[str, Any]]] = {}
        self._thread: threading.Thread | None = None

    def of(self, rank: int) -> list[dict[str, Any]]:
        """Return how far a rank is in each communicator; nothing while that is not known."""
        return self._found.get(rank, [])

    def ask(self, ranks: Iterable[int]) -> None:
        """Have these ranks write a dump, and read it once it is there: on a thread, of which there is one."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._found = {}
        asked_s = time.time()
        wanted = [rank for rank in ranks if self._poke(rank)]
        if wanted:
            self._thread = threading.Thread(
                target=self._collect, args=(wanted, asked_s), name="flight", daemon=True
            )
            self._thread.start()

    def _poke(self, rank: int) -> bool:
        """Write to the rank's pipe; False where there is none, or nobody reads from it."""
        path = self._folder / f"{_PIPE}{rank}.pipe"
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                found = os.fstat(handle)
                ours = self._owner is None or found.st_uid == self._owner.uid
                if stat.S_ISFIFO(found.st_mode) and ours:
                    return os.write(handle, b"1\n") > 0
            finally:
                os.close(handle)
        return False

    def _collect(self, wanted: list[int], asked_s: float) -> None:
        left, end_s = set(wanted), time.monotonic() + _WAIT_S
        while left and time.monotonic() < end_s:
            time.sleep(_POLL_S)
            for rank in sorted(left):
                data = self._dump(rank, asked_s)
                if data is None:
                    continue
                found = read_dump(data)
                if found is not None:  # else it is being written
                    self._found = {**self._found, rank: found}
                    left.discard(rank)

    def _dump(self, rank: int, asked_s: float) -> bytes | None:
        with contextlib.suppress(OSError):
            found = read_small(self._folder / f"{_DUMP}{rank}", self._owner, limit_bytes=MOST_OCTETS)
            if found is not None and found[0].st_mtime >= asked_s - 1:
                return found[1]
        return None


def read_dump(data: bytes) -> list[dict[str, Any]] | None:
    """Return what a dump says; None for one that is broken, or takes too much memory or time. Cost: a process."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "airyard.node.flight_dump"],
            input=data,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_READ_S,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found if isinstance(found, list) else None
