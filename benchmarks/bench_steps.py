"""What ``airyard.step`` costs a training's loop, beside reading the clock and beside writing a line to a file.

Owns: the loops and the comparison. Must not know: who reads the beats.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from airyard import steps
from benchmarks.figures import Way, ratios, spread, take_turns, verdict
from benchmarks.yards import scratch

CALLS = 100_000
LIMIT_NS = 10_000.0


def way_of(call: Callable[[int], object]) -> Way:
    """Return what makes so many calls and says how many ns each took."""

    def run() -> float:
        began = time.perf_counter_ns()
        for number in range(CALLS):
            call(number)
        return (time.perf_counter_ns() - began) / CALLS

    return run


def computed(number: int) -> None:
    """A step whose own work is measured."""
    with steps.compute():
        pass
    steps.step(number)


def line_of(path: Path) -> Callable[[int], object]:
    """Return what a beat would cost as a line of a file: a system call."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return lambda number: os.write(handle, b"%d %f\n" % (number, time.monotonic()))


def main(argv: Sequence[str] = ()) -> int:
    """Print what a step costs, its ratios, and whether the limit is kept."""
    parser = argparse.ArgumentParser(prog="bench_steps", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, to see that it works")
    rounds = 1 if parser.parse_args(argv).quick else 15
    with scratch() as folder:
        os.environ["AIRYARD_PROGRESS_DIR"] = str(folder)
        ways = {
            "step": way_of(steps.step),
            "compute and step": way_of(computed),
            "time.monotonic": way_of(lambda number: time.monotonic()),
            "a line to a file": way_of(line_of(folder / "lines")),
        }
        found = take_turns(ways, rounds)
        if not any(path.name.startswith("beats-") for path in folder.iterdir()):
            raise RuntimeError("no beats were written")
    for name, values in found.items():
        print(f"  {name:17} {spread(values, 'ns')}")
    for name in ("time.monotonic", "a line to a file"):
        print(f"  step / {name}: {ratios(found['step'], found[name])}")
    print(f"  {verdict(statistics.median(found['compute and step']), LIMIT_NS, ' ns', digits=0)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
