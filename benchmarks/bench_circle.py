"""A node's whole circle with nobody's help: fault, cordon, drain, remedy, test, probation, healthy; its run goes on.

Owns: a yard of simulated nodes with a gang on them, faults written into a node's kernel log, the reading of the story.
Must not know: rules. Everything but two things is what a fleet does: the remedy and the test of a simulated node are
commands that sleep (2 s and 1 s here), and the node's day of probation is ended by three runs on it that end well.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from airyard.sdk import Client
from benchmarks.figures import verdict
from benchmarks.yards import BenchYard, scratch, yard

NODES, GANG = 6, 4
KIND = "GPU_1xA10"
MOST_TO_CORDON_S = 15.0
MOST_TO_RUN_S = 180.0
_GIVE_UP_S = 120.0
CONFIG = """
[health]
simulated_remedy_command = "sleep 2"
simulated_retest_command = "sleep 1"
"""
FAULTS: Mapping[str, dict[str, Any]] = {
    "Xid 79, off the bus": {"kernel": "NVRM: Xid (PCI:0000:11:00): 79, GPU has fallen off the bus."},
    "Xid 48, double-bit error": {
        "kernel": "NVRM: Xid (PCI:0000:11:00): 48, pid=7, name=python3, DBE (double bit error)"
    },
    "Xid 119, GSP": {
        "kernel": "NVRM: Xid (PCI:0000:11:00): 119, pid=7, name=python3, Timeout after 6s of waiting for RPC"
    },
    "driver asks for a reboot": {"nvml": {"recovery_action": 2}},
}
STEPS = ("CORDONED", "QUARANTINED", "RESETTING", "RETESTING", "PROBATION", "HEALTHY")
COLUMNS = ("cordoned", "stopped", "runs again", "empty", "remedy", "mended", "probation", "healthy")


@dataclass(slots=True, kw_only=True)
class Circle:
    """Seconds from the fault's line to each step; a step that did not come has none."""

    fault: str
    node: str
    began_s: float
    at_s: dict[str, float] = field(default_factory=dict)
    cause: str = ""
    retries: int = 0
    came_back: bool = False
    """The gang's next attempt was placed on the ill node."""
    others_elsewhere: bool = True
    """No run that began while the node was out was placed on it."""


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()


def submit(one: BenchYard, command: str, nodes: int) -> int:
    """Submit a run and return its number."""
    told = json.loads(
        one.call("run", str(one.workload(command, accelerator=KIND, nodes=nodes)), "-o", "json")
    )
    return int(told["data"]["run_id"])


def until_running(client: Client, run_id: int, attempt: int) -> dict[str, Any]:
    """Wait until an attempt of a run is at work; return the run."""
    until = time.monotonic() + _GIVE_UP_S
    while time.monotonic() < until:
        run: dict[str, Any] = dict(client.get(run_id))
        if len(run["attempts"]) > attempt and run["attempts"][attempt]["started_at"]:
            return run
        time.sleep(0.02)
    raise RuntimeError(f"attempt {attempt} of run {run_id} did not start: {run}")


def story(client: Client, node: str, since_s: float) -> list[dict[str, Any]]:
    """Return a node's steps since then, the oldest first."""
    steps = [
        one
        for one in client.health.events(node)["events"]
        if one["at"] and _seconds(one["at"]) >= since_s - 0.5
    ]
    return sorted(steps, key=lambda one: str(one["at"]))


def live(one: BenchYard, client: Client, fault: str) -> Circle:
    """Live one circle: a gang is on the node when it fails."""
    gang = submit(one, "sleep 600", GANG)
    run = until_running(client, gang, 0)
    node = str(run["attempts"][0]["members"][0]["node"])
    circle = Circle(fault=fault, node=node, began_s=time.time())
    line = json.dumps({"node": node, "device": 0, **FAULTS[fault]}) + "\n"
    with (one.home / "node" / "health" / "simulated-faults.jsonl").open("a") as file:
        file.write(line)
    run = until_running(client, gang, 1)
    first, second = run["attempts"][:2]
    circle.cause, circle.retries = str(first["cause"]), int(run["retries_spent"])
    circle.came_back = node in {member["node"] for member in second["members"]}
    circle.at_s["stopped"] = _seconds(first["ended_at"]) - circle.began_s
    circle.at_s["runs again"] = _seconds(second["started_at"]) - circle.began_s
    _follow(one, client, circle)
    client.cancel(gang)
    client.wait([gang], timeout_s=_GIVE_UP_S)
    return circle


