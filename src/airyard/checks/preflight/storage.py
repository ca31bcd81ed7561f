"""Where runs write, how fast it is, and whether what is cached is whole.

Owns: writing and reading a file, and comparing checksums of a manifest. Must not know: mounts (``mount_checks.py``).
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path

from airyard.checks import apart
from airyard.checks.children import die_with_parent
from airyard.checks.contract import (
    Check,
    Probe,
    Profile,
    Site,
    Thresholds,
    failed,
    passed,
    skipped,
    unknown,
    warned,
)
from airyard.checks.mount_checks import remote_kinds
from airyard.checks.preflight.setting import setting_of
from airyard.core.health.facts import CheckResult, Component
from airyard.core.health.fleet_values import STORAGE

_BLOCK = 4 << 20
_SPEED_BYTES = 128 << 20
_MANIFEST_S = 2.0
_TRIES = 8
_ANSWER_S = 7.0
"""Longer than any limit of it that makes sense: then it is told how long it took."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A folder that was written to, read from and cleaned up. ``took_ms`` None: it did not answer.

    ``problem``: how far it came; ``free``: the room there, in bytes.
    """

    path: str
    took_ms: float | None = 0.0
    problem: str = ""
    free: int | None = None
    denied: bool = False
    """Who tried has no right there; that says nothing of those who write there."""
    mount: str = ""
    """The file server that it is on, as ``PATH, KIND``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A list of cached files: of ``listed`` so many were ``seen``, and ``hashed`` of them read whole, in its time.

    ``late``: it did not answer.
    """

    path: str
    listed: int = 0
    seen: int = 0
    hashed: int = 0
    broken: tuple[str, ...] = ()
    problem: str = ""
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """What was tried: folders that runs write to, folders of caches, and the manifest where there is one."""

    written: tuple[Written, ...] = ()
    caches: tuple[Written, ...] = ()
    manifest: Manifest | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """MB/s of one file, written with a sync and read back past the cache."""

    path: str
    write_mb_s: float = 0.0
    read_mb_s: float = 0.0
    problem: str = ""


def collect(site: Site) -> Stores:
    """Write, read and remove a file of 4 KiB in each folder; look at the manifest for two seconds at most.

    All at once, each in a process of its own: what does not answer keeps nobody from telling of the others.
    """
    setting = setting_of(site)
    folders = (*setting.writes, *setting.caches)
    servers = remote_kinds(site)
    tries: list[Callable[[], Written | Manifest]] = [
        *(
            partial(
                _write,
                Path(folder),
                setting.account,
                own=folder in setting.own,
                mount=_mount_of(folder, servers),
            )
            for folder in setting.writes
        ),
        *(partial(_write_cache, Path(folder)) for folder in setting.caches),
    ]
    if setting.manifest:
        tries.append(partial(_manifest, Path(setting.manifest)))
    told = apart.each(tries, _ANSWER_S)
    written = [
        one
        if isinstance(one, Written)
        else Written(path=folder, took_ms=None, mount=_mount_of(folder, servers))
        for one, folder in zip(told, folders, strict=False)
    ]
    listed: Manifest | None = None
    if setting.manifest:
        listed = told[-1] if isinstance(told[-1], Manifest) else Manifest(path=setting.manifest, late=True)
    mine = len(setting.writes)
    return Stores(written=tuple(written[:mine]), caches=tuple(written[mine:]), manifest=listed)


def _mount_of(folder: str, servers: Mapping[str, str]) -> str:
    """Return the file server that a folder is on, by its path alone: a dead one is not to be asked."""
    on = [path for path in servers if folder == path or folder.startswith(path.rstrip("/") + "/")]
    return f"{(longest := max(on, key=len))}, {servers[longest]}" if on else ""


def _write_cache(folder: Path) -> Written:
    """Try a cache, or the folder in which it will be made: it is made by who first needs it."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return _write(folder)


def _write(folder: Path, account: Sequence[int] = (), *, own: bool = True, mount: str = "") -> Written:
    """Write, read and remove a file, as ``account`` where one is given: this process is that one's from then on.

    ``own``: a folder of the run itself, or of this process, where whoever asks has to be allowed to write.
    """
    probe, data, began = _probe_name(account), os.urandom(4096), time.monotonic()
    free: int | None = None
    try:
        with _opened(folder, account) as there:
            room = os.fstatvfs(there)
            free = room.f_bavail * room.f_frsize
            with _fresh(probe, there) as file:
                with suppress(FileNotFoundError):
                    os.unlink(
                        probe, dir_fd=there
                    )  # at once: whoever is ended in between leaves nothing behind
                file.write(data)
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                file.seek(0)
                same = file.read(len(data)) == data
    except OSError as error:
        # A server may take root for nobody, and a pool's folder is not everybody's: others write there all the same.
        denied = (
            not own and error.errno in (errno.EACCES, errno.EPERM) and (os.geteuid() == 0 or bool(account))
        )
        problem = error.strerror or str(error)
        return Written(path=str(folder), problem=problem, free=free, denied=denied, mount=mount)
    return Written(
        path=str(folder),
        took_ms=(time.monotonic() - began) * 1000,
        problem="" if same else "what was read is not what was written",
        free=free,
        mount=mount,
    )


