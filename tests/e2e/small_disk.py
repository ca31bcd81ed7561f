"""Real small disks for end-to-end stories: a tmpfs mounted on a folder, filled and freed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A disk of its own below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / ".filler"

    def fill(self) -> None:
        """Take every byte that is left."""
        with self._filler.open("wb", buffering=0) as sink:
            block = b"\0" * 65536
            while block:
                try:
                    sink.write(block)
                except OSError:
                    block = block[: len(block) // 2]

    def free(self) -> None:
        """Give the bytes back."""
        self._filler.unlink()


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[SmallDisk]:
    """Mount a tmpfs on a folder for a while; skip the test where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    options = f"size={mebibytes}m,mode=0700"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "airyard-test", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)