def _follow(one: BenchYard, client: Client, circle: Circle) -> None:
    """Submit short runs, as a yard has them, until the node is healthy again."""
    until = time.monotonic() + _GIVE_UP_S
    names = dict(zip(("cordoned", "empty", "remedy", "mended", "probation", "healthy"), STEPS, strict=True))
    while "healthy" not in circle.at_s:
        if time.monotonic() > until:
            raise RuntimeError(
                f"{circle.node} did not come back: {story(client, circle.node, circle.began_s)}"
            )
        begun_s = time.time()
        short = [submit(one, "true", 1) for _ in range(NODES - GANG)]
        client.wait(short, timeout_s=_GIVE_UP_S)
        seen = {}
        for step in story(client, circle.node, circle.began_s):
            seen.setdefault(step["after"], _seconds(step["at"]) - circle.began_s)
        circle.at_s.update({name: seen[state] for name, state in names.items() if state in seen})
        if "probation" not in circle.at_s or circle.began_s + circle.at_s["probation"] > time.time():
            placed = {member["node"] for run in short for member in client.get(run)["attempts"][0]["members"]}
            was_out = begun_s - circle.began_s > circle.at_s.get("cordoned", float("inf"))
            circle.others_elsewhere &= not (was_out and circle.node in placed)


def table(circles: Sequence[Circle]) -> None:
    """Print seconds from the fault's line, a row a kind of fault: the median and the slowest."""
    print(
        f"seconds from the fault's line; {len(circles)} circles in all; a remedy takes 2 s, a test 1 s, twice:"
    )
    print(f"  {'':26}" + "".join(f"{name:>15}" for name in COLUMNS))
    for fault in dict.fromkeys(one.fault for one in circles):
        cells = []
        for name in COLUMNS:
            values = [one.at_s[name] for one in circles if one.fault == fault and name in one.at_s]
            cells.append(f"{median(values):.1f} ({max(values):.1f})" if values else "-")
        print(f"  {fault:26}" + "".join(f"{cell:>15}" for cell in cells))


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 1 when an aim was missed or somebody's help was needed."""
    parser = argparse.ArgumentParser(prog="bench_circle", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one circle of each kind")
    options = parser.parse_args(arguments)
    with scratch() as folder:
        circles = all_circles(folder, 1 if options.quick else 3)
    table(circles)
    cordon = max(one.at_s["cordoned"] for one in circles)
    again = max(one.at_s["runs again"] for one in circles)
    print(f"  slowest cordon: {verdict(cordon, MOST_TO_CORDON_S, ' s')}")
    print(f"  slowest next attempt at work: {verdict(again, MOST_TO_RUN_S, ' s')}")
    free = all(one.cause in ("DEVICE", "NODE") and one.retries == 0 for one in circles)
    away = all(one.others_elsewhere and not one.came_back for one in circles)
    print(f"  causes DEVICE or NODE, no retry spent: {free}; nothing placed on a node that was out: {away}")
    return 0 if cordon <= MOST_TO_CORDON_S and again <= MOST_TO_RUN_S and free and away else 1


def all_circles(folder: Path, times: int) -> list[Circle]:
    """Live each kind of fault so often, each in a yard of its own: a node that fails again is mended later."""
    circles = []
    for number in range(times):
        for place, fault in enumerate(FAULTS):
            home = folder / f"yard-{number}-{place}"
            with (
                yard(home, up=("--simulate", f"{KIND}={NODES}"), config=CONFIG) as one,
                one.client() as client,
            ):
                circles.append(live(one, client, fault))
    return circles