@contextmanager
def _opened(folder: Path, account: Sequence[int]) -> Iterator[int]:
    """Open a folder, and become ``account`` (user, group, further groups): the way to it may be closed to that one."""
    there = -1
    with suppress(PermissionError):
        there = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if account:
            parent = os.getppid()
            os.setgroups(account[1:])
            os.setresgid(account[1], account[1], account[1])
            os.setresuid(account[0], account[0], account[0])
            die_with_parent(parent)  # the kernel has forgotten it with the account
        if there < 0:
            there = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        yield there
    finally:
        if there >= 0:
            os.close(there)


def _probe_name(account: Sequence[int] = ()) -> str:
    """Return the name of the file: one a machine and account, so that one that was left, as it hung, is found again."""
    machine = "".join(letter if letter.isalnum() else "-" for letter in os.uname().nodename)
    return f".airyard-preflight-{machine}" + (f"-{account[0]}" if account else "")


def _fresh(probe: str, there: int) -> FileIO:
    """Make the file; one that is there is of a round that hung, or of another that has it open by now."""

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags, 0o600, dir_fd=there)

    for _ in range(_TRIES):
        try:
            return open(probe, "x+b", buffering=0, opener=opener)
        except FileExistsError:
            with suppress(FileNotFoundError):
                os.unlink(probe, dir_fd=there)
    return open(probe, "x+b", buffering=0, opener=opener)


def _manifest(path: Path) -> Manifest:
    try:
        lines = [line.split(maxsplit=1) for line in path.read_text("utf-8").splitlines() if line.strip()]
        entries = [(digest, path.parent / name.strip().lstrip("*")) for digest, name in lines]
    except (OSError, UnicodeDecodeError, ValueError) as error:
        return Manifest(path=str(path), problem=str(error))
    until, broken, hashed, seen = time.monotonic() + _MANIFEST_S, [], 0, 0
    for digest, file in entries:
        if time.monotonic() >= until + _MANIFEST_S:
            break
        seen += 1
        try:
            file.stat()  # it has to be there, also when there is no time to read it
            found = _digest(file, until)
        except OSError as error:
            broken.append(f"{file.name}: {error.strerror}")
            continue
        hashed += found is not None
        if found not in (None, digest.lower()):
            broken.append(f"{file.name}: its content is not what the manifest says")
    return Manifest(path=str(path), listed=len(entries), seen=seen, hashed=hashed, broken=tuple(broken))


def _digest(file: Path, until: float) -> str | None:
    """Return the checksum of a file; None where there was no time to read it whole."""
    found = hashlib.sha256()
    with open(file, "rb") as stream:
        while time.monotonic() < until:
            if not (block := stream.read(_BLOCK)):
                return found.hexdigest()
            found.update(block)
    return None


def collect_speed(site: Site) -> Speed:
    """Write and read 128 MiB in the data folder, and remove it."""
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
    )


def _writes(read: Stores, limits: Thresholds) -> Iterator[CheckResult]:
    name = "storage.writes"
    if not read.written:
        yield skipped(name, "no folder was named that runs write to")
        return
    tried = [each for each in read.written if not each.denied]
    bad = [*_not_told(name, read.written), *_not_written(name, tried, limits["mount_ms_fail"])]
    yield from bad
    if not bad:
        slowest = max(each.took_ms or 0 for each in read.written)
        yield passed(name, f"{_folders(read.written)} written and read", value=slowest, unit="ms")


def _not_told(name: str, folders: Sequence[Written]) -> Iterator[CheckResult]:
    for each in folders:
        if each.denied:
            yield unknown(
                name,
                f"{_named(each)}: {each.problem} for the account that tried, as where a server takes root for nobody",
                "name a folder in the pool's storage that this account may write to",
                component=Component.STORAGE,
            )


def _named(each: Written) -> str:
    elsewhere = each.mount and not each.mount.startswith(f"{each.path}, ")
    return f"{each.path} (on {each.mount})" if elsewhere else each.path


