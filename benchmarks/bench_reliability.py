"""A long run on a fleet that breaks, with health and without, and how the figures move with what is assumed.

Owns: the variants. Must not know: how any is simulated. Nothing here is a measurement of real machines.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airyard.sim.reliability.assumptions import Assumptions, load
from airyard.sim.reliability.report import study
from airyard.sim.reliability.study import Question

VARIANTS: dict[str, Mapping[str, Mapping[str, Any]]] = {
    "as assumed": {},
    "no lemons: all failures fall anywhere": {"fleet": {"lemon_faults": 0.0}},
    "half of all failures are the lemons'": {"fleet": {"lemon_faults": 0.5}},
    "start 10 min": {"job": {"start_p50_s": 600, "start_p95_s": 900}},
    "start 30 min": {"job": {"start_p50_s": 1800, "start_p95_s": 2700}},
    "checkpoint every 15 min": {"job": {"checkpoint_s": 900}},
    "hangs found after 10 min": {"detection": {"hang": [600, 600]}},
    "no spare nodes but one": {"fleet": {"spare_share": 0.0}},
    "no alarm looks sure": {"noise": {"high_remedy": 0.0, "critical": 0.0}},
    "3 alarms in 100 look sure": {"noise": {"high_remedy": 0.02, "critical": 0.01}},
}


def changed(known: Assumptions, changes: Mapping[str, Mapping[str, Any]]) -> Assumptions:
    """Return assumptions with some numbers of some sections changed."""
    return replace(known, **{name: {**getattr(known, name), **more} for name, more in changes.items()})


def main(argv: Sequence[str] = ()) -> int:
    """Print the table at the published rate, then one line a variant; exit 1 where the run's aim is missed."""
    parser = argparse.ArgumentParser(prog="bench_reliability", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, ten days")
    parser.add_argument("--seeds", type=int, default=8)
    options = parser.parse_args(argv)
    question = Question(days=10) if options.quick else Question()
    seeds = range(1, 2 if options.quick else options.seeds + 1)
    known, began = load(), time.perf_counter()
    first = study(known, question, seeds)
    print(first.as_text())
    print(f"{len(seeds)} seeds, twice: {time.perf_counter() - began:.1f} s")
    print(f"{'ETTR with health, without; false cordons; nodes back with nobody’s help':>78}")
    for name, changes in VARIANTS.items():
        found = study(changed(known, changes), question, seeds)
        well, plain = found.well, found.plain
        print(
            f"  {name:40} {well.ettr:.3f} {plain.ettr:.3f}  {well.false_cordons:.2f}  {well.returned_alone:.0%}"
        )
    for rate in known.rates:
        found = study(known, replace(question, rate=rate), seeds)
        print(
            f"  rate {rate:35} {found.well.ettr:.3f} {found.plain.ettr:.3f}  {found.well.false_cordons:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
