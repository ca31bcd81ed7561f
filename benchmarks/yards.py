"""A real yard for a benchmark: its own data folder, the installed command line, real processes, nothing left behind.

Owns: the folder, its processes, the shared environment cache. Must not know: what is measured.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from airyard.sdk import Client
from airyard.sdk.config import Target

CACHE_VARIABLE = "AIRYARD_BENCH_CACHE"
FOLDER_VARIABLE = "AIRYARD_BENCH_DIR"
MLFLOW_LIMIT_S = 120.0
RUN_LIMIT_S = 300.0
_KILL_LIMIT_S = 20.0


def end_tidily() -> None:
    """Make the first SIGTERM an exception, so that yards are taken down and folders removed; ignore the next ones."""

    def leave(number: int, _: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder that is removed afterwards, below ``AIRYARD_BENCH_DIR`` where that is set."""
    end_tidily()
    with tempfile.TemporaryDirectory(prefix="airyard-bench-", dir=os.environ.get(FOLDER_VARIABLE)) as name:
        yield Path(name)


def bare_environment() -> dict[str, str]:
    """Return this process's environment without what names another yard or tracking server."""
    dropped = ("AIRYARD_", "MLFLOW_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def program() -> list[str]:
    """Return the command that users type: the console script beside this interpreter, else the module."""
    script = Path(sys.executable).with_name("airyard")
    return [str(script)] if script.exists() else [sys.executable, "-m", "airyard.cli"]


class BenchYard:
    """One data folder and the processes that live for it."""

    def __init__(self, home: Path, *, tracking: str = "off", config: str = "") -> None:
        """``tracking``: ``off``, ``embedded`` or a URI. ``config`` is the text of config.toml."""
        self.home = home
        self.environment = bare_environment() | {
            "AIRYARD_HOME": str(home),
            "AIRYARD_TRACKING_SERVER": tracking,
            "NO_COLOR": "1",
        }
        self.tracked = tracking != "off"
        home.mkdir(parents=True, mode=0o700)
        if config:
            (home / "config.toml").write_text(config)

    def share(self, cache: Path, *names: str) -> None:
        """Use ``cache`` as the store of environments, or only the named folders of it."""
        envs = self.home / "node" / "envs"
        pairs = [(envs / name, cache / name) for name in names] or [(envs, cache)]
        for link, folder in pairs:
            link.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            link.symlink_to(folder)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of one call."""
        return [*program(), *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start one command; its stdout and stderr are pipes."""
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
            cwd=self.home,
        )

    def call(self, *arguments: str, timeout_s: float = 120) -> str:
        """Run one command that must succeed; return its stdout. Raises: RuntimeError with what it said."""
        done = subprocess.run(
            self.command(*arguments),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=self.environment,
            cwd=self.home,
        )
        if done.returncode != 0:
            raise RuntimeError(
                f"airyard {' '.join(arguments)}: exit {done.returncode}\n{done.stderr[-3000:]}"
            )
        return done.stdout

    def client(self) -> Client:
        """Return a client of this yard's server."""
        return Client(target=Target(home=self.home), announce=lambda line: None)

    def up(self, *arguments: str) -> None:
        """Start the server; with tracking, also wait until MLflow answers."""
        self.call("up", *arguments)
        if not self.tracked:
            return
        deadline = time.monotonic() + MLFLOW_LIMIT_S
        with self.client() as client:
            while (state := client.status()["mlflow"])["kind"].upper() != "UP":
                if time.monotonic() > deadline:
                    raise RuntimeError(f"MLflow did not come up: {state}")
                time.sleep(0.1)

    def workload(self, command: str, *, accelerator: str = "CPU", nodes: int = 1) -> Path:
        """Write a workload file of one command without code; ``accelerator`` has one device a node."""
        document = {
            "experiment_name": "bench",
            "compute": {"accelerator_type": accelerator, "num_accelerators": nodes},
            "command": command,
            "max_retries": 0,
        }
        path = self.home / f"workload-{time.monotonic_ns()}.yaml"
        path.write_text(json.dumps(document))
        return path

    def warm(self, nodes: int = 1) -> None:
        """Run one trivial workload, so that the environment is there."""
        self.call("run", str(self.workload("true", nodes=nodes)), "--watch", timeout_s=RUN_LIMIT_S)

    def processes(self) -> dict[int, str]:
        """Return every live process that was started for this yard: pid -> command line."""
        found = {}
        mark = f"AIRYARD_HOME={self.home}".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if line and (str(self.home).encode() in line or mark in (entry / "environ").read_bytes()):
                    found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    def close(self) -> None:
        """Take the yard down and kill whatever is left of it."""
        with suppress(RuntimeError, subprocess.TimeoutExpired):
            self.call("down", "--cancel-runs", timeout_s=60)
        deadline = time.monotonic() + _KILL_LIMIT_S
        while (left := self.processes()) and time.monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


@contextmanager
def yard(
    home: Path, *, cache: Path | None = None, up: tuple[str, ...] = (), **given: Any
) -> Iterator[BenchYard]:
    """Give a running yard that is taken down afterwards; ``cache`` holds environments that it may use."""
    made = BenchYard(home, **given)
    try:
        if cache is not None:
            made.share(cache)
        made.up(*up)
        yield made
    finally:
        made.close()


def environment_cache(folder: Path) -> Path:
    """Return where environments are shared: of the whole run of benchmarks, or of this one alone."""
    return Path(os.environ.get(CACHE_VARIABLE) or folder / "cache")


def wait_ended(client: Client, run_id: int, limit_s: float = RUN_LIMIT_S) -> Mapping[str, Any]:
    """Return the run's document once it has ended and its log is complete. Raises: RuntimeError after the limit."""
    deadline = time.monotonic() + limit_s
    client.wait([run_id], timeout_s=limit_s)
    while not (run := client.get(run_id))["logs_complete"]:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the log of run {run_id} is not complete after {limit_s:.0f} s")
        time.sleep(0.01)
    return run
