"""What a gang waits for where all of its nodes are under test in pairs, beside the same yard that tests nobody.

Owns: two yards of simulated nodes that take turns, one of which is always in the middle of a sweep; the time from a
submit to the start of the command. Must not know: how a test makes room. Aim: no more than 1.2 times as long.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import median

from airyard.sdk import Client
from benchmarks.figures import ratios, spread, take_turns, verdict
from benchmarks.yards import BenchYard, environment_cache, scratch, wait_ended, yard

NODES = 4
PAIR_S = 30.0
"""A test of a pair takes so long, if nobody comes."""
MOST = 1.2
_CONFIG = f"[engine]\nsimulate = {{ GPU_1xA10 = {NODES} }}\n[health.idle]\n"
TESTED = f"{_CONFIG}after_minutes = 0\nshare = 1\nsweep_every_hours = 1e-6\n"
LEFT_ALONE = f"{_CONFIG}enabled = false\n"


def prolong(home: Path) -> None:
    """Have tests of pairs take their time."""
    file = home / "node" / "health" / "simulated-faults.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ({"node": f"sim-1xa10-{place}", "pair": {"seconds": PAIR_S}} for place in range(NODES))
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def sweeps(one: BenchYard) -> int:
    """Return how many sweeps were begun so far."""
    return (one.home / "server" / "server.log").read_text().count('"sweep_begun"')


def start_ms(one: BenchYard, client: Client) -> float:
    """Run a gang on all nodes and return the time from its submit to its start by the server's clock."""
    file = one.workload("true", accelerator="GPU_1xA10", nodes=NODES)
    run_id = int(json.loads(one.call("-o", "json", "run", str(file)))["data"]["run_id"])
    wait_ended(client, run_id)
    run = client.get(run_id)
    moments = (run["submitted_at"], run["attempts"][0]["started_at"])
    submitted, started = map(datetime.fromisoformat, moments)
    return (started - submitted).total_seconds() * 1000


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 1 when the aim was missed."""
    parser = argparse.ArgumentParser(prog="bench_idle", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer gangs")
    options = parser.parse_args(arguments)
    with scratch() as folder:
        cache = environment_cache(folder)
        with (
            yard(folder / "tested", cache=cache, config=TESTED) as tested,
            yard(folder / "alone", cache=cache, config=LEFT_ALONE) as alone,
            tested.client() as under_test,
            alone.client() as left_alone,
        ):
            prolong(tested.home)
            seen = 0

            def in_the_middle() -> float:
                nonlocal seen
                while sweeps(tested) == seen:
                    time.sleep(0.05)
                seen = sweeps(tested)
                time.sleep(1.0)
                return start_ms(tested, under_test)

            found = take_turns(
                {"under test": in_the_middle, "left alone": lambda: start_ms(alone, left_alone)},
                2 if options.quick else 8,
            )
    ours, theirs = found["under test"], found["left alone"]
    print(f"a gang of {NODES}, submit to start; all nodes under test: {spread(ours)}")
    print(f"  nobody tested: {spread(theirs)}")
    print(f"  ratio {ratios(ours, theirs)}; {verdict(median(ours) / median(theirs), MOST, '')}")
    return 0 if median(ours) / median(theirs) <= MOST else 1