def _not_written(name: str, folders: Sequence[Written], most_ms: float) -> Iterator[CheckResult]:
    for each in folders:
        if each.took_ms is not None and not each.problem and each.took_ms <= most_ms:
            continue
        what = each.problem
        if each.took_ms is None:
            what = "does not answer"
        elif not what:
            what = f"took {each.took_ms:.0f} ms for 4 KiB"
        yield failed(
            name,
            f"{_named(each)}: {what}",
            "look at its rights, its room and its server; where many machines show it, it is the storage's",
            Component.STORAGE,
            value=None if each.problem else each.took_ms,
            threshold=None if each.problem else most_ms,
            unit="ms",
        )


def _caches(read: Stores, limits: Thresholds) -> Iterator[CheckResult]:
    name, listed = "storage.cache", read.manifest
    if not read.caches and listed is None:
        yield skipped(name, "no cache and no manifest of cached files was named")
        return
    bad = [
        *_not_written(name, read.caches, limits["mount_ms_fail"]),
        *_narrow(name, read.caches, limits["cache_free_gib_fail"], limits["cache_free_gib_warn"]),
        *(_broken(name, listed) if listed is not None else ()),
    ]
    yield from bad
    if not bad:
        told = [f"{_folders(read.caches)} of caches written and read"] if read.caches else []
        if listed is not None:
            of_all = (
                f"{listed.seen} of {listed.listed}" if listed.seen < listed.listed else f"{listed.listed}"
            )
            told.append(f"{of_all} files are there, {listed.hashed} of them read and compared")
        yield passed(name, "; ".join(told))


def _narrow(name: str, caches: Sequence[Written], least: float, few: float) -> Iterator[CheckResult]:
    step = "`airyard admin gc`, or make room"
    for each in caches:
        if each.free is None or each.free / _GIB >= few:
            continue
        free_gib = each.free / _GIB
        text = f"{each.path} has {free_gib:.1f} GiB free"
        if free_gib < least:
            yield failed(name, text, step, Component.DISK, value=free_gib, threshold=least, unit="GiB")
        else:
            yield warned(name, text, step, value=free_gib, threshold=few, unit="GiB")


def _broken(name: str, listed: Manifest) -> Iterator[CheckResult]:
    if listed.late:
        yield failed(
            name,
            f"{listed.path} or what it lists does not answer",
            "look at the disk or server that has it",
            Component.STORAGE,
        )
    elif listed.problem:
        yield failed(
            name,
            f"{listed.path} cannot be read: {listed.problem}",
            "fill the cache again",
            Component.STORAGE,
        )
    elif listed.broken:
        yield failed(
            name,
            f"{len(listed.broken)} of {listed.listed} cached files are not right: {'; '.join(listed.broken[:3])}",
            "fetch these files again",
            Component.STORAGE,
            value=len(listed.broken),
            threshold=0,
        )


def _folders(written: Sequence[Written]) -> str:
    return f"{len(written)} {'folder' if len(written) == 1 else 'folders'}"


def _fast_enough(read: Speed, limits: Thresholds) -> Iterator[CheckResult]:
    name = "storage.speed"
    if read.problem:
        yield failed(
            name, f"{read.path} cannot be written: {read.problem}", "mend the file system", Component.DISK
        )
        return
    text = f"{read.path}: {read.write_mb_s:,.0f} MB/s written, {read.read_mb_s:,.0f} MB/s read"
    usual, said = limits["storage_mb_s"], "are usual here"
    if not usual and (fleet := limits.fleet.get(STORAGE)) is not None:
        usual, said = fleet.median, f"are the median of {fleet.nodes} other nodes of its kind"
    floor = usual * limits["storage_share_warn"]
    if not usual:
        yield passed(name, text, value=read.write_mb_s, unit="MB/s")
    elif read.write_mb_s < floor:
        yield warned(
            name,
            f"{text}; {usual:,.0f} MB/s {said}",
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
            title="folders that runs write to",
            passes="4 KiB written, synced, read back and removed within mount_ms_fail",
            judge=_writes,
            component=Component.STORAGE,
        ),
        Check(
            name="storage.cache",
            number=50,
            title="caches of code and environments; cached weights",
            passes="can be written; cache_free_gib_fail free (cache_free_gib_warn, else a warning); all files of "
            "the manifest are there, those read within two seconds have its checksum",
            judge=_caches,
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
            passes="storage_share_warn of storage_mb_s, where a site says what is usual, else of the median of other "
            "nodes of its pool and kind (else a warning)",
            judge=_fast_enough,
            component=Component.DISK,
        ),
    ),
)
