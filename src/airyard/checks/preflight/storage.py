"""Where runs write, how fast it is, and whether what is cached is whole.

Owns: writing and reading a file, and comparing checksums of a manifest. Must not know: mounts (``mount_checks.py``).
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from airyard.checks.contract import Check, Probe, Profile, Site, Thresholds, failed, passed, skipped, warned
from airyard.checks.preflight.setting import setting_of
from airyard.core.health.facts import CheckResult, Component

_BLOCK = 4 << 20
_SPEED_BYTES = 128 << 20
_MANIFEST_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A folder that was written to, read from and cleaned up; ``problem``: how far that came."""

    path: str
    took_ms: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """What was tried. ``hashed`` of ``listed`` files of the manifest were read whole within its time."""

    written: tuple[Written, ...] = ()
    manifest: str = ""
    listed: int = 0
    hashed: int = 0
    broken: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """MB/s of one file, written with a sync and read back past the cache; ``usual``: the fleet's median."""

    path: str
    write_mb_s: float = 0.0
    read_mb_s: float = 0.0
    usual_mb_s: float | None = None
    problem: str = ""


def collect(site: Site) -> Stores:
    """Write, read and remove a file of 4 KiB in each folder; look at the manifest for two seconds at most."""
    setting = setting_of(site)
    written = tuple(_write(Path(folder)) for folder in setting.mounts)
    if not setting.manifest:
        return Stores(written=written)
    return _manifest(Path(setting.manifest), written)


def _write(folder: Path) -> Written:
    probe, data, began = folder / f".airyard-preflight-{os.getpid()}", os.urandom(4096), time.monotonic()
    try:
        with open(probe, "x+b", buffering=0) as file:
            probe.unlink()  # at once: whoever is ended in between leaves nothing behind
            file.write(data)
            os.fsync(file.fileno())
            file.seek(0)
            same = file.read(len(data)) == data
    except OSError as error:
        return Written(path=str(folder), problem=error.strerror or str(error))
    took_ms = (time.monotonic() - began) * 1000
    return Written(
        path=str(folder), took_ms=took_ms, problem="" if same else "what was read is not what was written"
    )


def _manifest(path: Path, written: tuple[Written, ...]) -> Stores:
    try:
        lines = [line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines() if line.strip()]
        entries = [(digest, path.parent / name.strip().lstrip("*")) for digest, name in lines]
    except (OSError, UnicodeDecodeError, ValueError) as error:
        return Stores(written=written, manifest=str(path), problem=str(error))
    until, broken, hashed = time.monotonic() + _MANIFEST_S, [], 0
    for digest, file in entries:
        try:
            if time.monotonic() >= until:
                file.stat()  # no time to read it, but it has to be there
                continue
            hashed += 1
            with open(file, "rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            broken.append(f"{file.name}: {error.strerror}")
            continue
        if found != digest.lower():
            broken.append(f"{file.name}: its content is not what the manifest says")
    return Stores(
        written=written, manifest=str(path), listed=len(entries), hashed=hashed, broken=tuple(broken)
    )


def collect_speed(site: Site) -> Speed:
    """Write and read 128 MiB in the data folder, and remove it."""
    usual = setting_of(site).known.get("storage_mb_s", "")
    probe = site.data_folder / f".airyard-speed-{os.getpid()}"
    block = os.urandom(_BLOCK)
    try:
        began = time.monotonic()
        with open(probe, "x+b", buffering=0) as file:
            probe.unlink()  # as above
            for _ in range(_SPEED_BYTES // _BLOCK):
                file.write(block)
            os.fsync(file.fileno())
            written_s = time.monotonic() - began
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            file.seek(0)
            began = time.monotonic()
            while file.read(_BLOCK):
                pass
            read_s = time.monotonic() - began
    except OSError as error:
        return Speed(path=str(site.data_folder), problem=error.strerror or str(error))
    return Speed(
        path=str(site.data_folder),
        write_mb_s=_SPEED_BYTES / 1e6 / max(written_s, 1e-6),
        read_mb_s=_SPEED_BYTES / 1e6 / max(read_s, 1e-6),
        usual_mb_s=float(usual) if usual else None,
    )


def _writes(read: Stores, limits: Thresholds) -> Iterator[CheckResult]:
    name = "storage.writes"
    if not read.written:
        yield skipped(name, "no folder of checkpoints was named")
        return
    most = limits["mount_ms_fail"]
    bad = [each for each in read.written if each.problem or each.took_ms > most]
    for each in bad:
        yield failed(
            name,
            f"{each.path}: {each.problem or f'took {each.took_ms:.0f} ms for 4 KiB'}",
            "look at its rights, its room and its server",
            Component.STORAGE,
            value=None if each.problem else each.took_ms,
            threshold=most,
            unit="ms",
        )
    if not bad:
        slowest = max(each.took_ms for each in read.written)
        yield passed(name, f"{len(read.written)} folders written and read", value=slowest, unit="ms")


def _whole(read: Stores, limits: Thresholds) -> Iterator[CheckResult]:
    name = "storage.cache"
    if not read.manifest:
        yield skipped(name, "no manifest of cached files was named")
    elif read.problem:
        yield failed(
            name, f"{read.manifest} cannot be read: {read.problem}", "fill the cache again", Component.STORAGE
        )
    elif read.broken:
        yield failed(
            name,
            f"{len(read.broken)} of {read.listed} cached files are not right: {'; '.join(read.broken[:3])}",
            "fetch these files again",
            Component.STORAGE,
            value=len(read.broken),
            threshold=0,
        )
    else:
        yield passed(name, f"{read.listed} files are there, {read.hashed} of them read and compared")


def _fast_enough(read: Speed, limits: Thresholds) -> Iterator[CheckResult]:
    name = "storage.speed"
    if read.problem:
        yield failed(
            name, f"{read.path} cannot be written: {read.problem}", "mend the file system", Component.DISK
        )
        return
    text = f"{read.path}: {read.write_mb_s:,.0f} MB/s written, {read.read_mb_s:,.0f} MB/s read"
    floor = (read.usual_mb_s or 0) * limits["storage_share_warn"]
    if read.usual_mb_s is None:
        yield passed(name, text, value=read.write_mb_s, unit="MB/s")
    elif read.write_mb_s < floor:
        yield warned(
            name,
            f"{text}; the fleet's median is {read.usual_mb_s:,.0f} MB/s",
            "look at the disk's health and at what else writes to it",
            value=read.write_mb_s,
            threshold=floor,
            unit="MB/s",
        )
    else:
        yield passed(name, text, value=read.write_mb_s, threshold=floor, unit="MB/s")


PROBE = Probe(
    name="stores",
    collect=collect,
    deadline_s=12.0,
    checks=(
        Check(
            name="storage.writes",
            number=35,
            title="folders of checkpoints",
            passes="4 KiB written, read and removed within mount_ms_fail",
            judge=_writes,
            component=Component.STORAGE,
        ),
        Check(
            name="storage.cache",
            number=50,
            title="cached images and weights",
            passes="all files of the manifest are there; those read within two seconds have its checksum",
            judge=_whole,
            component=Component.STORAGE,
        ),
    ),
)

SPEED = Probe(
    name="speed",
    collect=collect_speed,
    profile=Profile.FULL,
    deadline_s=60.0,
    checks=(
        Check(
            name="storage.speed",
            number=49,
            title="speed of the data folder",
            passes="storage_share_warn of the fleet's median, where one is known (else a warning)",
            judge=_fast_enough,
            component=Component.DISK,
        ),
    ),
)
