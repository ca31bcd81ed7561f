"""Builds Python environments once per machine and keeps them for whoever asks next.

Owns: what makes two environments the same, resolving, building, the store's folders, eviction.
Must not know: attempts, the view that an attempt gets (``environment_view``), the server.

Folders: ``locks/`` (resolved requirements by request), ``envs/<key>/`` (``venv``, ``lock.txt``, ``.complete``,
``.last_used``), ``flocks/``, ``uv-cache/``; all on one file system, so that uv links files instead of copying. An
environment without ``.complete``, which is written last, is remains. Users hold a shared flock; eviction respects it.

A resolved lock is used again for a day, so that a warm start resolves nothing; a dependency without a pin thus
follows its index with that delay. While the index cannot be reached, an older lock is used, and that is said.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airyard.node.file_locks import FileLock, obtain
from airyard.node.uv import (
    DownloadFailed,
    ResolveFailed,
    disk_failure,
    find_uv,
    run_uv,
    uv_environment,
    uv_version,
)

LOCK_LIFETIME_SECONDS = 24 * 3600.0
_MANY_CORES = 8
_LAYOUT = 1
_IDENTITY = (
    "import sys, sysconfig, platform, json;"
    "print(json.dumps([platform.python_implementation(), platform.python_version(), sysconfig.get_platform(),"
    " sys.base_prefix]))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentRequest:
    """What a run asks for. Entries of ``dependencies`` are lines of a requirements file, options included."""

    base_version: str
    python: Path
    """An interpreter on this machine."""
    base_packages: tuple[str, ...] = ()
    dependencies: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    """Further arguments of ``uv pip compile`` and ``uv pip install``, for instance ``--prerelease=allow``."""

    @classmethod
    def from_order(cls, asked: Mapping[str, Any]) -> EnvironmentRequest:
        """Read the ``environment`` of a PREPARE order. Raises: KeyError, TypeError."""
        return cls(
            base_version=str(asked["version"]),
            python=Path(asked.get("python") or sys.executable),
            base_packages=tuple(asked.get("base_packages") or ()),
            dependencies=tuple(asked.get("dependencies") or ()),
        )

    @property
    def requirements(self) -> str:
        """The requirements file. ``pip`` is in every environment: commands install with it."""
        return "\n".join((*self.base_packages, *self.dependencies, "pip")) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """A complete environment, kept from eviction until ``release`` or the end of the process."""

    key: str
    path: Path
    """The shared tree. Never put it on a user's PATH; give a view of it."""
    lock_text: str
    was_built: bool
    held: FileLock

    def release(self) -> None:
        """Allow eviction again."""
        self.held.close()


