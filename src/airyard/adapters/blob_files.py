"""Code snapshots as files, one a tree hash, whole or not there.

Owns: names, atomic writes, the sweep of unfinished ones. Must not know: what is in a blob, who still needs it.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from airyard.core.errors import NotFound, Unavailable, UserError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_SUFFIX = ".tar.gz"
_PARTIAL = ".partial"


class FileBlobStore:
    """Implements ``ports.blob_store.BlobStore`` in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob(f"*{_PARTIAL}"):
            left.unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Return whether the blob is there; the question counts as a use."""
        path = self._path(name)
        try:
            os.utime(path)
        except FileNotFoundError:
            return False
        return True

    def put(self, name: str, chunks: Iterable[bytes]) -> int:
        """Store a blob durably; a failure, also of ``chunks``, leaves nothing behind."""
        path = self._path(name)
        partial = path.with_name(f"{path.name}.{secrets.token_hex(6)}{_PARTIAL}")
        size = 0
        try:
            with partial.open("xb") as out:
                for chunk in chunks:
                    out.write(chunk)
                    size += len(chunk)
                out.flush()
                os.fsync(out.fileno())
            os.replace(partial, path)
            self._sync_folder()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise Unavailable(
                    f"the disk of {self._folder} is full after {size} bytes of code snapshot {name}",
                    code="DISK_FULL",
                    fix="free space there (`airyard admin gc`), then submit again",
                ) from error
            raise
        finally:
            partial.unlink(missing_ok=True)
        return size

    def open(self, name: str) -> BinaryIO:
        """Open a blob for reading."""
        try:
            return self._path(name).open("rb")
        except FileNotFoundError:
            raise NotFound(f"no code snapshot {name}", code="CODE_NOT_FOUND") from None

    def delete(self, name: str) -> None:
        """Remove a blob; one that is not there is fine."""
        self._path(name).unlink(missing_ok=True)

    def names(self) -> Iterator[tuple[str, int, int]]:
        """Yield (name, bytes, last use in ms), by name."""
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            yield path.name.removesuffix(_SUFFIX), status.st_size, status.st_mtime_ns // 1_000_000

    def _path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UserError(f"{name!r} is no name of a code snapshot", code="BAD_BLOB_NAME")
        return self._folder / f"{name}{_SUFFIX}"

    def _sync_folder(self) -> None:
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
