"""A test's own connection to a real agent: what the server's side would ask it, and what it pushes.

Owns: the dialogue's form. Must not know: what is asked for, or what is done with what comes.
"""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from airyard.adapters.agent_process import connected

PATIENCE_S = 60.0


class Line:
    """A connection to an agent."""

    def __init__(self, home: Path) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._stream = connected(home)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        self._stream.settimeout(PATIENCE_S)
        self._lines = self._stream.makefile("rb")
        self._pushed: list[dict[str, Any]] = []

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self._stream.sendall(json.dumps({"id": 1, "op": op, **fields}).encode() + b"\n")
        while "event" in (said := json.loads(self._lines.readline())):
            self._pushed.append(said)
        assert said["ok"], said
        result: dict[str, Any] = said["result"]
        return result

    def hello(self, locks: Path, **monitor: Any) -> dict[str, Any]:
        config = {"cpu_slots": 1, "system_gpu_lock_folder": str(locks), "simulate": {"GPU_1xA10": 1}}
        return self.ask("hello", protocol=2, oldest=1, config=config, **monitor)

    def health(self) -> list[dict[str, Any]]:
        """Wait for the next push of health events."""
        while True:
            said = self._pushed.pop(0) if self._pushed else json.loads(self._lines.readline())
            if said["event"] == "health":
                events: list[dict[str, Any]] = said["events"]
                return events

    def quiet(self, seconds: float) -> bool:
        """Say whether nothing is heard of health for a while."""
        self._stream.settimeout(seconds)
        try:
            return not any(
                "health" in json.loads(line).get("event", "") for line in iter(self._lines.readline, b"")
            )
        except (TimeoutError, OSError):
            return True

    def close(self) -> None:
        self._lines.close()
        self._stream.close()


def ended(home: Path) -> None:
    """End an agent, and wait for it."""
    with connected(home) as stream, socket.socket(fileno=os.dup(stream.fileno())) as end:
        end.settimeout(PATIENCE_S)
        end.sendall(b'{"id":0,"op":"stop"}\n')
        while end.recv(4096):
            pass
