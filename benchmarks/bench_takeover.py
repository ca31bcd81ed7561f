"""The take-over: ``kill -9`` of the leader to the first submit that the standby accepts.

Owns: the measurement, on a yard of two servers over a real PostgreSQL. Must not know: how a server comes to lead.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import spread, verdict
from benchmarks.yards import CACHE_VARIABLE, scratch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from postgres_server import PostgresServer
from standby_yard import StandbyYard

LIMIT_S = 10.0


def take_over(postgres: PostgresServer, folder: Path, cache: Path) -> float:
    """Return the seconds from the kill to the accepted submit."""
    yard = StandbyYard(folder, postgres.make_database(), cache)
    try:
        yard.start_both()
        file = yard.workload("true")
        with yard.client() as client:
            client.submit_file(file)
            began = time.perf_counter()
            yard.signal("a", signal.SIGKILL)
            client.submit_file(file)
            return time.perf_counter() - began
    finally:
        yard.close()


def main(arguments: Sequence[str]) -> int:
    """Print the take-over time; 0 when its median keeps the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks takeover", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    rounds = 2 if parser.parse_args(arguments).quick else 5
    postgres = PostgresServer()
    postgres.start()
    try:
        with scratch() as folder, tempfile.TemporaryDirectory() as own:
            cache = Path(os.environ.get(CACHE_VARIABLE, own))
            found = []
            for number in range(rounds):
                place = Path(folder) / f"yard{number}"
                place.mkdir()
                found.append(take_over(postgres, place, cache))
    finally:
        postgres.close()
    print(f"kill -9 of the leader to an accepted submit: {spread(found, 's', 2)}")
    print(f"  slowest: {verdict(max(found), LIMIT_S, ' s')}")
    return 0 if max(found) <= LIMIT_S else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
