"""Health events on their way to the server: on disk until it says that it has them.

Owns: the file, its bound, what is still to be sent. Must not know: what events mean, what carries them.
Whatever thread: the watch adds, the agent sends and removes.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from airyard.core.health.facts import HealthEvent, Severity

Moment = tuple[int, int]
"""Milliseconds since 1970, by a clock that may be set; and of one that nobody sets, since the machine was started."""
_NOTED = "noted"
"""With an event on disk: at which two moments it came, and in which boot. It is not sent."""
MOST = 1_000
"""So many events wait at most; then those that weigh least go first, and are counted."""
_REWRITE_BYTES = 256 * 1024
_GRAVITY = tuple(severity.value for severity in Severity)


class HealthOutbox:
    """The events of one agent, by their ids, in order."""

    def __init__(
        self, path: Path, *, most: int = MOST, now: Callable[[], Moment] | None = None, boot: str = ""
    ) -> None:
        """Take up what an agent before this one had not delivered. A line that was cut by a crash is left out.

        ``now`` is asked for both clocks, ``boot`` names the boot in which the second one counts.
        """
        self._path = path
        self._now, self._boot = now or moment, boot
        self._most = most
        self._lock = threading.Lock()
        self._waiting: dict[str, dict[str, Any]] = {}
        self._bytes = 0
        self.dropped = 0
        with contextlib.suppress(OSError):
            for line in path.read_bytes().splitlines():
                self._take_up(line)
        self._rewrite()

    def _take_up(self, line: bytes) -> None:
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
            event = json.loads(line)
            HealthEvent.from_json(event)
            if _NOTED in event:
                boot, wall_ms, steady_ms = event[_NOTED]
                event[_NOTED] = [str(boot), int(wall_ms), int(steady_ms)]
            self._waiting[str(event["event_id"])] = event

    def add(self, events: Iterable[HealthEvent]) -> int:
        """Keep events until they are taken; return how many were new. They are on disk when this returns.

        A disk that is full keeps nobody from being told: the events wait in memory then.
        """
        with self._lock:
            noted = [self._boot, *self._now()]
            new = [
                {**event.as_json(), _NOTED: noted} for event in events if event.event_id not in self._waiting
            ]
            for event in new:
                self._waiting[event["event_id"]] = event
            if len(self._waiting) > self._most:
                self._shed()
                self._rewrite()
            elif new:
                self._append(new)
            return len(new)

    def waiting(self, most: int) -> list[dict[str, Any]]:
        """Return the oldest events that nobody has taken yet."""
        with self._lock:
            return [self._told(one) for one in list(self._waiting.values())[:most]]

    def _told(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return an event by the clock as it is now: one that was set since says another time for the same moment."""
        told = {name: value for name, value in event.items() if name != _NOTED}
        boot, wall_ms, steady_ms = event.get(_NOTED) or ("", 0, 0)
        if self._boot and boot == self._boot:
            wall_now_ms, steady_now_ms = self._now()
            told["at_ms"] += wall_now_ms - wall_ms - (steady_now_ms - steady_ms)
        return told

    def taken(self, ids: Iterable[str]) -> None:
        """Forget events that the server has journalled."""
        with self._lock:
            for one in ids:
                self._waiting.pop(one, None)
            if self._bytes and (not self._waiting or self._bytes > _REWRITE_BYTES):
                self._rewrite()

    def _shed(self) -> None:
        """Drop the mildest, the oldest of those first. Cost: all that wait, so a tenth of them goes at once."""
        order = sorted(self._waiting, key=lambda one: _GRAVITY.index(self._waiting[one]["severity"]))
        for one in order[: len(order) - self._most * 9 // 10]:
            del self._waiting[one]
            self.dropped += 1

    def _append(self, events: list[dict[str, Any]]) -> None:
        text = b"".join(_line(event) for event in events)
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                # After a line that a crash cut, this one begins anew.
                os.write(fd, b"\n" + text if self._bytes else text)
                os.fsync(fd)
            finally:
                os.close(fd)
        self._bytes += len(text)

    def _rewrite(self) -> None:
        text = b"".join(_line(event) for event in self._waiting.values())
        temporary = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, text)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, self._path)
        self._bytes = len(text)


def moment() -> Moment:
    """Return both clocks of now."""
    return time.time_ns() // 1_000_000, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _line(event: dict[str, Any]) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
