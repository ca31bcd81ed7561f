"""A real yard for end-to-end stories: its own data folder, the real command line, real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Yard:
    """Drives ``airyard`` as a user would. ``cache`` is shared by the session's yards: environments build once."""

    def __init__(
        self, home: Path, cache: Path, *, tracking: str = "off", simulate: str | None = None
    ) -> None:
        self.home = home
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("AIRYARD_", "MLFLOW_"))
        }
        self._environment |= {
            "AIRYARD_HOME": str(home),
            "AIRYARD_TRACKING_SERVER": tracking,
            "NO_COLOR": "1",
            "PYTHONWARNINGS": "",
        }
        node = home / "node"
        node.mkdir(parents=True, mode=0o700)
        for name in ("envs", "uv-cache"):
            (cache / name).mkdir(parents=True, exist_ok=True)
            (node / name).symlink_to(cache / name)
        self._simulate = simulate

    def set(self, **environment: str) -> None:
        """Add variables for every later command, and for what it starts."""
        self._environment |= environment

    def up(self) -> None:
        """Start the server."""
        arguments = ["--simulate", self._simulate] if self._simulate else []
        self.ok("up", *arguments)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of one call."""
        return [sys.executable, "-m", "airyard.cli", *arguments]

    def call(
        self, *arguments: str, timeout: float = 100, stdin: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**self._environment, **environment},
            cwd=self.home,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start one command and return its process."""
        return subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=self._environment,
            cwd=self.home,
        )

    def ok(self, *arguments: str, timeout: float = 100) -> str:
        """Run one command that must succeed; return its stdout."""
        done = self.call(*arguments, timeout=timeout)
        assert done.returncode == 0, (arguments, done.returncode, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout

    def data(self, *arguments: str, timeout: float = 100) -> Any:
        """Run one command with JSON output; return the envelope's data."""
        return json.loads(self.ok("-o", "json", *arguments, timeout=timeout))["data"]

    def file(self, command: str, *, accelerator: str = "CPU", nodes: int = 1, **fields: Any) -> str:
        """Write a workload file in JSON, which is YAML too; return its path. No retries unless asked for."""
        k = 1 if accelerator == "CPU" else int(accelerator.split("_")[1].split("x")[0])
        workload = {
            "experiment_name": "e2e",
            "compute": {
                "accelerator_type": accelerator,
                "num_accelerators": nodes * k,
                **fields.pop("compute", {}),
            },
            "command": command,
            "max_retries": 0,
            **fields,
        }
        path = self.home / f"workload-{time.monotonic_ns()}.yaml"
        path.write_text(json.dumps(workload))
        return str(path)

    def submit(self, command: str, **fields: Any) -> int:
        """Submit what ``file`` writes; return its run id."""
        return int(self.data("run", self.file(command, **fields))["run_id"])

    def get(self, run_id: int) -> dict[str, Any]:
        """Return the run's document; by the command line, which starts a server, where none answers."""
        server = self.home / "server"
        try:
            url = json.loads((server / "endpoint.json").read_text())["url"]
            headers = {"Authorization": f"Bearer {(server / 'token').read_text().strip()}"}
            request = urllib.request.Request(f"{url}/api/v1/runs/{run_id}", headers=headers)
            with urllib.request.urlopen(request, timeout=60) as answer:
                run: dict[str, Any] = json.load(answer)["run"]
        except OSError:
            found = self.data("get", str(run_id))
            run = found.get("run", found)
        return run

    def until(
        self, run_id: int, wanted: Callable[[dict[str, Any]], bool], timeout: float = 60
    ) -> dict[str, Any]:
        """Poll a run until it is as wanted."""
        deadline = time.monotonic() + timeout
        while True:
            run = self.get(run_id)
            if wanted(run):
                return run
            assert time.monotonic() < deadline, run
            time.sleep(0.05)

    def ended(self, run_id: int, timeout: float = 60) -> dict[str, Any]:
        """Wait for a run's end, its logs included."""
        return self.until(
            run_id, lambda run: run["state"] == "ENDED" and run["logs_complete"] is True, timeout
        )

    def server_pid(self) -> int:
        """Return the server's process id."""
        return int(json.loads((self.home / "server" / "endpoint.json").read_text())["pid"])

    def processes(self) -> dict[int, str]:
        """Return every live process that was started for this yard, users' commands too: pid -> command line."""
        found = {}
        mark = str(self.home).encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                line = (entry / "cmdline").read_bytes()
                if line and (mark in (entry / "environ").read_bytes() or mark in line):
                    found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue
        return found

    def close(self) -> None:
        """Take the yard down and kill whatever is left of it."""
        try:
            self.call("down", "--cancel-runs", timeout=40)
        except subprocess.TimeoutExpired:
            pass
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def wait_for(condition: Callable[[], Any], timeout: float = 30, what: str = "") -> Any:
    """Poll until the condition is true and return its value."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"timed out waiting for {what or condition}"
        time.sleep(0.05)
    return value
