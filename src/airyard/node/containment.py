"""Keeps all processes of an attempt's member together, so that nothing of it survives its end.

Owns: the choice between control groups and the environment cookie, cages, the subreaper flag.
Must not know: cgroup files (``cgroups``), the runner's machine, devices.

With a cgroup nothing escapes. Without one, members are the processes whose environment carries the cookie,
their descendants, and, while the runner lives and is a subreaper, all of its descendants. What then escapes is
a process that cleared its environment *and* left the tree of a runner that died; ``describe`` says so.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from airyard.core.errors import InvariantBroken
from airyard.node.cgroups import LIMIT_CONTROLLERS, Available, Group, Limits, discover

COOKIE_VARIABLE = "AIRYARD_COOKIE"
KILL_TIMEOUT_SECONDS = 10.0
_PR_SET_CHILD_SUBREAPER = 36
_POLL_SECONDS = 0.002
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


class Cage(Protocol):
    """The processes of one member. The runner itself is never in it. Every call may be repeated."""

    unenforced: tuple[str, ...]
    """Limits that were asked for and cannot be enforced here: of ``memory``, ``cpu``, ``pids``."""

    def environment(self) -> dict[str, str]:
        """Return the variables that every member must inherit."""

    def enter_self(self) -> None:
        """Move the calling process in; for a forked child before exec. Raises: OSError."""

    def members(self) -> set[int]:
        """Return the ids of all live members."""

    def kill(self, timeout_seconds: float = KILL_TIMEOUT_SECONDS) -> set[int]:
        """Kill all members without grace; return those that could not be (kernel sleep), normally none."""

    def oom_kills(self) -> int:
        """Return how many members the kernel killed for want of memory within the cage's limit."""

    def remove(self) -> bool:
        """Kill what is left and remove the cage; return False when that was not possible."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Containment:
    """What this machine lets this process do; made once by ``detect``."""

    kind: str
    """``cgroup-v2``, ``cgroup-hybrid`` or ``environment-cookie``."""
    limits: bool
    """Whether memory, cores and process counts can all be limited."""
    reason: str
    """Why it is not better; empty when it is the best."""
    cgroups: Available | None = None

    def describe(self) -> dict[str, str | bool]:
        """Return the part shown by ``airyard status`` and ``doctor``."""
        return {"kind": self.kind, "limits": self.limits, "reason": self.reason}

    def create(
        self,
        name: str,
        *,
        cookie: str,
        memory_bytes: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
    ) -> Cage:
        """Make the cage ``name``, or take the one that is there.

        ``cookie`` must be as unguessable as an id that no other attempt on the machine ever has.
        Raises: OSError when a limit is refused by the kernel.
        """
        limits = Limits(memory_bytes=memory_bytes, cpus=cpus, pids=pids)
        if self.cgroups is None:
            asked = (memory_bytes, cpus, pids)
            unenforced = tuple(
                limit for limit, value in zip(LIMIT_CONTROLLERS, asked, strict=True) if value is not None
            )
            return _CookieCage(cookie=cookie, unenforced=unenforced)
        group = Group(self.cgroups, _checked(name))
        return _GroupCage(group=group, cookie=cookie, unenforced=group.make(limits))

    def open(self, name: str, *, cookie: str) -> Cage:
        """Return the cage that a process made earlier, also when it is gone already (then it is empty)."""
        group = Group.find(self.cgroups, _checked(name)) if self.cgroups else None
        if group is None:
            # No groups here, or the cage was made when there were none: the cookie finds both.
            return _CookieCage(cookie=cookie, unenforced=())
        return _GroupCage(group=group, cookie=cookie, unenforced=())


def detect() -> Containment:
    """Find out by trying what this process may use. Cost: milliseconds; one short child per cgroup tree."""
    available, reason = discover()
    if available is None:
        return Containment(
            kind="environment-cookie",
            limits=False,
            reason=f"no control group can be made here ({reason}), so a process that clears its environment "
            "and outlives the runner is not found, and memory, cores and process counts are not limited",
        )
    trees = available.trees
    return Containment(
        kind="cgroup-v2" if all(tree.version == 2 for tree in trees) else "cgroup-hybrid",
        limits=not available.missing,
        reason="; ".join(f"{name} is not limited: {why}" for name, why in available.missing.items()),
        cgroups=available,
    )


def set_subreaper() -> None:
    """Make orphans among the caller's descendants its children instead of init's. Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@dataclass(slots=True, kw_only=True)
class _GroupCage:
    group: Group
    cookie: str
    unenforced: tuple[str, ...]

    def environment(self) -> dict[str, str]:
        return {COOKIE_VARIABLE: self.cookie}

    def enter_self(self) -> None:
        self.group.enter()

    def members(self) -> set[int]:
        return self.group.members()

    def kill(self, timeout_seconds: float = KILL_TIMEOUT_SECONDS) -> set[int]:
        return self.group.kill(timeout_seconds)

    def oom_kills(self) -> int:
        return self.group.oom_kills()

    def remove(self) -> bool:
        return not self.kill() and self.group.remove(KILL_TIMEOUT_SECONDS)


@dataclass(slots=True, kw_only=True)
class _CookieCage:
    cookie: str
    unenforced: tuple[str, ...]

    def environment(self) -> dict[str, str]:
        return {COOKIE_VARIABLE: self.cookie}

    def enter_self(self) -> None:
        """Nothing: whoever inherits the environment is a member."""

    def members(self) -> set[int]:
        parents = _parents()
        mark = f"{COOKIE_VARIABLE}={self.cookie}".encode()
        roots = {pid for pid in parents if mark in _environment(pid)}
        if _is_subreaper():
            roots.update(pid for pid, parent in parents.items() if parent == os.getpid())
        return _with_descendants(roots, parents) - {os.getpid()}

    def kill(self, timeout_seconds: float = KILL_TIMEOUT_SECONDS) -> set[int]:
        deadline = time.monotonic() + timeout_seconds
        stopped: set[int] = set()
        # Stopped first, so that none can fork a child that the list does not have.
        while (fresh := self.members() - stopped) and time.monotonic() < deadline:
            _signal(fresh, signal.SIGSTOP)
            stopped |= fresh
        while left := self.members():
            _signal(left, signal.SIGKILL)
            if time.monotonic() > deadline:
                return left
            time.sleep(_POLL_SECONDS)
        return set()

    def oom_kills(self) -> int:
        return 0

    def remove(self) -> bool:
        return not self.kill()


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InvariantBroken(f"{name!r} cannot name a cage: letters, digits, '_', '-' and '.' only.")
    return name


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _is_subreaper() -> bool:
    flag = ctypes.c_int(0)
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(37, ctypes.byref(flag), 0, 0, 0) == 0 and flag.value == 1


def _parents() -> dict[int, int]:
    """Return each live process's parent; zombies are left out, for they hold nothing any more."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                # After the name, which may hold blanks and brackets: state, parent.
                fields = Path("/proc", entry, "stat").read_bytes().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                parents[int(entry)] = int(fields[1])
    return parents


def _environment(pid: int) -> list[bytes]:
    try:
        return Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _with_descendants(roots: set[int], parents: dict[int, int]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, waiting = set(roots), list(roots)
    while waiting:
        fresh = [pid for pid in children.get(waiting.pop(), ()) if pid not in found]
        found.update(fresh)
        waiting.extend(fresh)
    return found
