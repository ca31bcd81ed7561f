"""What a run was submitted from, kept under its own hash: texts of workload files, and git diffs of code.

Owns: one folder of small files. Must not know: runs. Blocks on the disk.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from enum import Enum
from pathlib import Path

from airyard.core.errors import Unavailable

FOLDER = Path("server/sources")


class Kind(Enum):
    """What a text is; the value ends the name of its file."""

    WORKLOAD = ".yaml"
    DIFF = ".patch"


def file_name(kind: Kind, digest: str) -> str:
    """Return the name of a text's file in the folder."""
    return digest + kind.value


def keep(folder: Path, kind: Kind, text: str) -> str:
    """Store a text durably and return its SHA-256 (hex); storing it again is harmless.

    Raises: Unavailable when the disk refuses.
    """
    data = text.encode()
    digest = hashlib.sha256(data).hexdigest()
    path = folder / file_name(kind, digest)
    try:
        if touch(folder, kind, digest):
            return digest
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise Unavailable(
            f"what the run was submitted from cannot be stored in {folder}: {error.strerror}",
            code="DISK_FULL",
        ) from error
    return digest


def touch(folder: Path, kind: Kind, digest: str) -> bool:
    """Make a stored text young, which the sweep leaves alone; False when it is not there. Raises: OSError."""
    try:
        os.utime(folder / file_name(kind, digest))
    except FileNotFoundError:
        return False
    return True


def find(folder: Path, kind: Kind, digest: str) -> Path | None:
    """Return the file of a stored text; None when there is none (any more)."""
    path = folder / file_name(kind, digest)
    return path if digest and path.exists() else None


def load(folder: Path, kind: Kind, digest: str) -> str | None:
    """Return a stored text, line ends as they were; None when there is none (any more)."""
    if not digest:
        return None
    try:
        return (folder / file_name(kind, digest)).read_bytes().decode()
    except FileNotFoundError:
        return None


def names(folder: Path, *, before_ms: int) -> set[str]:
    """Return the file names of the texts that were stored (or found stored again) before a time."""
    found = set()
    for kind in Kind:
        for path in folder.glob(f"*{kind.value}"):
            try:
                if path.stat().st_mtime * 1000 < before_ms:
                    found.add(path.name)
            except FileNotFoundError:
                continue
    return found


def remove(folder: Path, name: str) -> None:
    """Remove the file of a text, if it is there."""
    (folder / name).unlink(missing_ok=True)
