"""NVML from a safe distance: questions to a process that can be given up, each with a deadline.

Owns: that process, and what is known when it does not answer. Must not know: what the answers mean.

A driver that is slow is waited for: an answer that comes late is had by the next question. One that has not answered
for ``HANGS_S`` is given up, and the next question goes to another process. A process that cannot even be killed (it
waits in the kernel) is left behind, and no other one is started while it is there.
"""

from __future__ import annotations

import ctypes
import json
import socket
import subprocess
import sys
import threading
import time
from typing import Any

from airyard.checks.nvml import Gpu, Gpus
from airyard.checks.nvml_load import Counts, Load

HANGS_S = 45.0
ANSWER_S = 5.0
_AGAIN_S = 5.0
_BRIEF_S = 0.2
_LIBRARY = "libnvidia-ml.so.1"
_CHUNK = 65_536


class NvmlSilent(Exception):
    """No answer in time; says since when."""


class NvmlRefused(Exception):
    """NVML itself could not be opened; ``code`` is its own."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def there_is_a_library(name: str = _LIBRARY) -> bool:
    """Return whether the driver's library can be loaded. Cost: well under a millisecond where there is none."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


class NvmlClient:
    """One process at a time; any thread may ask."""

    def __init__(self, *, hangs_s: float = HANGS_S) -> None:
        self._hangs_s = hangs_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: socket.socket | None = None
        self._buffer = b""
        self._number = 0
        self._open_since_s: float | None = None
        self._not_before_s = 0.0
        self.hung = 0
        """How many processes in a row hung without one answer in between."""

    def ask(self, op: str, *, wait_s: float = ANSWER_S, **fields: Any) -> Any:
        """Return the answer. Raises: NvmlSilent, NvmlRefused."""
        until_s = time.monotonic() + wait_s
        if not self._lock.acquire(timeout=wait_s):
            raise NvmlSilent("an earlier question is still open")
        try:
            return self._ask(op, fields, until_s)
        except (OSError, ValueError) as error:
            self._give_up()
            raise NvmlSilent(f"its process broke: {error}") from error
        finally:
            self._lock.release()

    def readings(self, *, wait_s: float = ANSWER_S) -> Gpus:
        """Return a reading of all devices. Raises: NvmlSilent."""
        try:
            found = self.ask("readings", wait_s=wait_s)
        except NvmlRefused as error:
            return Gpus(error=error.code, error_text=str(error))
        gpus = [
            Gpu(**{**one, "links": tuple(one["links"]) if one["links"] else None, "pids": tuple(one["pids"])})
            for one in found["gpus"]
        ]
        return Gpus(**{**found, "gpus": tuple(gpus)})

    def loads(self, *, wait_s: float = ANSWER_S) -> list[Load]:
        """Return how hard each device works. Raises: NvmlSilent, NvmlRefused."""
        return [Load(**one) for one in self.ask("loads", wait_s=wait_s)]

    def counts(self, *, wait_s: float = ANSWER_S) -> list[Counts]:
        """Return the counters of each device. Raises: NvmlSilent, NvmlRefused."""
        return [Counts(**one) for one in self.ask("counts", wait_s=wait_s)]

    def close(self) -> None:
        """End the process."""
        if self._lock.acquire(timeout=1):
            try:
                self._give_up()
            finally:
                self._lock.release()

    def _ask(self, op: str, fields: dict[str, Any], until_s: float) -> Any:
        stream = self._connected()
        if self._open_since_s is not None:
            # The answer to an earlier question, which nobody waits for: who was silent so long is not waited for again.
            now_s = time.monotonic()
            late = now_s - self._open_since_s > ANSWER_S / 2
            self._receive(stream, min(until_s, now_s + _BRIEF_S) if late else until_s)
        self._number += 1
        stream.sendall(json.dumps({"id": self._number, "op": op, **fields}).encode() + b"\n")
        self._open_since_s = time.monotonic()
        answer = self._receive(stream, until_s)
        if "error" in answer:
            raise NvmlRefused(answer["error"]["code"], answer["error"]["message"])
        return answer["result"]

    def _receive(self, stream: socket.socket, until_s: float) -> dict[str, Any]:
        """Return the answer to the question that is open. Raises: NvmlSilent, OSError when the process ended."""
        while b"\n" not in self._buffer:
            left_s = until_s - time.monotonic()
            stream.settimeout(max(left_s, 0.001))
            try:
                data = stream.recv(_CHUNK)
            except TimeoutError:
                raise self._silence() from None
            if not data:
                raise OSError("it ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        self._open_since_s = None
        self.hung = 0
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _silence(self) -> NvmlSilent:
        since_s = time.monotonic() - (self._open_since_s or time.monotonic())
        if since_s >= self._hangs_s:
            self.hung += 1
            self._give_up()
        return NvmlSilent(f"no answer for {since_s:.0f} s")

    def _connected(self) -> socket.socket:
        if self._stream is not None:
            return self._stream
        if self._process is not None and self._process.poll() is None:
            self.hung += 1
            raise NvmlSilent(f"process {self._process.pid} waits in the kernel and cannot be ended")
        if time.monotonic() < self._not_before_s:
            raise NvmlSilent("the process before it broke just now")
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "airyard.checks.nvml_child", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._stream, self._buffer, self._open_since_s = ours, b"", None
        return ours

    def _give_up(self) -> None:
        """Kill the process; whether it is gone is looked at when the next one is to be started."""
        self._not_before_s = time.monotonic() + _AGAIN_S
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(0.2)
            except subprocess.TimeoutExpired:
                pass
        self._open_since_s = None
