"""Servers that die by SIGKILL at an instant that a test names: between two writes, in the middle of a log.

Owns: the preloaded library, the file that arms it, what the journal holds. Must not know: what should follow.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from e2e.yard import Yard, wait_for

SOURCE = Path(__file__).with_name("fatal_instant.c")


def build(folder: Path) -> Path:
    """Compile the library. Skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the fatal instant with")
    library = folder / "fatal_instant.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One event of the journal."""

    seq: int
    kind: str
    data: dict[str, Any]


class Fatal:
    """A yard whose servers can be told when to die."""

    def __init__(self, yard: Yard, library: Path) -> None:
        self.yard = yard
        self._armed = yard.home / "fatal-instant"
        yard.set(LD_PRELOAD=str(library), FATAL_INSTANT=str(self._armed))

    def arm(self, *instants: str) -> None:
        """Have the server die when the last of ``WHEN COUNT TEXT`` comes; see the library."""
        ready = self._armed.with_suffix(".new")
        ready.write_text("".join(f"{instant}\n" for instant in instants))
        ready.rename(self._armed)

    def await_death(self, pid: int, timeout: float = 60) -> None:
        """Wait until the server has died of it."""
        wait_for(lambda: not self._armed.exists(), timeout, "the instant")
        wait_for(lambda: pid not in self.yard.processes(), timeout, "the end of the server")

    def journal(self) -> list[Told]:
        """Return all that is journalled, oldest first, as the next server will find it."""
        with tempfile.TemporaryDirectory() as folder:
            # A copy: whoever opens the file itself after a death goes by the index of its log, which may be behind.
            for name in ("journal.db", "journal.db-wal"):
                shutil.copy(self.yard.home / "server" / name, folder)
            with contextlib.closing(sqlite3.connect(Path(folder) / "journal.db")) as database:
                rows = database.execute("SELECT seq, kind, data FROM journal ORDER BY seq").fetchall()
        return [Told(seq=seq, kind=kind, data=json.loads(data)) for seq, kind, data in rows]

    def of(self, run_id: int, kind: str) -> list[dict[str, Any]]:
        """Return the journal's events of one kind about a run, oldest first."""
        return [one.data for one in self.journal() if one.kind == kind and one.data.get("run_id") == run_id]
