"""Two servers over one real PostgreSQL and one shared data folder, for tests and the benchmark of the take-over.

Owns: their folders, processes and configuration, a client that knows both. Must not know: what is tested.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from airyard.sdk import Client
from airyard.sdk.config import Target

START_S = 60.0
NAMES = ("a", "b")


class StandbyYard:
    """Servers ``a`` and ``b``, equal; whoever is started first leads. The engine is the local one of this machine."""

    def __init__(self, folder: Path, journal_url: str, cache: Path, *, simulate: str = "GPU_1xA10=2") -> None:
        self.folder = folder
        self.shared = folder / "shared"
        self._simulate = simulate
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIRYARD_", "MLFLOW_"))
        } | {"AIRYARD_TRACKING_SERVER": "off", "NO_COLOR": "1"}
        node = self.shared / "node"
        node.mkdir(parents=True, mode=0o700)
        for name in ("envs", "uv-cache"):
            (cache / name).mkdir(parents=True, exist_ok=True)
            (node / name).symlink_to(cache / name)
        self._ports = dict(zip(NAMES, _free_ports(len(NAMES)), strict=True))
        servers = json.dumps([self.url(name) for name in NAMES])
        config = f"[journal]\nurl = {json.dumps(journal_url)}\n[standby]\nservers = {servers}\n"
        for name in NAMES:
            self.home(name).mkdir(mode=0o700)
            (self.home(name) / "config.toml").write_text(f"{config}shared = {json.dumps(str(self.shared))}\n")

    def home(self, name: str) -> Path:
        """Return one server's own folder."""
        return self.folder / name

    def start(self, name: str, *, release: str = "") -> None:
        """Start a server and wait until it answers, as leader or as standby; ``release``: a copy of another one."""
        line = [sys.executable, "-m", "airyard.server", "--home", str(self.home(name))]
        self.endpoint_file(name).unlink(missing_ok=True)
        with self.log_file(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [*line, "--simulate", self._simulate, "--port", str(self._ports[name])],
                env={**self._environment, **({"PYTHONPATH": release} if release else {})},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while not self.endpoint_file(name).exists():
            assert self._processes[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.02)

    def start_both(self) -> None:
        """Start ``a`` until it leads, then ``b``."""
        self.start("a")
        with self.client() as client:
            client.status()
        self.start("b")
        self.until_logged("b", "standing_by")

    def endpoint_file(self, name: str) -> Path:
        """Return where a server says what its address is."""
        return self.home(name) / "server" / "endpoint.json"

    def log_file(self, name: str) -> Path:
        """Return a server's log."""
        return self.home(name) / "server.log"

    def log(self, name: str) -> str:
        """Return what a server has logged."""
        return self.log_file(name).read_text() if self.log_file(name).exists() else ""

    def until_logged(self, name: str, event: str, timeout_s: float = 30) -> None:
        """Wait until a server has logged something."""
        deadline = time.monotonic() + timeout_s
        while f'"event": "{event}"' not in self.log(name):
            assert time.monotonic() < deadline, (name, event, self.log(name)[-3000:])
            time.sleep(0.02)

    def url(self, name: str) -> str:
        """Return a server's address."""
        return f"http://127.0.0.1:{self._ports[name]}"

    def hosts(self) -> str:
        """Return what AIRYARD_HOST may be."""
        return ",".join(self.url(name) for name in NAMES)

    def client(self) -> Client:
        """Return a client that knows all servers."""
        token = (self.shared / "server" / "token").read_text().strip()
        return Client(target=Target(home=self.home("a"), host=self.hosts(), token=token, origin="--host"))

    def signal(self, name: str, number: signal.Signals) -> None:
        """Signal a server."""
        self._processes[name].send_signal(number)

    def exit_code(self, name: str, timeout_s: float = 30) -> int:
        """Wait for a server's end."""
        return self._processes[name].wait(timeout_s)

    def cli(self, *arguments: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
        """Run one command with both servers in AIRYARD_HOST."""
        token = (self.shared / "server" / "token").read_text().strip()
        given = {
            "AIRYARD_HOST": self.hosts(),
            "AIRYARD_TOKEN": token,
            "AIRYARD_HOME": str(self.folder / "me"),
        }
        return subprocess.run(
            [sys.executable, "-m", "airyard.cli", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env={**self._environment, **given},
            stdin=subprocess.DEVNULL,
        )

    def workload(self, command: str, **fields: Any) -> str:
        """Write a workload file; return its path."""
        data = {
            "experiment_name": "standby",
            "compute": {"accelerator_type": "CPU", "num_accelerators": 1},
            "command": command,
            "max_retries": 0,
            **fields,
        }
        path = self.folder / f"workload-{time.monotonic_ns()}.yaml"
        path.write_text(json.dumps(data))
        return str(path)

    def close(self) -> None:
        """Kill everything that was started here."""
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()
        mark = str(self.folder).encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                if mark in (entry / "environ").read_bytes() or mark in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue


def _free_ports(count: int) -> list[int]:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
