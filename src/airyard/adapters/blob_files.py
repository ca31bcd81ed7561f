"""Blobs as files of one folder: written beside, made durable, then given their name.

Owns: names, durability, what a crash leaves. Must not know: what is in a blob.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from airyard.core.errors import NotFound, Unavailable, UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_PARTIAL = ".partial-"
_REMOVED = ".removed-"
KEPT_S = 86_400
"""How long a removed blob can still be had, where servers share the folder."""


class FileBlobStore:
    """Blobs of one kind, such as ``blobs/code/<hash>.tar.gz``. Any thread; one server a folder."""

    def __init__(self, folder: Path, *, suffix: str = ".tar.gz", shared: bool = False) -> None:
        """Open the folder, made when missing, and remove what uploads left that never ended.

        ``shared``: with servers that may lead after this one. A removal that hung and goes on when its server wakes
        must not take what the next leader was just asked for: a removed blob is set aside, and comes back when wanted.
        """
        self._folder = folder
        self._shared = shared
        self._suffix = suffix
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for partial in folder.glob(f"{_PARTIAL}*"):
            partial.unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Return whether the blob is whole and there; asking counts as a use."""
        path = self._path(name)
        try:
            os.utime(path)
        except FileNotFoundError:
            return self._bring_back(name)
        return True

    def put(self, name: str, chunks: Iterable[bytes]) -> int:
        """Store a blob durably and return its bytes. What ``chunks`` raises comes through, and nothing is stored."""
        path = self._path(name)
        try:
            fd, partial = tempfile.mkstemp(prefix=_PARTIAL, dir=self._folder)
        except OSError as error:
            raise self._unavailable(name, error) from error
        try:
            size = self._fill(name, fd, chunks)
            self._publish(name, partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise
        return size

    def _fill(self, name: str, fd: int, chunks: Iterable[bytes]) -> int:
        size = 0
        with os.fdopen(fd, "wb", buffering=0) as file:
            for chunk in chunks:
                view = memoryview(chunk)
                size += len(view)
                while view:
                    try:
                        view = view[file.write(view) :]
                    except OSError as error:
                        raise self._unavailable(name, error) from error
            try:
                os.fsync(file.fileno())
            except OSError as error:
                raise self._unavailable(name, error) from error
        return size

    def _publish(self, name: str, partial: str, path: Path) -> None:
        try:
            os.replace(partial, path)
            fd = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            raise self._unavailable(name, error) from error

    def open(self, name: str) -> BinaryIO:
        """Open a blob for reading; it stays readable when it is deleted meanwhile."""
        path = self._path(name)
        if not path.exists():
            self._bring_back(name)
        try:
            file = path.open("rb")
            os.utime(path)
        except FileNotFoundError as error:
            raise NotFound(
                f"There is no blob {name!r}.",
                code="BLOB_NOT_FOUND",
                fix="Upload it again.",
                details={"name": name},
            ) from error
        return file

    def delete(self, name: str) -> None:
        """Remove a blob, if it is there; of a shared folder for good only a day later."""
        if not self._shared:
            self._path(name).unlink(missing_ok=True)
            return
        with contextlib.suppress(FileNotFoundError):
            os.replace(self._path(name), self._removed(name))
        for old in self._folder.glob(f"{_REMOVED}*{self._suffix}"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - old.stat().st_ctime > KEPT_S:  # ctime: when it was set aside
                    old.unlink()

    def _removed(self, name: str) -> Path:
        return self._folder / f"{_REMOVED}{name}{self._suffix}"

    def _bring_back(self, name: str) -> bool:
        """Put back a blob that was set aside; False when it is not there either."""
        try:
            os.replace(self._removed(name), self._path(name))
            os.utime(self._path(name))
        except FileNotFoundError:
            return False
        return True

    def names(self) -> Iterator[tuple[str, int, int]]:
        """Yield (name, bytes, last use in ms) of every blob, by name."""
        for path in sorted(self._folder.glob(f"*{self._suffix}")):
            name = path.name.removesuffix(self._suffix)
            if _NAME.fullmatch(name):
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue
                yield name, found.st_size, found.st_mtime_ns // 1_000_000

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{name!r} is no name of a blob: 1 to 128 letters, digits, '_' or '-', the first a letter or a digit.",
                code="BAD_BLOB_NAME",
            )
        return self._folder / f"{name}{self._suffix}"

    def _unavailable(self, name: str, error: OSError) -> Unavailable:
        disk = os.statvfs(self._folder) if self._folder.exists() else None
        free_bytes = disk.f_bavail * disk.f_frsize if disk else 0
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return Unavailable(
            f"Blob {name!r} cannot be stored in {self._folder}: "
            f"{'the disk is full' if full else error} ({free_bytes} bytes free).",
            code="BLOB_DISK_FULL" if full else "BLOB_STORE_BROKEN",
            fix="Free space on that disk; `airyard admin gc --dry-run` shows what Airyard can remove."
            if full
            else "Look at the disk's health and the folder's permissions.",
            details={"name": name, "free_bytes": free_bytes},
        )