class EnvironmentStore:
    """The environments of one machine. Any number of processes may use one root at a time."""

    def __init__(
        self,
        root: Path,
        *,
        inherited: Mapping[str, str],
        uv: Path | None = None,
        lock_lifetime_seconds: float = LOCK_LIFETIME_SECONDS,
        compile_bytecode: bool | None = None,
    ) -> None:
        """``inherited`` is the environment that index, proxy and CA settings are taken from.

        ``compile_bytecode``: None compiles only on machines with 8 cores or more (35 s on two cores against 0.5 s
        without, for 6,353 files; uv spreads it over all cores).
        """
        self._root = root
        self._uv = uv or find_uv()
        self._variables = uv_environment(inherited, root / "uv-cache")
        self._lifetime_seconds = lock_lifetime_seconds
        if compile_bytecode is None:
            compile_bytecode = (os.cpu_count() or 1) >= _MANY_CORES
        self._compile_bytecode = compile_bytecode

    def ensure(
        self,
        request: EnvironmentRequest,
        *,
        progress: Callable[[str], None] = lambda line: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Environment:
        """Return the environment, resolving and building what is missing.

        Raises: ResolveFailed, DownloadFailed, DiskFull, Cancelled (then nothing half-built is left valid).
        Cost: milliseconds when warm; the resolve, downloads and one link per file when not.
        """
        try:
            lock_text = self._lock_text(request, progress, should_stop)
            return self._build_once(request, lock_text, progress, should_stop)
        except OSError as error:
            raise disk_failure(error) from error

    def is_ready(self, request: EnvironmentRequest) -> bool:
        """Return whether ``ensure`` would neither resolve nor build now. Takes no lock and writes nothing.

        False also when only the lock is too old: resolving it again may well lead to the same environment.
        Raises: ResolveFailed for an interpreter that cannot be run. Cost: as a warm ``ensure``.
        """
        path = self._lock_path(request)
        try:
            if not self._is_fresh(path):
                return False
            key = self._key(request, path.read_text())
        except OSError:
            return False
        return (self._root / "envs" / key / ".complete").exists()

    def evict(self, *, keep_bytes: int, older_than_seconds: float) -> list[str]:
        """Remove what was not used for so long, then by last use until the root fits; return the removed keys.

        An environment in use stays. uv's cache goes before environments that are younger: it costs downloads only.
        """
        now = time.time()
        removed: list[str] = []
        by_age = sorted(self._complete(), key=_last_used)
        for folder in [folder for folder in by_age if now - _last_used(folder) > older_than_seconds]:
            by_age.remove(folder)
            removed += self._remove(folder)
        if removed or disk_usage(self._root) > keep_bytes:
            shutil.rmtree(self._root / "uv-cache", ignore_errors=True)
        for folder in by_age:
            if disk_usage(self._root) <= keep_bytes:
                break
            removed += self._remove(folder)
        return removed

    def evictable(self, *, keep_bytes: int, older_than_seconds: float) -> list[Path]:
        """Return the folders that ``evict`` would try to remove; those in use are among them."""
        now = time.time()
        by_age = sorted(self._complete(), key=_last_used)
        going = [folder for folder in by_age if now - _last_used(folder) > older_than_seconds]
        left_bytes = disk_usage(self._root) - sum(disk_usage(folder) for folder in going)
        for folder in by_age:
            if folder not in going and left_bytes > keep_bytes:
                going.append(folder)
                left_bytes -= disk_usage(folder)
        return going

    # --- resolving

    def _lock_text(
        self, request: EnvironmentRequest, progress: Callable[[str], None], should_stop: Callable[[], bool]
    ) -> str:
        path = self._lock_path(request)
        lock = FileLock(self._root / "flocks" / f"lock-{path.stem}")
        try:
            obtain(
                lock,
                is_ready=lambda: self._is_fresh(path),
                make=lambda: self._resolve(request, path, lock, progress, should_stop),
                should_stop=should_stop,
            )
        except DownloadFailed:
            if not path.exists():
                raise
            progress("The package index cannot be reached; the versions resolved before are used.")
        finally:
            lock.close()
        return path.read_text()

    def _lock_path(self, request: EnvironmentRequest) -> Path:
        return self._root / "locks" / f"{_digest(self._request_facts(request))}.txt"

    def _is_fresh(self, path: Path) -> bool:
        try:
            return time.time() - path.stat().st_mtime < self._lifetime_seconds
        except OSError:
            return False

    def _request_facts(self, request: EnvironmentRequest) -> list[object]:
        indexes = sorted(
            (name, value)
            for name, value in self._variables.items()
            if name.startswith("UV_") and name not in ("UV_CACHE_DIR", "UV_NO_PROGRESS", "UV_LINK_MODE")
        )
        return [self._identity(request), request.base_version, request.requirements, request.flags, indexes]

    def _identity(self, request: EnvironmentRequest) -> list[str]:
        return [*_python_identity(request.python), uv_version(self._uv)]

    def _resolve(
        self,
        request: EnvironmentRequest,
        path: Path,
        lock: FileLock,
        progress: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".resolve-") as scratch:
            folder = Path(scratch)
            (folder / "requirements.txt").write_text(request.requirements)
            command: list[str | Path] = [
                self._uv,
                "pip",
                "compile",
                "requirements.txt",
                "--output-file",
                "lock.txt",
            ]
            command += ["--python", request.python, "--no-header", "--no-annotate", *request.flags]
            run_uv(
                command,
                environment=self._variables,
                folder=folder,
                progress=progress,
                should_stop=should_stop,
                inherited_fds=(lock.fd,),
            )
            # Options decide where a pinned file comes from, so they belong to the lock.
            options = [line for line in request.dependencies if _is_option(line)]
            _write_durably(path, "\n".join([*options, (folder / "lock.txt").read_text()]).encode())

    # --- building

    def _key(self, request: EnvironmentRequest, lock_text: str) -> str:
        return _digest([_LAYOUT, self._identity(request), lock_text, request.flags])

    def _build_once(
        self,
        request: EnvironmentRequest,
        lock_text: str,
        progress: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> Environment:
        key = self._key(request, lock_text)
        folder = self._root / "envs" / key
        held = FileLock(self._root / "flocks" / key)
        try:
            was_built = obtain(
                held,
                is_ready=(folder / ".complete").exists,
                make=lambda: self._build(request, folder, lock_text, held, progress, should_stop),
                should_stop=should_stop,
                on_wait=lambda: progress("Another attempt on this machine is building the same environment."),
            )
        except BaseException:
            held.close()
            raise
        with contextlib.suppress(OSError):
            (folder / ".last_used").touch()
        return Environment(key=key, path=folder / "venv", lock_text=lock_text, was_built=was_built, held=held)

    def _build(
        self,
        request: EnvironmentRequest,
        folder: Path,
        lock_text: str,
        held: FileLock,
        progress: Callable[[str], None],
        should_stop: Callable[[], bool],
    ) -> None:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / "lock.txt").write_text(lock_text)
        venv = folder / "venv"
        run = functools.partial(
            run_uv,
            environment=self._variables,
            folder=folder,
            progress=progress,
            should_stop=should_stop,
            inherited_fds=(held.fd,),
        )
        try:
            run([self._uv, "venv", "--relocatable", "--no-project", "--python", request.python, venv])
            install: list[str | Path] = [
                self._uv,
                "pip",
                "install",
                "--python",
                venv / "bin" / "python",
                "--no-deps",
            ]
            install += ["--requirements", "lock.txt", *request.flags]
            run([*install, "--compile-bytecode"] if self._compile_bytecode else install)
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, ResolveFailed):
                error.code = "ENVIRONMENT_BUILD_FAILED"
            raise
        _sync_file_system(folder)
        about = {"base_version": request.base_version, "python": str(request.python)}
        _write_durably(folder / ".complete", json.dumps(about).encode())

    # --- keeping

    def _complete(self) -> list[Path]:
        return [mark.parent for mark in (self._root / "envs").glob("*/.complete")]

    def _remove(self, folder: Path) -> list[str]:
        lock = FileLock(self._root / "flocks" / folder.name)
        try:
            if not lock.try_exclusive():
                return []
            # The mark first: a crash in between must leave remains, not half an environment.
            (folder / ".complete").unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            return [folder.name]
        finally:
            lock.close()


