"""The rules over the machine itself while it is watched: disk, memory, processes that wait in the kernel, mounts.

Owns: reading them once, and what follows over time. Must not know: GPUs, runs. The rules are pure: time is an argument.
What is wrong with a file server is wrong for all its clients: it is told of and weighs little.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from airyard.checks import host_checks
from airyard.checks.contract import Site, Thresholds, text_of
from airyard.checks.host_checks import Host, Space
from airyard.checks.limit import whose
from airyard.checks.mount_checks import remote_mounts
from airyard.core.health.facts import CheckStatus, Component, Severity, Source
from airyard.core.health.sightings import Sighting

WAITS_S = 300
"""A process that waits in the kernel for so long hangs."""
LITTLE_MEMORY = 0.02
STUCK_LOOKS = 2
_MOST_PROCESSES = 20_000

RULES: dict[str, tuple[str, str]] = {
    "host.disk": ("warning; high where it cannot be written", "little room on the disk of the data folder"),
    "host.memory": ("warning", f"less than {LITTLE_MEMORY:.0%} of the memory is left, at two looks"),
    "host.d_state": ("warning", f"a process waits in the kernel for {WAITS_S // 60} min"),
    "host.mounts": ("warning", "a file server does not answer, at two looks"),
    "host.oom": ("info", "the kernel killed a process for want of memory"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """The machine at one moment. ``waiting``: processes in state D, by id and start, with their names."""

    memory: int = 0
    available: int = 0
    disk: Space | None = None
    waiting: Mapping[tuple[int, int], str] = field(default_factory=dict)
    out_of_memory: int | None = None
    """How often the kernel has killed for want of memory since it was started."""
    silent_mounts: tuple[str, ...] = ()


def read_host(site: Site, silent_mounts: Iterable[str] = ()) -> HostReading:
    """Read the machine. Cost: a file a process. The data folder's disk is asked here, and may keep whoever asks."""
    meminfo = host_checks.meminfo(site)
    kills = [line for line in text_of(site.path("/proc/vmstat")).splitlines() if line.startswith("oom_kill ")]
    return HostReading(
        memory=meminfo.get("MemTotal", 0),
        available=meminfo.get("MemAvailable", 0),
        disk=_disk(site.data_folder),
        waiting=_waiting(site.path("/proc")),
        out_of_memory=int(kills[0].split()[1]) if kills else None,
        silent_mounts=tuple(silent_mounts),
    )


def _disk(folder: Path) -> Space:
    """Return the room of a disk; ``problem`` where it is mounted read-only or cannot be asked."""
    try:
        found = os.statvfs(folder)
    except OSError as error:
        return Space(path=str(folder), octets=0, free=0, problem=str(error.strerror))
    octets, free = found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize
    problem = os.strerror(errno.EROFS) if found.f_flag & os.ST_RDONLY else ""
    return Space(path=str(folder), octets=octets, free=free, problem=problem)


