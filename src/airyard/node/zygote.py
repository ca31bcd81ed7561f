"""A small warm process that forks runners, so that a start costs a fork and not an interpreter.

Owns: preloading, the double fork, the descriptors a runner starts with.
Must not know: the agent's protocol, what runners do.

Standard library only, single-threaded, so that forking is safe. It is driven over one socket pair by JSON lines,
one request at a time; tokens pass through memory only. It ends when the agent's end closes; its runners live on.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airyard.core.errors import AiryardError
from airyard.node import memory_guard
from airyard.node.containment import Containment, detect
from airyard.node.environment_view import can_overlay
from airyard.node.runner import RunnerSpec, serve, take_folder
from airyard.node.uv import find_uv, uv_version

_ANSWER_S = 30.0
_LEAVE_S = 5.0


class ZygoteGone(Exception):
    """The zygote's process ended; start another."""


class Zygote:
    """The agent's handle on its zygote process."""

    def __init__(self, node_folder: Path) -> None:
        """Start the process. Cost: an interpreter (about 80 ms), paid before the first run comes."""
        ours, theirs = socket.socketpair()
        ours.settimeout(_ANSWER_S)
        self._socket = ours
        self._stream = ours.makefile("rb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "airyard.node.zygote", str(node_folder), str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()

    @property
    def alive(self) -> bool:
        """True while the process runs."""
        return self._process.poll() is None

    def start(self, request: dict[str, Any], address: str) -> dict[str, Any]:
        """Fork a runner; return ``{"pid"}`` once it holds its lock, or ``{"error"}``. Raises: ZygoteGone."""
        line = json.dumps({**request, "address": address}).encode() + b"\n"
        try:
            self._socket.sendall(line)
            answer = self._stream.readline()
        except OSError as error:
            raise ZygoteGone(str(error)) from error
        if not answer:
            raise ZygoteGone("no answer")
        value = json.loads(answer)
        assert isinstance(value, dict)
        return value

    def close(self) -> None:
        """End the process; runners live on."""
        self._stream.close()
        self._socket.close()
        try:
            self._process.wait(_LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def main() -> None:
    """Serve fork requests until the agent is gone."""
    memory_guard.hide()  # before the first token comes; runners are forked so
    node_folder = Path(sys.argv[1])
    channel = socket.socket(fileno=int(sys.argv[2]))
    os.set_inheritable(channel.fileno(), False)
    # The cost of finding out is paid once, here; forks inherit the answers.
    node_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    warm = _Warm(node_folder=node_folder, containment=detect(), overlay_works=can_overlay(node_folder))
    with contextlib.suppress(AiryardError):  # an attempt that needs it will say so
        uv_version(find_uv())
    gc.collect()
    gc.freeze()
    for line in channel.makefile("rb"):
        answer = _fork_runner(json.loads(line), warm)
        channel.sendall(json.dumps(answer).encode() + b"\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warm:
    """What was found out once, for all runners."""

    node_folder: Path
    containment: Containment
    overlay_works: bool


def _fork_runner(request: dict[str, Any], warm: _Warm) -> dict[str, Any]:
    """Fork twice and wait for the runner's first word; the runner's parent is gone by then."""
    read, write = os.pipe()
    try:
        middle = os.fork()
    except OSError as error:
        os.close(read)
        os.close(write)
        return {"error": f"no process could be made: {error}"}
    if middle == 0:
        _become_runner(request, warm, write)
    os.close(write)
    os.waitpid(middle, 0)
    with os.fdopen(read, "rb") as stream:
        word = stream.read()
    if not word:
        return {"error": "the runner died before it held its lock"}
    value = json.loads(word)
    assert isinstance(value, dict)
    return value


def _become_runner(request: dict[str, Any], warm: _Warm, word_fd: int) -> None:
    """Never returns: the middle process leaves, the one below it runs the member."""
    status = 1
    told = False
    try:
        os.setsid()
        if os.fork() != 0:
            status = 0
            return
        spec = RunnerSpec.from_json(request, warm.node_folder)
        log = os.open(spec.folder.path / "runner.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        # Whatever else the zygote has open (its channel, a pipe of a neighbour) is not the runner's.
        kept = word_fd
        if kept < 3:
            return
        os.closerange(3, kept)
        os.closerange(kept + 1, _highest_fd() + 1)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        lock = take_folder(spec)
        if lock is None:
            os.write(word_fd, json.dumps({"error": "another runner holds the attempt folder"}).encode())
            return
        told = True
        os.write(word_fd, json.dumps({"pid": os.getpid()}).encode())
        os.close(word_fd)
        serve(spec, warm.containment, overlay_works=warm.overlay_works)
        status = 0
    except BaseException as error:
        if not told:
            full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
            word = {"error": f"{type(error).__name__}: {error}", "disk_full": full}
            os.write(word_fd, json.dumps(word).encode())
        with contextlib.suppress(OSError):  # the log may lie on a full disk
            traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stderr.flush()
        os._exit(status)


def _highest_fd() -> int:
    return max(int(name) for name in os.listdir("/proc/self/fd"))


if __name__ == "__main__":
    main()