def disk_usage(root: Path) -> int:
    """Return the bytes that a tree takes on the disk, each linked file counted once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                status = os.lstat(os.path.join(folder, name))
            except OSError:
                continue
            if status.st_nlink == 1 or (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total


@functools.cache
def _python_identity(python: Path) -> tuple[str, ...]:
    if os.fspath(python) == sys.executable:
        version, system = platform.python_version(), sysconfig.get_platform()
        return (platform.python_implementation(), version, system, sys.base_prefix)
    try:
        answer = subprocess.run([python, "-I", "-c", _IDENTITY], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ResolveFailed(
            f"The interpreter {python} of the environment cannot be run: {error}.",
            code="ENVIRONMENT_PYTHON_UNUSABLE",
            fix="Name an interpreter that exists on every node in the server's configuration.",
        ) from error
    return tuple(json.loads(answer.stdout))


def _is_option(line: str) -> bool:
    word = line.strip()
    return word.startswith("-") and not word.startswith(("-e", "--editable", "--hash"))


def _digest(facts: Iterable[object]) -> str:
    return hashlib.sha256(json.dumps(list(facts), sort_keys=True).encode()).hexdigest()[:32]


def _last_used(folder: Path) -> float:
    for name in (".last_used", ".complete"):
        with contextlib.suppress(OSError):
            return (folder / name).stat().st_mtime
    return 0.0


def _sync_file_system(folder: Path) -> None:
    """Bring the files of a build to the disk before the mark that says they are there; one call, not 10,000."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        ctypes.CDLL(None, use_errno=True).syncfs(fd)
    finally:
        os.close(fd)


def _write_durably(path: Path, data: bytes) -> None:
    """Write a file so that it is there whole or not at all, a crash of the machine included."""
    scratch = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with scratch.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
