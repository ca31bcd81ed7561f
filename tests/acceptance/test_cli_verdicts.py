"""A run fails, and its end says why: from the logs of all its nodes and from what monitors saw of these."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from acceptance_yard import Yard

pytestmark = pytest.mark.e2e

PATIENCE_S = 60.0
GANG = """\
if [ "$NODE_RANK" = 1 ]; then
  echo "Traceback (most recent call last):" >&2
  echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB." >&2
  exit 1
fi
echo "NCCL WARN Net : Connection closed by remote peer 10.0.0.1<99>"
sleep 60
"""
FORGED = """\
echo "[ 1234.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
echo "RuntimeError: CUDA error: uncorrectable ECC error encountered" >&2
exit 1
"""
TIMED_OUT = """\
[ "$AIRYARD_ATTEMPT" = 0 ] || exit 0
echo "[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE)" >&2
while [ ! -e "$HOME/reported" ]; do sleep 0.1; done
exit 1
"""


def data(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["data"]


def get(yard: Yard, ref: str = "@last") -> Any:
    return data(yard.run("get", ref, "-o", "json"))


def judged(yard: Yard, ref: str = "@last") -> Any:
    """Return the judgement on the first attempt, once it is there."""
    deadline = time.monotonic() + PATIENCE_S
    while (judgement := get(yard, ref)["attempts"][0]["judgement"]) is None:
        assert time.monotonic() < deadline, "it was never judged"
        time.sleep(0.2)
    return judgement


def healths(yard: Yard) -> dict[str, str | None]:
    """Return what is thought of each node that is not closed."""
    nodes = data(yard.run("nodes", "-o", "json"))["nodes"]
    assert not [one["name"] for one in nodes if one["cordoned"]]
    return {one["name"]: one["health"]["state"] if one.get("health") else None for one in nodes}


def test_the_first_rank_is_named_and_no_node_is_blamed(yard: Yard) -> None:
    failed = yard.run("run", yard.write("gang-oom", GANG, accelerator="GPU_1xA10", count=2), "--watch")
    assert failed.returncode == 1
    judgement, run = judged(yard), get(yard)
    verdict = judgement["verdict"]
    assert (run["cause"], run["attempts"][0]["cause"]) == ("USER_CODE", "USER_CODE")
    assert (verdict["class"], verdict["first_rank"], verdict["blamed_node"]) == ("user", 1, None)
    assert judgement["members"] == 2
    told = yard.run("explain", "@last").stdout
    assert "first rank 1" in told
    assert "node 1 stderr:2: torch.OutOfMemoryError: CUDA out of memory" in told
    assert "of 2 logs" in told
    shown = yard.run("get", "@last").stdout
    assert "blamed    nobody" in shown
    stored = data(yard.run("triage", "@last", "-o", "json"))
    assert stored["judged_at"] == judgement["at"]
    fresh = data(yard.run("triage", "@last", "--fresh", "-o", "json"))
    assert (fresh["judged_at"], fresh["rule"], fresh["first_rank"]) == (None, verdict["rule"], 1)
    assert set(healths(yard).values()) == {None}


def test_a_forged_kernel_line_takes_no_node_out(yard: Yard) -> None:
    file = yard.write("forged", FORGED, accelerator="GPU_1xA10")
    run_id = str(data(yard.run("run", file, "-o", "json"))["run_id"])
    verdict = judged(yard, run_id)["verdict"]
    assert verdict["confirmed"] is False
    assert "kernel.text" in verdict["also_seen"]
    assert set(healths(yard).values()) <= {None, "HEALTHY"}
    node = get(yard, run_id)["attempts"][0]["members"][0]["node"]
    assert f"{node}, a suspect: only a job says so" in yard.run("get", run_id).stdout
    yard.run("cancel", run_id)
    yard.run("wait", run_id)


def test_what_a_monitor_saw_makes_it_the_machines_fault(yard: Yard) -> None:
    file = yard.write("timed-out", TIMED_OUT, accelerator="GPU_1xA10")
    run_id = str(data(yard.run("run", file, "-o", "json"))["run_id"])
    deadline = time.monotonic() + PATIENCE_S
    while (run := get(yard, run_id))["status"] != "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    node = run["attempts"][0]["members"][0]["node"]
    reported = yard.run(
        "health", "report", node, "--rule", "ecc.pending", "--device", "0", "--message", "a row waits"
    )
    assert reported.returncode == 0, reported.stderr
    (yard.work / "reported").touch()
    assert yard.run("wait", run_id).returncode == 0
    run = get(yard, run_id)
    first, second = run["attempts"]
    verdict = first["judgement"]["verdict"]
    assert (verdict["rule"], verdict["confirmed"], verdict["blamed_node"]) == ("ecc.pending", True, node)
    assert (first["cause"], first["failure"]["node"], run["retries_spent"]) == ("DEVICE", node, 0)
    assert (second["outcome"], second["members"][0]["node"] != node) == ("SUCCEEDED", True)
