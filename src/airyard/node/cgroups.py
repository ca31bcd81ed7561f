"""Control groups, v1 and v2 alike: where they are mounted, making, entering, limiting, killing, removing one.

Owns: the files below the cgroup mounts and which of them this process may write, found out by trying.
Must not know: attempts, cookies, what is done where no cgroup can be had (``containment``).

On a hybrid machine the limits live in v1 hierarchies and killing in the v2 one, so one group is a folder in
each. On a v2 machine a group with processes may not hand controllers down; then this process moves into a
leaf of its own (``airyard.self``) first, which the operator sees in ``systemd-cgls``.
Source: kernel Documentation/admin-guide/cgroup-v1, cgroup-v2.rst ("No Internal Process Constraint").
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LIMIT_CONTROLLERS = ("memory", "cpu", "pids")
_PARENT = "airyard"
_SELF = "airyard.self"
_CPU_PERIOD_US = 100_000
_POLL_SECONDS = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """One mounted tree of groups and the folder in it below which ours are made."""

    version: int
    controllers: frozenset[str]
    mount: Path
    parent: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """What this process may use: ``killing`` is the tree by which members are found and killed."""

    killing: Hierarchy
    limiting: dict[str, Hierarchy]
    """Controller name → the tree in which its limit is set."""
    missing: dict[str, str]
    """Controller name → why it cannot be used."""

    @property
    def trees(self) -> tuple[Hierarchy, ...]:
        """Every tree a member has to enter, each once, the killing one first."""
        return tuple({tree.mount: tree for tree in (self.killing, *self.limiting.values())}.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a group may use; None is unlimited. ``cpus`` is a number of cores, fractions included."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None


def discover() -> tuple[Available | None, str]:
    """Try to make and enter a group in every mounted tree; return what works, or None and why not."""
    usable: list[Hierarchy] = []
    refused: dict[str, str] = {}
    for tree in _mounted():
        reason = _try(tree)
        if reason is None:
            usable.append(tree)
        else:
            refused.update(dict.fromkeys(tree.controllers, reason) or {f"v{tree.version}": reason})
    killing = next((tree for tree in usable if tree.version == 2), None)
    limiting: dict[str, Hierarchy] = {}
    missing: dict[str, str] = {}
    for controller in LIMIT_CONTROLLERS:
        offering = next((tree for tree in usable if controller in tree.controllers), None)
        if offering is None:
            missing[controller] = refused.get(controller, "no mounted cgroup tree has this controller")
        elif offering.version == 2 and (reason := _hand_down(offering, controller)):
            missing[controller] = reason
        else:
            limiting[controller] = offering
    killing = killing or next(iter(limiting.values()), None)
    if killing is None:
        why = "; ".join(f"{name}: {reason}" for name, reason in sorted(refused.items()))
        return None, why or "no cgroup tree is mounted"
    return Available(killing=killing, limiting=limiting, missing=missing), ""


class Group:
    """One named group over all usable trees."""

    __slots__ = ("_available", "_folders", "_killing")

    def __init__(self, available: Available, name: str) -> None:
        self._available = available
        self._folders = {tree.mount: tree.parent / name for tree in available.trees}
        self._killing = self._folders[available.killing.mount]

    @classmethod
    def find(cls, available: Available, name: str) -> Group | None:
        """Return the group ``name`` if it exists in any tree, also where another process put it."""
        group = cls(available, name)
        for mount, folder in group._folders.items():
            if not folder.is_dir():
                group._folders[mount] = _find(mount, name) or folder
        group._killing = group._folders[available.killing.mount]
        return group if any(folder.is_dir() for folder in group._folders.values()) else None

    def make(self, limits: Limits) -> tuple[str, ...]:
        """Create the folders and set the limits; return the limits that were asked and cannot be enforced.

        Raises: OSError.
        """
        try:
            return self._make(limits)
        except OSError:
            for folder in self._folders.values():
                _remove_tree(folder)
            raise

    def _make(self, limits: Limits) -> tuple[str, ...]:
        for folder in self._folders.values():
            folder.mkdir(parents=True, exist_ok=True)
        asked = {"memory": limits.memory_bytes, "cpu": limits.cpus, "pids": limits.pids}
        for controller, value in asked.items():
            tree = self._available.limiting.get(controller)
            if value is not None and tree is not None:
                _set_limit(self._folders[tree.mount], tree.version, controller, value)
        return tuple(
            name
            for name, value in asked.items()
            if value is not None and name not in self._available.limiting
        )

    def enter(self) -> None:
        """Move the calling process in. For a forked child before exec. Raises: OSError."""
        for folder in self._folders.values():
            _write(folder / "cgroup.procs", "0")

    def members(self) -> set[int]:
        """Return the ids of all live processes in the group and in groups made below it."""
        return _members(self._killing)

    def kill(self, timeout_seconds: float) -> set[int]:
        """Kill every member; return those that are still there after the time (in uninterruptible sleep)."""
        deadline = time.monotonic() + timeout_seconds
        with contextlib.suppress(OSError):
            _write(self._killing / "cgroup.kill", "1")
        while left := self.members():
            if time.monotonic() > deadline:
                return left
            if not (self._killing / "cgroup.kill").exists():
                self._kill_one_by_one(left)
            time.sleep(_POLL_SECONDS)
        return set()

    def oom_kills(self) -> int:
        """Return how many members the kernel killed for want of memory, so far."""
        tree = self._available.limiting.get("memory")
        if tree is None:
            return 0
        name = "memory.events" if tree.version == 2 else "memory.oom_control"
        try:
            lines = (self._folders[tree.mount] / name).read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def remove(self, timeout_seconds: float) -> bool:
        """Remove the folders, deepest first; return False when members keep one alive."""
        deadline = time.monotonic() + timeout_seconds
        while [folder for folder in self._folders.values() if not _remove_tree(folder)]:
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _kill_one_by_one(self, members: set[int]) -> None:
        # Frozen, they cannot fork away from the list; a v1 freezer has to be thawed for the signal to act.
        self._freeze(True)
        for pid in members | self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._freeze(False)

    def _freeze(self, frozen: bool) -> None:
        with contextlib.suppress(OSError):
            _write(self._killing / "cgroup.freeze", "1" if frozen else "0")


# --- trees


def _mounted() -> Iterator[Hierarchy]:
    own = _own_paths()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ")[:3]
        if kind not in ("cgroup", "cgroup2"):
            continue
        device, root, mount = left.split(" ")[2:5]
        if not _is_device(Path(mount), device):
            continue  # another mount lies over it
        if kind == "cgroup2":
            key, version = "", 2
            controllers = frozenset(_read(Path(mount) / "cgroup.controllers").split())
        else:
            controllers = frozenset(options.split(",")) & {*LIMIT_CONTROLLERS, "freezer"}
            key, version = next(iter(controllers), "-"), 1
        if key in own and (version == 2 or controllers & set(LIMIT_CONTROLLERS)):
            base = _below(Path(mount), root, own[key])
            yield Hierarchy(
                version=version, controllers=controllers, mount=Path(mount), parent=base / _PARENT
            )


def _is_device(mount: Path, device: str) -> bool:
    try:
        number = mount.stat().st_dev
    except OSError:
        return False
    return f"{os.major(number)}:{os.minor(number)}" == device


def _own_paths() -> dict[str, str]:
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    return paths


def _below(mount: Path, root: str, own: str) -> Path:
    """Return the folder of this process's own group; the mount itself where the path points outside of it."""
    relative = os.path.relpath(own, root)
    folder = mount if relative.startswith("..") else mount / relative
    return folder.parent if folder.name == _SELF else folder


