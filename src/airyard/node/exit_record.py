"""The attempt folder on a node: its lock, who runs in it, and how it ended, durably.

Owns: the names of the files in the folder, the lock that proves life, writes that survive a power cut.
Must not know: the runner's machine, the agent's protocol, HTTP.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


def boot_id() -> str:
    """Return the kernel's id of this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_ticks(pid: int) -> int | None:
    """Return when the process started, in clock ticks since boot; None when there is no such process.

    Source: proc(5), field 22 of stat; the name may hold spaces and parentheses.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def write_json_durably(path: Path, value: Mapping[str, Any]) -> None:
    """Replace the file so that after a crash it is wholly the old or the new one.

    Raises: OSError. Cost: two fsyncs.
    """
    temporary = path.with_name(f".{path.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", closefd=False) as stream:
            json.dump(value, stream, separators=(",", ":"))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json_by_rename(
    path: Path, value: Mapping[str, Any], *, give: Callable[[Path], None] = lambda path: None
) -> None:
    """Replace the file at once for readers; not durable. ``give`` makes it somebody's before. Raises: OSError."""
    temporary = path.with_name(f".{path.name}.new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as stream:
        json.dump(value, stream)
    give(temporary)
    os.rename(temporary, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in the file; None when it is missing or no JSON object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True, slots=True)
class AttemptFolder:
    """One member's folder ``attempts/<run>.<attempt>.<member>``; its being there makes a start idempotent."""

    path: Path

    @property
    def key(self) -> str:
        """The member's key, which is the folder's name."""
        return self.path.name

    @property
    def runner_file(self) -> Path:
        """Who runs here."""
        return self.path / "runner.json"

    @property
    def exit_file(self) -> Path:
        """How it ended."""
        return self.path / "exit.json"

    @property
    def lock_file(self) -> Path:
        """Locked for the runner's life."""
        return self.path / "lock"

    @property
    def lease_file(self) -> Path:
        """Until when the member may run: milliseconds of CLOCK_BOOTTIME. Missing: there is no lease."""
        return self.path / "lease"

    @property
    def spool(self) -> Path:
        """Log records that the server may not have yet."""
        return self.path / "spool"

    @property
    def control(self) -> Path:
        """Files of the runner for the command: stop file, command text. The command may not change this folder."""
        return self.path / "control"

    @property
    def replies(self) -> Path:
        """Files of the command for the runner; the command's folder."""
        return self.control / "replies"

    @property
    def stop_file(self) -> Path:
        """Appears when the command should stop."""
        return self.control / "stop.json"

    @property
    def acknowledgement_file(self) -> Path:
        """Written by user code after a checkpoint."""
        return self.replies / "checkpoint.json"

    def create(self) -> bool:
        """Make the folder; False when it is there already. Raises: OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self.path.mkdir(mode=0o700)
        except FileExistsError:
            return False
        return True

    def lock(self) -> int | None:
        """Take the lock for the life of this process (keep the descriptor); None when another holds it."""
        fd = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        return fd

    def is_locked(self) -> bool:
        """True while the runner lives, whatever its process id is worth."""
        try:
            fd = os.open(self.lock_file, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            # Shared, so that two observers never take each other for a runner.
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def runner(self) -> dict[str, Any] | None:
        """Return ``runner.json``."""
        return read_json(self.runner_file)

    def exit(self) -> dict[str, Any] | None:
        """Return ``exit.json``."""
        return read_json(self.exit_file)
