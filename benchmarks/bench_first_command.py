"""The first command after the install, nothing running: ``airyard run hello --watch`` to its first log line.

Owns: the comparison. Must not know: how a server starts. Each round has a data folder of its own. Cold: uv's cache is
empty, so that packages are downloaded; warm: only uv's cache is there, the environment is still built. The peer is
the least that anyone could do: the same uv making the same environment, and nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from airyard.server.config import EnvironmentSection
from benchmarks.figures import ratios, spread, verdict
from benchmarks.peers import find_uv
from benchmarks.yards import BenchYard, bare_environment, scratch, wait_ended

LIMIT_S = 10.0
HELLO = Path(__file__).resolve().parents[1] / "examples" / "hello" / "workload.yaml"
END_LIMIT_S = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """What one first command took, in seconds from the start of its process, and its parts."""

    line_s: float
    server_s: float
    phases_s: dict[str, float]


def first_command(home: Path, *, tracking: str, uv_cache: Path | None) -> First:
    """Run hello in a new data folder and take it down again; ``uv_cache`` is a folder that holds ``uv-cache``."""
    one = BenchYard(home, tracking=tracking)
    try:
        if uv_cache is not None:
            one.share(uv_cache, "uv-cache")
        began = time.perf_counter()
        process = one.start("run", str(HELLO), "--watch")
        assert process.stdout is not None
        assert process.stderr is not None
        told: list[tuple[float, str]] = []

        def listen() -> None:
            for line in process.stderr or ():
                told.append((time.perf_counter() - began, line))

        listener = threading.Thread(target=listen)
        listener.start()
        line = process.stdout.readline()
        line_s = time.perf_counter() - began
        process.stdout.read()
        process.wait(END_LIMIT_S)
        listener.join()
        if process.returncode != 0 or not line.startswith("Hello"):
            raise RuntimeError(f"exit {process.returncode}: {''.join(text for _, text in told)}")
        with one.client() as client:
            run = wait_ended(client, 1)
        phases = {phase["name"]: (phase["duration_ms"] or 0) / 1000 for phase in run["phases"]}
        server_s = next((at for at, text in told if "started a local server" in text), 0.0)
        return First(line_s=line_s, server_s=server_s, phases_s=phases)
    finally:
        one.close()


def bare_environment_s(folder: Path, uv_cache: Path | None) -> float:
    """Return the seconds that uv alone takes to make the base environment, its cache as given or empty."""
    uv = find_uv() or "uv"
    environment = bare_environment() | {"UV_CACHE_DIR": str((uv_cache or folder) / "uv-cache")}
    venv = folder / "venv"
    install = ["pip", "install", "--quiet", "--python", str(venv / "bin" / "python")]
    began = time.perf_counter()
    for arguments in (
        ["venv", "--quiet", "--python", sys.executable, str(venv)],
        [*install, *EnvironmentSection().packages],
    ):
        subprocess.run([uv, *arguments], env=environment, check=True, timeout=END_LIMIT_S)
    return time.perf_counter() - began


def compare(title: str, folder: Path, rounds: int, tracking: str, uv_cache: Path | None) -> None:
    """Print one way's spread, its parts, the peer's and the limit."""
    found: list[First] = []
    bare: list[float] = []
    for number in range(rounds):
        place = folder / f"{title.replace(', ', '-').replace(' ', '-')}-{number}"
        place.mkdir()
        bare.append(bare_environment_s(place, uv_cache))
        found.append(first_command(place / "home", tracking=tracking, uv_cache=uv_cache))
    lines = [one.line_s for one in found]
    print(title)
    print(f"  first line               {spread(lines, 's', 2)}")
    print(f"    server up              {spread([one.server_s for one in found], 's', 2)}")
    for name in dict.fromkeys(name for one in found for name in one.phases_s):
        print(f"    phase {name:16} {spread([one.phases_s.get(name, 0.0) for one in found], 's', 2)}")
    print(f"  uv alone, environment    {spread(bare, 's', 2)}")
    print(f"  first line / uv alone: {ratios(lines, bare)}")
    print(f"  p50 {verdict(statistics.median(lines), LIMIT_S, ' s')}")


def main(argv: Sequence[str] = ()) -> int:
    """Print the time to the first line with uv's cache empty and warm, with tracking off and on."""
    parser = argparse.ArgumentParser(prog="bench_first_command", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, to see that it works")
    rounds = 1 if parser.parse_args(argv).quick else 3
    with scratch() as folder:
        warm = folder / "warm"
        first_command(folder / "fill", tracking="off", uv_cache=warm)
        for name, tracking in (("tracking off", "off"), ("tracking on", "embedded")):
            for kind, cache in (("empty", None), ("warm", warm)):
                compare(f"uv cache {kind}, {name}", folder, rounds, tracking, cache)
    return 0
