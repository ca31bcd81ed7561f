"""A fleet for end-to-end stories: a server on host h0, and hosts that join it with ``airyard node``."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from e2e.hosts import Host, Hosts, why_not
from e2e.yard import Yard

F = TypeVar("F", bound="Fleet")


class Fleet(Yard):
    """A yard whose commands run on h0; the other hosts have data folders of their own."""

    def __init__(self, hosts: Hosts, folder: Path, cache: Path, *, ray: str = "") -> None:
        """``ray``: more lines for ``[engine.ray]``."""
        self.hosts = hosts
        self.folder = folder
        self._cache = cache
        super().__init__(folder / "h0", cache)
        # Ray's sockets need short paths, and what a power-off leaves is to be found again.
        self._temporary = Path(tempfile.mkdtemp(prefix="ayh", dir="/tmp"))
        self.set(TMPDIR=str(self._temporary))
        server = f'[server]\nhost = "{hosts[0].address}"\ninsecure = true\n'
        (self.home / "config.toml").write_text(
            f'{server}[engine]\nkind = "ray"\n[engine.ray]\nhere = false\n{ray}'
        )

    @property
    def token_file(self) -> Path:
        """The fleet's token."""
        return self.home / "server" / "ray" / "token"

    def command(self, *arguments: str) -> list[str]:
        """See Yard: on h0."""
        return [*self.hosts[0].prefix(), *super().command(*arguments)]

    def get(self, run_id: int) -> dict[str, Any]:
        """See Yard: by the command line, for h0's network is not the tests'."""
        found = self.data("get", str(run_id))
        run: dict[str, Any] = found.get("run", found)
        return run

    def address(self) -> str:
        """Return HOST:PORT of the server."""
        endpoint = json.loads((self.home / "server" / "endpoint.json").read_text())
        return f"{endpoint['host']}:{endpoint['port']}"

    def home_of(self, host: Host) -> Path:
        """Return a host's data folder."""
        return self.folder / host.name

    def on(
        self, host: Host, *arguments: str, timeout: float = 150, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``airyard`` on a host with its own data folder."""
        return subprocess.run(
            [*host.prefix(), *Yard.command(self, *arguments)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**self._environment, "AIRYARD_HOME": str(self.home_of(host)), **environment},
            cwd=self.folder,
        )

    def join(self, host: Host, *more: str) -> str:
        """Have a host join with one simulated node; return what it printed."""
        node = self.home_of(host) / "node"
        node.mkdir(parents=True, mode=0o700, exist_ok=True)
        for name in ("envs", "uv-cache"):
            if not (node / name).exists():
                (node / name).symlink_to(self._cache / name)
        done = self.on(host, *self.join_arguments(), "--simulated", "GPU_8xH100=1", "--cpu-slots", "1", *more)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def join_arguments(self) -> list[str]:
        """Return the verb and what it always needs."""
        return ["node", "join", self.address(), "--token-file", str(self.token_file)]

    def runner_pid(self, host: Host, key: str) -> int:
        """Return a runner's pid on its host."""
        path = self.home_of(host) / "node" / "attempts" / key / "runner.json"
        return int(json.loads(path.read_text())["pid"])

    def alive(self) -> set[str]:
        """Return the names of the nodes whose machines are there."""
        return {node["name"] for node in self.data("nodes")["nodes"] if node["alive"]}

    def close(self) -> None:
        """Take the yard down; the hosts are powered off by who made them."""
        self.call("down", "--cancel-runs", timeout=60)

    def remove_temporary(self) -> None:
        """Remove what Ray wrote, once the hosts are off."""
        shutil.rmtree(self._temporary, ignore_errors=True)


def await_hosts(make_yard: Callable[..., Yard]) -> None:
    """Skip where hosts cannot be; build the environment here, for they reach nothing but each other."""
    if (reason := why_not()) is not None:
        pytest.skip(f"no hosts made of namespaces here: {reason}")
    alone = make_yard()
    alone.ended(alone.submit("true"))
    alone.close()


@contextlib.contextmanager
def fleet_on_hosts(
    count: int,
    make: Callable[[Hosts], F],
    make_yard: Callable[..., Yard],
) -> Iterator[F]:
    """Make a fleet on ``count`` hosts and start its server. Skips where hosts cannot be."""
    await_hosts(make_yard)
    with contextlib.ExitStack() as parts:
        hosts = Hosts(count)
        made = make(hosts)
        parts.callback(made.remove_temporary)
        parts.callback(hosts.close)
        made.up()
        parts.callback(made.close)
        yield made
