"""Files that a leader writes under a name of its own term: the newest term's counts, all others are dead.

Owns: these names, the take-over of a file's content. Must not know: what is in it, who leads.

A leader that hung in the middle of a write and wakes after it was replaced goes on in a file that nobody reads any
more: no lock and no check just before the write could promise that. ``a/0.log`` becomes ``a/0.7.log`` in term 7.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from airyard.core.errors import Unavailable


def newest(path: Path) -> tuple[int, Path] | None:
    """Return the file that counts, with its term; 0 is that of the plain name. None: there is none."""
    return max(_all(path), default=None)


def take_over(path: Path, term: int, copy: Callable[[Path, Path], None]) -> Path:
    """Return this term's file, made from the one that counted so far; it is missing where there was none.

    ``copy`` makes the target appear at once and durably. Raises: Unavailable when a later term has begun; OSError.
    """
    own = path.with_name(f"{path.stem}.{term}{path.suffix}")
    found = newest(path)
    refuse_later(found, term)
    if found is None or found[0] == term:
        return own
    copy(found[1], own)
    for other, old in _all(path):
        if other < term:
            old.unlink(missing_ok=True)
    return own


def refuse_later(found: tuple[int, Path] | None, term: int) -> None:
    """Raises: Unavailable when the file that counts is of a later term than ``term``."""
    if found is not None and found[0] > term:
        raise Unavailable(
            f"a leader of term {found[0]} has {found[1]}; this server led in term {term}",
            code="NOT_LEADER",
            fix="ask the one that leads",
        )


def copy_durably(source: Path, target: Path) -> None:
    """Copy a file so that the target is whole or not there. Cost: its bytes, twice where the disk cannot share them."""
    partial = target.with_name(f".{target.name}.part")
    shutil.copyfile(source, partial)
    partial.chmod(0o600)
    fd = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    partial.replace(target)


def _all(path: Path) -> list[tuple[int, Path]]:
    found = [(0, path)] if path.exists() else []
    for each in path.parent.glob(f"{path.stem}.*{path.suffix}"):
        middle = each.name[len(path.stem) + 1 : -len(path.suffix)]
        if middle.isdecimal():
            found.append((int(middle), each))
    return found
