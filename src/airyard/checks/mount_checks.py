"""The rule over mounts: every file system answers within seconds.

Owns: asking each in a process of its own, because a dead file server never answers. Must not know: what lies on them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from airyard.checks import apart
from airyard.checks.contract import Check, Probe, Site, Thresholds, failed, passed, skipped
from airyard.core.health.facts import CheckResult, Component

_REMOTE = (
    "nfs",
    "nfs4",
    "lustre",
    "ceph",
    "gpfs",
    "beegfs",
    "cifs",
    "smb3",
    "fuse",
    "9p",
    "virtiofs",
    "wekafs",
)
_LOCAL = ("ext4", "xfs", "btrfs", "zfs", "f2fs", "overlay")
_WAIT_S = 6.0
NAME = "host.mounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted file system. ``took_ms`` is None where it did not answer; ``problem`` is what it answered."""

    path: str
    kind: str
    took_ms: float | None
    problem: str = ""


def collect(site: Site) -> tuple[Mount, ...]:
    """Ask every mount of a disk or a file server, all at once; those that do not answer are left behind."""
    wanted = _mounts(site)
    told = apart.each([partial(_look, path) for path, _ in wanted], _WAIT_S)
    found = [
        Mount(
            path=path, kind=kind, took_ms=None if said is None else said[0], problem=said[1] if said else ""
        )
        for (path, kind), said in zip(wanted, told, strict=True)
    ]
    return tuple(sorted(found, key=lambda mount: mount.path))


def _mounts(site: Site) -> list[tuple[str, str]]:
    try:
        lines = site.path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    found = {}
    for line in lines:
        parts = line.split()
        if len(parts) >= 3 and (parts[2].split(".")[0] in _REMOTE or parts[2] in _LOCAL):
            path = parts[1].encode().decode("unicode_escape", "replace")
            found[path] = parts[2]
    return sorted(found.items())


def remote_mounts(site: Site) -> list[str]:
    """Return where file servers are mounted."""
    return list(remote_kinds(site))


def remote_kinds(site: Site) -> dict[str, str]:
    """Return where file servers are mounted, and what kind each is."""
    return {path: kind for path, kind in _mounts(site) if kind.split(".")[0] in _REMOTE}


def _look(path: str) -> tuple[float, str]:
    """Return the milliseconds that an answer took, and what is wrong with it."""
    began, problem = time.monotonic(), ""
    try:
        os.statvfs(path)
    except OSError as error:
        problem = error.strerror or str(error)
    return (time.monotonic() - began) * 1000, problem


def _answered(read: tuple[Mount, ...], limits: Thresholds) -> Iterator[CheckResult]:
    if not read:
        yield skipped(NAME, "no mounts are told of here")
        return
    slow = limits["mount_ms_fail"]
    bad = [
        mount
        for mount in read
        if mount.took_ms is None or mount.took_ms > slow or mount.problem == "Stale file handle"
    ]
    for mount in bad:
        what = "does not answer" if mount.took_ms is None else mount.problem or f"took {mount.took_ms:.0f} ms"
        yield failed(
            NAME,
            f"{mount.path} ({mount.kind}) {what}",
            "look at its server and network; where many machines show it, it is the storage's",
            Component.STORAGE,
            value=mount.took_ms,
            threshold=slow,
            unit="ms",
        )
    if not bad:
        yield passed(NAME, f"{len(read)} mounts answered")


PROBE = Probe(
    name="mounts",
    collect=collect,
    deadline_s=10.0,
    checks=(
        Check(
            name=NAME,
            number=35,
            title="mounts",
            passes="each answers within mount_ms_fail",
            judge=_answered,
            component=Component.STORAGE,
        ),
    ),
)
