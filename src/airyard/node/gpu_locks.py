"""One owner a GPU on a machine, however many users run a yard on it.

Owns: a lock file per GPU UUID in a folder all users share, and what it says of its holder.
Must not know: NVML, nodes, who asks.

The holder is whoever has the file locked; what is written in it only names them. Users are trusted not to cheat:
the folder is for honest neighbours, as a lock on a shared machine always is.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
from pathlib import Path

SYSTEM_FOLDERS = (Path("/var/lock/airyard"), Path("/tmp/airyard-gpus"))


def shared_folder(configured: Path | None = None) -> Path:
    """Return the folder, made when missing: the configured one, else the first that can be had.

    Raises: OSError when none can.
    """
    failure: OSError | None = None
    for folder in (configured,) if configured is not None else SYSTEM_FOLDERS:
        try:
            folder.mkdir(mode=0o1777)
            folder.chmod(0o1777)  # mkdir's mode is cut by the umask
        except FileExistsError:
            pass
        except OSError as error:
            failure = error
            continue
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
        failure = PermissionError(f"{folder} is not writable")
    assert failure is not None
    raise failure


class GpuLocks:
    """The locks this process holds; they end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, int] = {}

    def claim(self, uuid: str) -> str | None:
        """Take the GPU, or keep it; return None when it is ours, else who has it. Raises: OSError."""
        if uuid in self._held:
            return None
        fd = self._open(uuid)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _read_owner(fd)
            os.close(fd)
            return owner
        _write_owner(fd)
        self._held[uuid] = fd
        return None

    def release_all(self) -> None:
        """Let go of every GPU."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    def _open(self, uuid: str) -> int:
        name = "".join(ch if ch.isalnum() or ch in "-_" else "_" for ch in uuid)
        path = self._folder / f"{name}.lock"
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            try:
                # Never O_CREAT on a neighbour's file: fs.protected_regular refuses that in a sticky folder.
                return os.open(path, flags)
            except FileNotFoundError:
                pass
            try:
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                continue
            os.fchmod(fd, 0o666)
            return fd


def user_name(uid: int) -> str:
    """Return the user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _write_owner(fd: int) -> None:
    value = {"pid": os.getpid(), "uid": os.getuid(), "user": user_name(os.getuid())}
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(value).encode(), 0)


def _read_owner(fd: int) -> str:
    try:
        value = json.loads(os.pread(fd, 4096, 0))
        return f"user {value['user']} (uid {value['uid']}), Airyard agent PID {value['pid']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another user's Airyard"
