"""A node is drained under a running run: it saves, leaves, and goes on elsewhere from its checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.yard import Yard

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

TRAINING = """
import os, signal, sys, time
from airyard import checkpoint

steps, obeys = int(sys.argv[1]), sys.argv[2] == "obeys"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
newest = checkpoint.latest()
first = newest[0] + 1 if newest else 0
print(f"begin at {first}", flush=True)
for step in range(first, steps):
    time.sleep(0.05)
    print(f"step {step}", flush=True)
    with open(os.path.join(os.environ["AIRYARD_CHECKPOINT_DIR"], f"step-{step}"), "w") as file:
        file.write(str(step))
    checkpoint.saved(step, f"step-{step}")
    if obeys and checkpoint.stop_requested():
        sys.exit(3)
"""


@pytest.fixture(scope="module")
def yard(environment_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    made = Yard(tmp_path_factory.mktemp("draining"), environment_cache, simulate="GPU_1xA10=3")
    try:
        made.up()
        folder = made.home / "training"
        folder.mkdir()
        (folder / "train.py").write_text(TRAINING)
        yield made
    finally:
        made.close()


def submit(yard: Yard, steps: int, manner: str, *, nodes: int = 1, grace_s: int = 60) -> int:
    """Submit a training; wait until it has saved something."""
    code = {"type": "snapshot", "snapshot": {"root_path": str(yard.home / "training")}}
    run_id = yard.submit(
        f"python train.py {steps} {manner}",
        accelerator="GPU_1xA10",
        nodes=nodes,
        code_source=code,
        preemption={"grace_seconds": grace_s},
    )
    yard.until(run_id, lambda run: bool(run["attempts"]) and run["attempts"][0]["checkpoint"] is not None)
    return run_id


def places(run: dict[str, Any], attempt: int) -> list[str]:
    return [member["node"] for member in run["attempts"][attempt]["members"]]


def steps_of(yard: Yard, run_id: int, attempt: int) -> list[int]:
    done = yard.ok("logs", str(run_id), "--attempt", str(attempt), "--node", "0", "--no-follow")
    return [int(found) for found in re.findall(r"step (\d+)$", done, re.MULTILINE)]


def test_a_gang_on_a_drained_node_saves_leaves_and_goes_on_elsewhere(yard: Yard) -> None:
    run_id = submit(yard, 120, "obeys", nodes=2)
    away = places(yard.get(run_id), 0)[1]
    yard.ok("drain", away, "--reason", "new fans", "--wait")
    run = yard.ended(run_id, timeout=120)
    assert (run["outcome"], run["retries_spent"]) == ("SUCCEEDED", 0)
    assert [attempt["outcome"] for attempt in run["attempts"]] == ["PREEMPTED", "SUCCEEDED"]
    assert run["attempts"][0]["cause"] == "OPERATOR"
    assert away not in places(run, 1)
    before, after = steps_of(yard, run_id, 0), steps_of(yard, run_id, 1)
    assert before + after == list(range(120)), "nothing is done twice and nothing is left out"
    yard.ok("uncordon", away)


def test_who_is_still_there_at_the_deadline_is_stopped_hard(yard: Yard) -> None:
    run_id = submit(yard, 400, "deaf")
    node = places(yard.get(run_id), 0)[0]
    others = {found["name"] for found in yard.data("nodes")["nodes"] if found["accelerator"] == "GPU_1xA10"}
    yard.ok("cordon", *sorted(others - {node}), "--reason", "not yet")
    yard.ok("drain", node, "--deadline", "3s", "--wait")
    run = yard.until(run_id, lambda run: run["status"] == "QUEUED")
    assert run["attempts"][0]["stop"]["reason"] == "DRAIN"
    assert re.search(r"killed after [23] s of grace", json.dumps(run["attempts"][0]))
    assert run["retries_spent"] == 0
    why = yard.data("explain", str(run_id))
    assert (why["reason"], f"{node} (drained by " in why["message"]) == ("NODES_UNHEALTHY", True)
    yard.ok("down", "--keep-runs")
    yard.up()
    shown = yard.data("nodes", node)["node"]
    assert (shown["cordoned"], shown["draining"]["drained"]) == (True, True), "it survives a restart"
    yard.ok("uncordon", *sorted(others))
    yard.until(run_id, lambda run: len(run["attempts"]) == 2 and run["attempts"][1]["checkpoint"] is not None)
    assert steps_of(yard, run_id, 1)[0] > 0, "it goes on from its checkpoint"
    yard.ok("cancel", str(run_id))
    yard.ended(run_id)
