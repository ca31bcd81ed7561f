"""``airyard list`` against a running server, beside ``python -c 'import httpx, typer'``.

Owns: the comparison. Must not know: what a command imports. The peer is what a usual command line of this kind pays
before it does anything; ours includes the process, the connection, its proof, the request and the printing.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.figures import Way, ratios, spread, take_turns, verdict
from benchmarks.peers import peer_python
from benchmarks.yards import bare_environment, environment_cache, scratch, yard

PEER = ("httpx==0.28.1", "typer==0.29.2")
LIMIT = 1.3
RUNS = 5


def process_way(command: Sequence[str], environment: dict[str, str]) -> Way:
    """Return what runs a process to its end and says how many milliseconds it took."""

    def run() -> float:
        started = time.perf_counter()
        subprocess.run(
            command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment
        )
        return (time.perf_counter() - started) * 1000

    return run


def main(argv: Sequence[str] = ()) -> int:
    """Print how long ``airyard list`` takes and its ratio to the bare imports and to the bare interpreter."""
    parser = argparse.ArgumentParser(prog="bench_cli_start", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    rounds = 3 if parser.parse_args(argv).quick else 30
    with scratch() as folder:
        python = peer_python(folder / "venv", PEER)
        with yard(folder / "home", cache=environment_cache(folder)) as one:
            one.warm()
            for _ in range(RUNS - 1):
                one.call("run", str(one.workload("true")), "--watch")
            ways = {
                "python -c pass": process_way([sys.executable, "-c", "pass"], bare_environment()),
                "airyard list": process_way(one.command("list"), one.environment),
            }
            if python is not None:
                imports = [str(python), "-c", "import httpx, typer"]
                ways["import httpx, typer"] = process_way(imports, bare_environment())
            found = take_turns(ways, rounds, warm_ups=3)
    print(f"{RUNS} runs in the list")
    for name, values in found.items():
        print(f"  {name:20} {spread(values)}")
    ours = found.pop("airyard list")
    for name, values in found.items():
        print(f"  airyard list / {name}: {ratios(ours, values)}")
    if python is not None:
        pairs = [one / other for one, other in zip(ours, found["import httpx, typer"], strict=True)]
        print(f"  p50 ratio {verdict(statistics.median(pairs), LIMIT, '')}")
    return 0