def _try(tree: Hierarchy) -> str | None:
    """Make a group and let a process enter it; return why that is not possible, or None when it is."""
    probe = tree.parent / f"probe.{os.getpid()}"
    try:
        probe.mkdir(parents=True, exist_ok=True)
        entered = subprocess.run(
            ["/bin/sh", "-c", 'echo 0 > "$1"', "sh", str(probe / "cgroup.procs")],
            capture_output=True,
            text=True,
            check=False,
        )
        _remove_tree(probe)
    except OSError as error:
        return f"{error.strerror} at {error.filename}"
    return None if entered.returncode == 0 else f"entering {probe} failed: {entered.stderr.strip()}"


def _hand_down(tree: Hierarchy, controller: str) -> str | None:
    """Let groups below ``tree.parent`` use a v2 controller; return why that is not possible, or None."""
    for folder in (tree.parent.parent, tree.parent):
        try:
            _write(folder / "cgroup.subtree_control", f"+{controller}")
        except OSError as error:
            if folder == tree.parent or not _leave(folder):
                return f"{folder} does not hand it down ({error.strerror})"
            try:
                _write(folder / "cgroup.subtree_control", f"+{controller}")
            except OSError as again:
                return f"{folder} does not hand it down ({again.strerror}); other processes are in it"
    return None


def _leave(folder: Path) -> bool:
    try:
        (folder / _SELF).mkdir(exist_ok=True)
        _write(folder / _SELF / "cgroup.procs", "0")
    except OSError:
        return False
    return True


def _find(mount: Path, name: str) -> Path | None:
    for folder, below, _ in os.walk(mount):
        if os.path.basename(folder) == _PARENT:
            if name in below:
                return Path(folder) / name
            below.clear()
    return None


# --- files


def _set_limit(folder: Path, version: int, controller: str, value: float) -> None:
    if controller == "pids":
        _write(folder / "pids.max", str(int(value)))
    elif controller == "cpu":
        quota = max(1000, int(value * _CPU_PERIOD_US))
        if version == 2:
            _write(folder / "cpu.max", f"{quota} {_CPU_PERIOD_US}")
        else:
            _write(folder / "cpu.cfs_period_us", str(_CPU_PERIOD_US))
            _write(folder / "cpu.cfs_quota_us", str(quota))
    elif version == 2:
        _write(folder / "memory.max", str(int(value)))
        with contextlib.suppress(OSError):  # a kernel without swap accounting has no such file
            _write(folder / "memory.swap.max", "0")
    else:
        _write(folder / "memory.limit_in_bytes", str(int(value)))
        with contextlib.suppress(OSError):
            _write(folder / "memory.memsw.limit_in_bytes", str(int(value)))


def _members(folder: Path) -> set[int]:
    found: set[int] = set()
    for below, _, _ in os.walk(folder):
        found.update(int(pid) for pid in _read(Path(below) / "cgroup.procs").split())
    return found


def _remove_tree(folder: Path) -> bool:
    for below, _, _ in os.walk(folder, topdown=False):
        try:
            os.rmdir(below)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def _write(path: Path, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
