"""The keeper: has Ray's own processes running on this machine, again when they died, until it is told to stop.

``python -m airyard.adapters.ray_keeper FOLDER --detach``: FOLDER holds ``plan.json`` {command, environment, temporary},
written by who starts it (``airyard node join``, or a server for its head), and ``keeper.lock``, held, with its pid.

Owns: one foreground process of Ray and its restarts. Must not know: what Ray is used for. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ALREADY_RUNS = 3
_CHECK_S = 1.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_LONG_LIFE_S = 60.0
_END_S = 4.0
_LOG_BYTES = 8 << 20


class Keeper:
    """Runs the plan of one folder, over and over."""

    def __init__(self, folder: Path, lock: int) -> None:
        self._folder = folder
        self._lock = lock
        self._stop = threading.Event()
        self._temporary = folder / "tmp"

    def ask_to_stop(self) -> None:
        """End Ray here, then leave."""
        self._stop.set()

    def run(self) -> None:
        """Keep Ray running until asked to stop, or until the folder was removed."""
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            began_s = time.monotonic()
            process = self._start()
            seen = False
            while process.poll() is None and not self._stop.wait(_CHECK_S):
                if not self._is_ours():
                    self._stop.set()
                # A raylet that was ended by SIGTERM is a good end to `ray start`, which then waits for ever.
                there = _has_raylet(process.pid)
                if seen and not there:
                    break
                seen = there
            if self._stop.is_set():
                break
            end_group(process.pid)
            code = process.wait()
            _say(f"Ray ended with exit code {code}; started again in {pause_s:g} s")
            if time.monotonic() - began_s > _LONG_LIFE_S:
                pause_s = _FIRST_PAUSE_S
            self._stop.wait(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
        else:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        end_group(process.pid)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _start(self) -> subprocess.Popen[bytes]:
        plan = json.loads((self._folder / "plan.json").read_text())
        command: Sequence[str] = plan["command"]
        environment: Mapping[str, str] = {**os.environ, **plan["environment"]}
        self._temporary = Path(plan["temporary"])
        self._temporary.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Ray never removes what it writes; the newest session may say why it ended.
        for old in sorted(self._temporary.glob("session_2*"))[:-1]:
            shutil.rmtree(old, ignore_errors=True)
        # A group of its own, so that whatever of Ray is left can be ended without looking for names.
        return subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True, cwd="/"
        )

    def _is_ours(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._lock), (self._folder / "keeper.lock").stat())
        except OSError:
            return False


def _has_raylet(parent: int) -> bool:
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            name, _, rest = Path(f"/proc/{child}/stat").read_text().partition("(")[2].rpartition(")")
            if name == "raylet" and rest.split()[0] not in ("Z", "X"):
                return True
    return False


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")


def end_group(group: int) -> None:
    """Kill what is left of a process group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def keeper_pid(folder: Path) -> int | None:
    """Return the pid of the live keeper of a folder; None when there is none."""
    try:
        lock = os.open(folder / "keeper.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        text = os.pread(lock, 32, 0).decode().strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(lock)


def start_keeper(folder: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan and have a keeper run it; harmless when one runs, which takes the plan at its next restart.

    Raises: OSError, subprocess.CalledProcessError.
    """
    temporary = folder / f".plan.{os.getpid()}"
    with open(temporary, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        json.dump(plan, file)  # a password may be in it
    temporary.replace(folder / "plan.json")
    subprocess.run(
        [sys.executable, "-m", "airyard.adapters.ray_keeper", str(folder), "--detach"],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        check=True,
    )


def end_keeper(folder: Path) -> bool:
    """Have the keeper of a folder end Ray and leave; False when there is none, or it did not leave in time."""
    pid = keeper_pid(folder)
    if pid is None:
        return False
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 2 * _END_S
    while keeper_pid(folder) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def main() -> int:
    """Keep the plan of one folder; exit code 3 when another keeper already does."""
    parser = argparse.ArgumentParser(prog="airyard.adapters.ray_keeper")
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--detach", action="store_true", help="leave the caller's process tree; write to keeper.log"
    )
    options = parser.parse_args()
    folder: Path = options.folder.absolute()
    if options.detach:
        if os.fork() != 0:
            return 0
        os.setsid()
        log = folder / "keeper.log"
        mode = os.O_TRUNC if log.exists() and log.stat().st_size > _LOG_BYTES else os.O_APPEND
        fd = os.open(log, os.O_WRONLY | os.O_CREAT | mode | os.O_CLOEXEC, 0o600)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
    lock = os.open(folder / "keeper.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.stderr.write(f"a keeper already runs for {folder}\n")
        return ALREADY_RUNS
    os.ftruncate(lock, 0)
    os.pwrite(lock, str(os.getpid()).encode(), 0)
    keeper = Keeper(folder, lock)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: keeper.ask_to_stop())
    keeper.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
