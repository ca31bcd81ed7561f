"""The server as the command line starts it, with stopwatches around what its threads do.

Owns: the stopwatches: one line a call in ``<home>/stopwatch.txt``. Must not know: what is measured with them.
A line is ``what begun_s wall_ms cpu_ms``, ``begun_s`` on the machine's monotonic clock, ``cpu_ms`` of that thread.
Pauses for the collection of garbage, which stop every thread, have a line each, too: ``gc0`` to ``gc2``.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airyard.app.control import Control
from airyard.app.planning import Planning
from airyard.server.__main__ import main

STOPWATCH_FILE = "stopwatch.txt"
WATCHED: tuple[tuple[type, str, str], ...] = (
    (Planning, "absorb", "absorb"),
    (Planning, "make", "plan"),
    (Control, "commit", "commit"),
)


class Lines:
    """A file that takes whole lines from any thread, also from a collection of garbage amid another write."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, what: str, begun_s: float, cpu_s: float) -> None:
        """Say that something which began then is over now."""
        wall_ms, cpu_ms = (time.monotonic() - begun_s) * 1000, (time.thread_time() - cpu_s) * 1000
        os.write(self._fd, f"{what} {begun_s:.3f} {wall_ms:.3f} {cpu_ms:.3f}\n".encode())


def watch(owner: type, name: str, what: str, out: Lines) -> None:
    """Replace a method by one that does the same and says how long it took."""
    inner: Callable[..., Any] = getattr(owner, name)

    def timed(*arguments: Any, **options: Any) -> Any:
        begun_s, cpu_s = time.monotonic(), time.thread_time()
        try:
            return inner(*arguments, **options)
        finally:
            out.add(what, begun_s, cpu_s)

    setattr(owner, name, timed)


def watch_pauses(out: Lines) -> None:
    """Say how long each collection of garbage took."""
    begun: list[tuple[float, float]] = []

    def on_pause(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append((time.monotonic(), time.thread_time()))
        elif begun:
            out.add(f"gc{info['generation']}", *begun.pop())

    gc.callbacks.append(on_pause)


if __name__ == "__main__":
    lines = Lines(Path(os.environ["AIRYARD_HOME"]) / STOPWATCH_FILE)
    for watched in WATCHED:
        watch(*watched, lines)
    watch_pauses(lines)
    sys.exit(main())
