"""A yard for tests: the real command line, a real server, simulated GPUs, in a folder of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

COMMAND = [sys.executable, "-m", "airyard.cli"]


@dataclass(kw_only=True)
class Yard:
    """One data folder and the commands run on it."""

    home: Path
    work: Path
    extra: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have environments without packages: they are built in no time, and nothing is downloaded."""
        self.work.mkdir(exist_ok=True)
        self.home.mkdir(mode=0o700)
        (self.home / "config.toml").write_text("[environments.6]\npackages = []\n")

    @property
    def environ(self) -> dict[str, str]:
        """A plain environment with nothing of the developer's."""
        kept = {
            key: value
            for key, value in os.environ.items()
            if key in ("PATH", "LANG", "TMPDIR") or key.startswith(("PIP_", "UV_"))
        }
        own = {
            "HOME": str(self.work),
            "AIRYARD_HOME": str(self.home),
            "TZ": "UTC",
            "AIRYARD_TRACKING_SERVER": "off",
        }
        return {**kept, **own, **self.extra}

    def run(self, *arguments: str, stdin: str = "", timeout: float = 90) -> subprocess.CompletedProcess[str]:
        """Run ``airyard`` to its end."""
        return subprocess.run(
            [*COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            env=self.environ,
            cwd=self.work,
            timeout=timeout,
            check=False,
        )

    def spawn(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``airyard``; the caller waits for it."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environ,
            cwd=self.work,
        )

    def write(
        self, name: str, command: str, *, accelerator: str = "CPU", count: int = 1, more: str = ""
    ) -> str:
        """Write a workload file; returns its name."""
        body = "".join(f"  {line}\n" for line in command.splitlines())
        text = (
            f"experiment_name: {name}\nmax_retries: 0\n"
            f"compute: {{accelerator_type: {accelerator}, num_accelerators: {count}}}\ncommand: |\n{body}{more}"
        )
        (self.work / f"{name}.yaml").write_text(text)
        return f"{name}.yaml"

    def close(self) -> None:
        """Stop the server with everything it runs; then whatever of this folder is left."""
        try:
            self.run("down", "--cancel-runs", timeout=60)
        finally:
            self._sweep()

    def _sweep(self) -> None:
        """End processes that carry this data folder in their command line or environment."""
        mark = str(self.home).encode()
        for folder in Path("/proc").glob("[0-9]*"):
            if folder.name == str(os.getpid()):
                continue
            try:
                found = mark in (folder / "cmdline").read_bytes() or mark in (folder / "environ").read_bytes()
            except OSError:
                continue
            if found:
                try:
                    os.kill(int(folder.name), signal.SIGKILL)
                except ProcessLookupError:
                    pass


def masked(text: str) -> str:
    """Replace what differs from run to run: run numbers, durations, ids."""
    text = re.sub(r"\b\d+(\.\d+)? (s|min|h)( \d+ (s|min))?\b", "<time>", text)
    return re.sub(r"\brun \d+\b", "run <n>", text)
