"""The text of workload files as they were submitted, kept under its own hash.

Owns: one folder of small files. Must not know: runs. Blocks on the disk.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from airyard.core.errors import Unavailable

FOLDER = Path("server/sources")


def keep(folder: Path, text: str) -> str:
    """Store a text durably and return its name (SHA-256, hex); storing it again is harmless.

    Raises: Unavailable when the disk refuses.
    """
    data = text.encode()
    name = hashlib.sha256(data).hexdigest()
    path = folder / f"{name}.yaml"
    try:
        if path.exists():
            os.utime(path)  # the sweep leaves young files alone
            return name
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
            f"the workload file cannot be stored in {folder}: {error.strerror}", code="DISK_FULL"
        ) from error
    return name


def load(folder: Path, name: str) -> str | None:
    """Return a stored text; None when there is none (any more)."""
    if not name:
        return None
    try:
        return (folder / f"{name}.yaml").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def names(folder: Path, *, before_ms: int) -> set[str]:
    """Return the names of the texts that were stored (or found stored again) before a time."""
    found = set()
    for path in folder.glob("*.yaml"):
        try:
            if path.stat().st_mtime * 1000 < before_ms:
                found.add(path.stem)
        except FileNotFoundError:
            continue
    return found


def remove(folder: Path, name: str) -> None:
    """Remove a text, if it is there."""
    (folder / f"{name}.yaml").unlink(missing_ok=True)
