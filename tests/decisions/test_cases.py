"""Reads every case of this folder: a yard, a queue, and what the planner says of them.

A case is a folder with ``cluster.toml`` (nodes, and the runs that hold devices), ``queue.toml`` (waiting runs) and
``expected.txt``. Its name says what it shows; the first comment of ``queue.toml`` says why it is right. Run this file
with Python to print what the planner says of a case: ``python tests/decisions/test_cases.py CASE``.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from airyard.core.placement import Seat
from airyard.core.scheduling.plan import NodeView, Plan, Running, Snapshot, Waiting
from airyard.core.scheduling.planner import plan
from airyard.core.workload import Compute, Priority

CASES = sorted(path.parent.name for path in Path(__file__).parent.glob("*/queue.toml"))
SECOND_MS = 1000


def read_case(name: str) -> Snapshot:
    """Build the snapshot of a case. Times in the files are seconds before now."""
    folder = Path(__file__).parent / name
    cluster = tomllib.loads((folder / "cluster.toml").read_text(encoding="utf-8"))
    queue = tomllib.loads((folder / "queue.toml").read_text(encoding="utf-8"))
    running = tuple(_running(item) for item in cluster.get("running", []))
    held = {(seat.node, device) for run in running for seat in run.seats for device in seat.devices}
    return Snapshot(
        seq=1,
        nodes=tuple(_node(item, held) for item in cluster.get("node", [])),
        waiting=tuple(_waiting(item) for item in queue.get("run", [])),
        running=running,
    )


def _node(item: dict[str, Any], held: set[tuple[str, int]]) -> NodeView:
    compute = Compute.of(item["type"])
    total = max(compute.devices_per_node, 1)
    return NodeView(
        name=item["name"],
        machine=item.get("machine", item["name"]),
        accelerator=item["type"],
        model=compute.model,
        pool=item["type"],
        total=total,
        free=tuple(device for device in range(total) if (item["name"], device) not in held),
        cpus=item.get("cpus", 32.0),
        memory_bytes=item.get("memory_gib", 256) << 30,
        alive=item.get("alive", True),
        cordoned=item.get("cordoned", False),
        simulated=False,
    )


def _running(item: dict[str, Any]) -> Running:
    return Running(
        run_id=item["run"],
        attempt=0,
        rank=Priority(item.get("class", "NORMAL")).rank,
        placed_ms=-item.get("since", 0) * SECOND_MS,
        seats=tuple(
            Seat(node=node, machine=node, devices=tuple(devices)) for node, devices in item["holds"].items()
        ),
        stopping=item.get("stopping", False),
    )


def _waiting(item: dict[str, Any]) -> Waiting:
    compute = Compute.of(item["type"], nodes=item.get("nodes", 1))
    return Waiting(
        run_id=item["run"],
        rank=Priority(item.get("class", "NORMAL")).rank,
        queued_ms=-item.get("since", 0) * SECOND_MS,
        accelerator=item["type"],
        model=compute.model,
        devices_per_node=compute.local_world_size,
        nodes=compute.nodes,
        pool=item.get("pool"),
        same_fabric=False,
        cpus=item.get("cpus"),
        memory_bytes=None,
        avoid_nodes=tuple(item.get("avoid", ())),
        not_before_ms=item.get("not_before", 0) * SECOND_MS,
    )


def in_words(made: Plan) -> str:
    """Write a plan as people read it: starts, evictions, then the queue with its reasons."""
    lines = []
    for start in made.starts:
        seats = ", ".join(f"{seat.node}[{_span(seat.devices)}]" for seat in start.seats)
        lines.append(f"run {start.run_id} starts on {seats}")
    lines += [f"run {eviction.run_id} is evicted for run {eviction.for_run}" for eviction in made.evictions]
    lines += [f"run {r.run_id} waits ({r.position}): {r.reason.value}: {r.message}" for r in made.refusals]
    return "\n".join(lines) + "\n"


def _span(devices: tuple[int, ...]) -> str:
    whole = devices == tuple(range(devices[0], devices[-1] + 1)) and len(devices) > 1
    return f"{devices[0]}-{devices[-1]}" if whole else ",".join(map(str, devices))


def test_there_are_cases() -> None:
    assert len(CASES) >= 12


@pytest.mark.parametrize("case", CASES)
def test_the_planner_decides(case: str) -> None:
    expected = (Path(__file__).parent / case / "expected.txt").read_text(encoding="utf-8")
    assert in_words(plan(read_case(case), 0)) == expected


if __name__ == "__main__":
    for argument in sys.argv[1:] or CASES:
        print(f"== {argument}\n{in_words(plan(read_case(argument), 0))}", end="")
