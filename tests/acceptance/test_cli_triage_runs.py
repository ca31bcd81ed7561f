"""Why a run failed, from the logs that its server keeps."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from acceptance_yard import Yard
from airyard.wire.verdicts import VerdictDoc

pytestmark = pytest.mark.e2e

GANG = """\
if [ "$NODE_RANK" = 1 ]; then
  echo "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
  echo "Traceback (most recent call last):" >&2
  echo "KeyError: 'labels'" >&2
  exit 1
fi
echo "NCCL WARN Net : Connection closed by remote peer 10.0.0.1<99>"
sleep 60
"""


def data(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)["data"]


def test_the_first_rank_of_a_gang_and_no_blame_for_its_node(yard: Yard) -> None:
    failed = yard.run("run", yard.write("gang-fails", GANG, accelerator="GPU_1xA10", count=2), "--watch")
    assert failed.returncode == 1
    found = data(yard.run("triage", "@last", "-o", "json"))
    of_the_run = ("run_id", "attempt", "judged_at", "logs", "members", "missing")
    VerdictDoc.model_validate({key: value for key, value in found.items() if key not in of_the_run})
    assert (found["class"], found["cause"], found["first_rank"]) == ("user", "USER_CODE", 1)
    assert (found["blamed_node"], found["confirmed"], found["attempt"]) == (None, False, 0)
    assert found["evidence"][0] == {
        "file": "node 1 stderr",
        "line": 2,
        "rank": 1,
        "kernel": False,
        "text": "KeyError: 'labels'",
    }
    assert found["also_seen"] == ["kernel.text", "net.peer_gone"]


def test_a_job_that_speaks_of_ecc_makes_its_node_a_suspect_at_most(yard: Yard) -> None:
    command = "echo 'RuntimeError: CUDA error: uncorrectable ECC error encountered' >&2; exit 1"
    assert yard.run("run", yard.write("ecc", command), "--watch").returncode == 1
    found = data(yard.run("triage", "@last", "-o", "json"))
    run = data(yard.run("get", "@last", "-o", "json"))
    node = run["attempts"][0]["members"][0]["node"]
    assert (found["class"], found["confirmed"], found["blamed_node"]) == ("hardware", False, node)
    text = yard.run("triage", "@last").stdout
    assert f"blamed      {node}, a suspect: only a job says so" in text


def test_what_has_not_failed_is_refused(yard: Yard) -> None:
    assert yard.run("run", yard.write("well", "true"), "--watch").returncode == 0
    done = yard.run("triage", "@last", "-o", "json")
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["fix"]["text"]) == ("NOT_FAILED", "look at how it ended")
    done = yard.run("triage", "@last", "--attempt", "3", "-o", "json")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (3, "NO_ATTEMPT")
    assert yard.run("triage", "999").returncode == 3
