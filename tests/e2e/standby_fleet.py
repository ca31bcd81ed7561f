"""A fleet with a standby for end-to-end stories: two servers, their database and Ray's head on hosts of their own.

Owns: h0 and h1 with a server each, h2 with the head and the way to PostgreSQL, the members' hosts, commands that know
both servers. Must not know: what befalls whom.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from e2e.fleet import await_hosts
from e2e.hosts import Host, Hosts
from e2e.stories import StormyFleet
from e2e.yard import Yard, wait_for
from postgres_server import PostgresServer

FORWARD = str(Path(__file__).with_name("postgres_forward.py"))
PORT, POSTGRES_PORT, HEAD_PORT = 8443, 5432, 6400
SERVERS = (0, 1)
BACKGROUND = 2


class StandbyFleet(StormyFleet):
    """Commands run on h2, which has neither a server nor members. Every folder is on a disk that all hosts mount."""

    def __init__(self, hosts: Hosts, folder: Path, cache: Path, journal_url: str) -> None:
        super().__init__(hosts, folder, cache)
        self.yard = folder / "yard"
        self.yard.mkdir()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._servers: dict[int, subprocess.Popen[bytes]] = {}
        database = f"{journal_url.partition('?')[0].rpartition('/')[2]}"
        place = hosts[BACKGROUND].address
        urls = json.dumps([self.url(number) for number in SERVERS])
        for number in SERVERS:
            host = hosts[number]
            home = self.home_of(host)
            home.mkdir(exist_ok=True)
            lines = [
                "[server]",
                f'host = "{host.address}"',
                f"port = {PORT}",
                "insecure = true",
                "[journal]",
                f'url = "postgresql://airyard@{place}:{POSTGRES_PORT}/{database}"',
                "[standby]",
                f"shared = {json.dumps(str(self.yard))}",
                f"servers = {urls}",
                "[engine]",
                'kind = "ray"',
                "cpu_slots = 1",
                "simulate = { GPU_8xH100 = 1 }",
                "[engine.ray]",
                f'head = "{place}:{HEAD_PORT}"',
                f"token_file = {json.dumps(str(self.token_file))}",
            ]
            (home / "config.toml").write_text("\n".join(lines) + "\n")
            self._prepare_node(host)

    def _prepare_node(self, host: Host) -> None:
        node = self.home_of(host) / "node"
        node.mkdir(parents=True, mode=0o700, exist_ok=True)
        for name in ("envs", "uv-cache"):
            if not (node / name).exists():
                (node / name).symlink_to(self._cache / name)
        if not (node / "runs").is_symlink():
            (node / "runs").symlink_to(self.shared)

    @property
    def token_file(self) -> Path:
        """The fleet's token, which its head made."""
        return self.folder / "h2" / "head" / "token"

    def url(self, number: int) -> str:
        """Return a server's address."""
        return f"http://{self.hosts[number].address}:{PORT}"

    def command(self, *arguments: str) -> list[str]:
        """See Yard: on h2, with both servers."""
        return [*self.hosts[BACKGROUND].prefix(), *Yard.command(self, *arguments)]

    def address(self) -> str:
        """Return all servers."""
        return ",".join(self.url(number) for number in SERVERS)

    def know_servers(self) -> None:
        """Have every command know both servers, and the owner's token."""
        token = (self.yard / "server" / "token").read_text().strip()
        self.set(AIRYARD_HOST=self.address(), AIRYARD_TOKEN=token)

    def start_background(self, postgres: PostgresServer) -> None:
        """Start the way to PostgreSQL and the head."""
        host = self.hosts[BACKGROUND]
        socket = str(postgres.folder / ".s.PGSQL.5432")
        line = [*host.prefix(), sys.executable, FORWARD, host.address, str(POSTGRES_PORT), socket]
        self._processes.append(subprocess.Popen(line, stdin=subprocess.DEVNULL))
        done = self.on(host, "node", "head", "--address", host.address, "--port", str(HEAD_PORT))
        assert done.returncode == 0, (done.stdout, done.stderr)

    def start_server(self, number: int) -> None:
        """Start a server in the foreground of its host."""
        host = self.hosts[number]
        line = [sys.executable, "-m", "airyard.server", "--home", str(self.home_of(host))]
        with self.log_file(number).open("ab") as log:
            self._servers[number] = subprocess.Popen(
                [*host.prefix(), *line],
                env={name: value for name, value in self._environment.items() if name != "AIRYARD_HOME"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )

    def log_file(self, number: int) -> Path:
        """Return a server's log."""
        return self.folder / f"server-{number}.log"

    def log(self, number: int) -> str:
        """Return what a server has logged."""
        return self.log_file(number).read_text() if self.log_file(number).exists() else ""

    def until_logged(self, number: int, event: str, *, count: int = 1, timeout: float = 90) -> None:
        """Wait until a server has logged an event so often."""
        mark = f'"event": "{event}"'
        wait_for(lambda: self.log(number).count(mark) >= count, timeout, what=f"{event} of h{number}")

    def exit_code(self, number: int, timeout: float = 60) -> int:
        """Wait for a server's end."""
        return self._servers[number].wait(timeout)

    def await_all(self) -> None:
        """Wait until every machine is there."""
        wanted = {f"h{number}-cpu-0" for number in range(len(self.hosts.hosts)) if number != BACKGROUND}
        wait_for(lambda: wanted <= self.alive(), timeout=90, what="all machines to be there")

    def join_members(self) -> None:
        """Have h3 and on join, all at once."""
        with ThreadPoolExecutor() as pool:
            for joined in [pool.submit(self.join, host) for host in self.hosts.hosts[BACKGROUND + 1 :]]:
                joined.result()

    def close(self) -> None:
        """End what runs outside of the hosts; the hosts are powered off by who made them."""
        for process in (*self._servers.values(), *self._processes):
            if process.poll() is None:
                process.kill()
            process.wait()


@contextlib.contextmanager
def standby_fleet(
    members: int,
    folder: Path,
    cache: Path,
    make_yard: Callable[..., Yard],
    postgres: PostgresServer,
) -> Iterator[StandbyFleet]:
    """Make a fleet whose leader is on h0, with so many hosts that only run members. Skips where hosts cannot be."""
    await_hosts(make_yard)
    with contextlib.ExitStack() as parts:
        hosts = Hosts(BACKGROUND + 1 + members)
        made = StandbyFleet(hosts, folder, cache, postgres.make_database())
        parts.callback(made.remove_temporary)
        parts.callback(hosts.close)
        parts.callback(made.close)
        made.start_background(postgres)
        made.start_server(0)
        made.until_logged(0, "serving")
        made.start_server(1)
        made.know_servers()
        made.join_members()
        made.until_logged(1, "standing_by")
        made.await_all()
        yield made
