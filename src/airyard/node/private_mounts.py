"""Gives a process mounts that nobody else sees: an overlay over a shared tree, a /dev/shm of its own size.

Owns: the system calls, and trying them where they do no harm. Must not know: environments, attempts, orders.

Each mount begins a namespace of its own, which ends with its last process, so nothing has to be unmounted. The module
runs as a script too (``python -I -S private_mounts.py WHAT ARGUMENTS``), to try a mount in a process of its own;
therefore it imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

SHM = "/dev/shm"
_CLONE_NEWNS = 0x20000
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_REC = 0x4000
_MS_SLAVE = 1 << 19
# Loaded before any fork: loading in a forked child could wait for a lock that nobody holds any more.
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount_overlay(lower: str, upper: str, work: str, target: str) -> None:
    """Put an overlay on ``target``, for the calling process and its children only. Raises: OSError."""
    options = f"lowerdir={_escaped(lower)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
    _mount("overlay", target, 0, options)


def mount_shm(size_bytes: int) -> None:
    """Put an empty tmpfs of this size (rounded up to pages) on /dev/shm, for this process and its children only.

    What is written there counts as memory of the writer's cgroup. Raises: OSError.
    """
    # To the kernel, a size of 0 is no limit.
    _mount("tmpfs", SHM, _MS_NOSUID | _MS_NODEV, f"size={max(1, size_bytes)},mode=1777")


def can_mount_overlay(lower: str, upper: str, work: str, target: str) -> bool:
    """Try it, leaving nothing. Cost: a short process."""
    return _succeeds("overlay", lower, upper, work, target)


def can_mount_shm(size_bytes: int) -> bool:
    """Try it, leaving nothing. Cost: a short process."""
    return _succeeds("shm", str(size_bytes))


def _mount(kind: str, target: str, flags: int, options: str) -> None:
    """Give the calling process its own mounts and add one.

    Slave, not private: what the machine mounts later (volumes) appears inside, nothing from inside goes out.
    """
    _check(_LIBC.unshare(_CLONE_NEWNS), "unshare")
    _check(_LIBC.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None), "/")
    name = kind.encode()
    result = _LIBC.mount(name, os.fsencode(target), name, ctypes.c_ulong(flags), os.fsencode(options))
    _check(result, target)


def _escaped(path: str) -> str:
    for special in ("\\", ",", ":"):
        path = path.replace(special, "\\" + special)
    return path


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _succeeds(*arguments: str) -> bool:
    if os.geteuid() != 0:
        return False
    command = [sys.executable, "-I", "-S", __file__, *arguments]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    if sys.argv[1] == "shm":
        mount_shm(int(sys.argv[2]))
    else:
        mount_overlay(*sys.argv[2:6])