def _waiting(folder: Path) -> dict[tuple[int, int], str]:
    found: dict[tuple[int, int], str] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.isdigit() or len(found) >= _MOST_PROCESSES:
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):
                descriptor = os.open(f"{entry.path}/stat", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    stat = os.read(descriptor, 1024)
                finally:
                    os.close(descriptor)
                head, _, rest = stat.rpartition(b")")
                if rest[1:2] == b"D":
                    started = int(rest.split()[19])
                    found[int(entry.name), started] = head.partition(b"(")[2].decode("utf-8", "replace")
    return found


class HostWatch:
    """One machine over time."""

    def __init__(self, limits: Thresholds, *, tells_kills: bool) -> None:
        """``tells_kills``: whether to report what the kernel's log would say of memory, where nobody may read it."""
        self.limits = limits
        self._tells_kills = tells_kills
        self._disk = ""
        self._little = 0
        self._since_ms: dict[tuple[int, int], int] = {}
        self._told: set[tuple[int, int]] = set()
        self._kills: int | None = None
        self._mounts: dict[str, int] = {}

    def look(self, now: HostReading, now_ms: int) -> list[Sighting]:
        """Judge a reading."""
        return [
            *self._room(now),
            *self._memory(now),
            *self._stuck(now, now_ms),
            *self._killed(now),
            *self._servers(now),
        ]

    def _room(self, now: HostReading) -> Iterator[Sighting]:
        """Judge the disk as the check does, when that changes."""
        results = list(host_checks.judge_disk(Host(disk=now.disk), self.limits))
        bad = next((one for one in results if one.status is CheckStatus.FAIL), None)
        state = ("broken" if now.disk is not None and now.disk.problem else "full") if bad is not None else ""
        if bad is not None and state != self._disk:
            severity = Severity.HIGH if state == "broken" else Severity.WARNING
            layer = whose(bad.threshold)
            said = f"{bad.message} (limit {bad.threshold:g} {bad.unit}: {layer})" if layer else bad.message
            yield _sighting("host.disk", severity, said, component=Component.DISK)
        self._disk = state

    def _memory(self, now: HostReading) -> Iterator[Sighting]:
        little = now.memory > 0 and now.available < LITTLE_MEMORY * now.memory
        self._little = self._little + 1 if little else 0
        if self._little == STUCK_LOOKS:
            text = f"{now.available >> 20:,} MiB of {now.memory >> 20:,} MiB of memory are left"
            yield _sighting("host.memory", Severity.WARNING, text)

    def _stuck(self, now: HostReading, now_ms: int) -> Iterator[Sighting]:
        self._since_ms = {one: self._since_ms.get(one, now_ms) for one in now.waiting}
        self._told &= set(now.waiting)
        late = [one for one, since in self._since_ms.items() if now_ms - since >= WAITS_S * 1000]
        fresh = [one for one in late if one not in self._told]
        if fresh:
            self._told.update(fresh)
            names = ", ".join(f"{now.waiting[one]} ({one[0]})" for one in late[:5])
            text = f"{len(late)} processes wait in the kernel for {WAITS_S // 60} minutes or more: {names}"
            yield _sighting("host.d_state", Severity.WARNING, text)

    def _killed(self, now: HostReading) -> Iterator[Sighting]:
        before, self._kills = self._kills, now.out_of_memory
        if (
            self._tells_kills
            and before is not None
            and now.out_of_memory is not None
            and now.out_of_memory > before
        ):
            text = f"the kernel killed {now.out_of_memory - before} processes for want of memory"
            yield _sighting("host.oom", Severity.INFO, text)

    def _servers(self, now: HostReading) -> Iterator[Sighting]:
        self._mounts = {path: self._mounts.get(path, 0) + 1 for path in now.silent_mounts}
        for path, looks in self._mounts.items():
            if looks == STUCK_LOOKS:
                text = f"{path} does not answer"
                yield _sighting(
                    "host.mounts", Severity.WARNING, text, component=Component.STORAGE, place=path
                )


class MountAsker:
    """Asks file servers, each by a process of its own; one that does not answer is asked again only after it has."""

    def __init__(self) -> None:
        self._asked: dict[str, int] = {}

    def silent(self, site: Site) -> list[str]:
        """Return those that have not answered since the last look, and ask all others. Never waits."""
        late = []
        for path, pid in list(self._asked.items()):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended, status = pid, 0
            if ended:
                del self._asked[path]
            else:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)  # it may wait in the kernel, and hear it when that lets go
            if not ended or status:
                late.append(path)
        for path in remote_mounts(site):
            if path not in self._asked:
                self._asked[path] = os.posix_spawn(
                    "/bin/sh", ["sh", "-c", 'exec stat -f -- "$0" >/dev/null 2>&1', path], os.environ
                )
        return late


def _sighting(
    rule: str, severity: Severity, message: str, *, component: Component = Component.HOST, place: str = ""
) -> Sighting:
    return Sighting(
        rule=rule,
        component=component,
        severity=severity,
        source=Source.HOST,
        message=message,
        place=place,
        evidence=(message,),
    )
