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
from urllib.parse import urlsplit

import pytest

from e2e.yard import Yard, wait_for
from postgres_server import PostgresServer

SOURCE = Path(__file__).with_name("fatal_instant.c")


def build(folder: Path) -> Path:
    """Compile the library. Skips the test where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the fatal instant with")
    library = folder / "fatal_instant.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", library, SOURCE, "-ldl"], check=True)
    return library


def postgres_of(request: pytest.FixtureRequest) -> PostgresServer | None:
    """Return the PostgreSQL that a fixture's parameter asks for: ``sqlite`` or ``postgres``."""
    if request.param == "sqlite":
        return None
    server: PostgresServer = request.getfixturevalue("postgres")
    return server


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One event of the journal."""

    seq: int
    kind: str
    data: dict[str, Any]


class Fatal:
    """A yard whose servers can be told when to die. ``postgres``: keeps its journal in a database of its own there."""

    def __init__(self, yard: Yard, library: Path, postgres: PostgresServer | None = None) -> None:
        self.yard = yard
        self._postgres = postgres
        self._database = ""
        if postgres is not None:
            url = postgres.make_database()
            self._database = urlsplit(url).path.removeprefix("/")
            with (yard.home / "config.toml").open("a") as config:
                config.write(f"[journal]\nurl = {json.dumps(url)}\n")
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
        wait_for(lambda: self._sessions() == 0, timeout, "the end of what it had begun in PostgreSQL")

    def _sessions(self) -> int:
        if self._postgres is None:
            return 0
        where = f"datname = '{self._database}'"
        return int(self._postgres.psql(f"SELECT count(*) FROM pg_stat_activity WHERE {where}"))

    def journal(self) -> list[Told]:
        """Return all that is journalled, oldest first, as the next server will find it."""
        if self._postgres is not None:
            row = "json_build_object('seq', seq, 'kind', kind, 'data', data::json)"
            found = self._postgres.psql(f"SELECT json_agg({row} ORDER BY seq) FROM journal", self._database)
            return [Told(**each) for each in json.loads(found or "[]")]
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
