"""After submit, by the command line on a real server: update, hold, release, begin, reservations."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from acceptance_yard import Yard

pytestmark = pytest.mark.e2e


def data(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the data of an envelope."""
    return json.loads(done.stdout)["data"]


def error(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)["error"]


def number(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return str(data(done)["run_id"])


def until(yard: Yard, run_id: str, status: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while True:
        run: dict[str, Any] = data(yard.run("get", run_id, "-o", "json"))
        if run["status"] == status:
            return run
        assert time.monotonic() < deadline, run
        time.sleep(0.1)


def test_a_held_run_waits_is_changed_and_goes_when_it_is_released(yard: Yard) -> None:
    done = yard.run("run", yard.write("held", "echo done"), "--hold")
    assert done.returncode == 0, done.stderr
    assert "submitted, held: held on CPU" in done.stdout
    assert "lets it go" in done.stderr
    run = data(yard.run("get", "held", "-o", "json"))
    assert (run["status"], run["held"]) == ("QUEUED", True)
    run_id = str(run["run_id"])
    assert yard.run("queue").stdout.splitlines()[1].split()[1:3] == [run_id, "held"]
    assert data(yard.run("explain", run_id, "-o", "json"))["reason"] == "PAUSED"
    done = yard.run("update", run_id, "--priority", "best_effort", "--timeout", "2h", "--project", "nlp")
    assert done.stdout == f"run {run_id}: priority BEST_EFFORT, project nlp, time limit 2 h 0 min\n"
    again = yard.run("update", run_id, "--priority", "best_effort", "--timeout", "120m")
    assert (again.returncode, "nothing to change" in again.stdout) == (0, True)
    assert yard.run("hold", run_id).stdout == f"run {run_id} was held already\n"
    assert yard.run("release", "held").stdout == f"run {run_id} is released\n"
    run = until(yard, run_id, "SUCCEEDED")
    assert (run["priority"], run["project"], run["timeout_s"]) == ("BEST_EFFORT", "nlp", 7200)
    ended = yard.run("hold", run_id, "-o", "json")
    assert (ended.returncode, error(ended)["code"]) == (2, "RUN_HAS_ENDED")


def test_a_run_does_not_begin_before_its_time(yard: Yard) -> None:
    run_id = number(yard.run("run", yard.write("later", "true"), "--begin", "+1d", "-o", "json"))
    run = data(yard.run("get", run_id, "-o", "json"))
    assert (run["status"], run["held"], run["begin_at"] > run["submitted_at"]) == ("QUEUED", False, True)
    assert data(yard.run("explain", run_id, "-o", "json"))["reason"] == "NOT_YET"
    past = yard.run("update", run_id, "--begin", "2020-01-01 08:00", "-o", "json")
    assert (past.returncode, error(past)["code"]) == (2, "BEGIN_HAS_PASSED")
    assert yard.run("update", run_id, "--begin", "+2s").returncode == 0
    until(yard, run_id, "SUCCEEDED")
    run_id = number(yard.run("run", yard.write("sooner", "true"), "--begin", "+1d", "-o", "json"))
    assert yard.run("update", run_id, "--begin", "now").returncode == 0
    until(yard, run_id, "SUCCEEDED")


def test_a_running_run_keeps_its_project_and_cannot_be_held(yard: Yard) -> None:
    run_id = number(yard.run("run", yard.write("busy", "sleep 300"), "-o", "json"))
    until(yard, run_id, "RUNNING")
    held = yard.run("hold", run_id)
    assert held.returncode == 2
    assert held.stderr.splitlines()[0] == (
        f"error: run {run_id} is running; only while it is queued can it be held: a hold keeps a run from starting, "
        "and this one has started"
    )
    assert f"airyard cancel {run_id}" in held.stderr
    assert yard.run("update", run_id, "--project", "nlp").returncode == 2
    assert yard.run("update", run_id, "--priority", "CRITICAL").stdout == f"run {run_id}: priority CRITICAL\n"
    assert yard.run("update", run_id, "--timeout", "3h").returncode == 0
    assert "time limit  3 h 0 min" in yard.run("get", run_id).stdout
    assert yard.run("cancel", run_id).returncode == 0
    until(yard, run_id, "CANCELLED")


def test_reserved_nodes_are_left_alone_until_the_reservation_is_taken_back(yard: Yard) -> None:
    nodes = [
        node["name"]
        for node in data(yard.run("nodes", "-o", "json"))["nodes"]
        if node["accelerator"] == "GPU_1xA10"
    ]
    missing = yard.run("reserve", "--nodes", f"{nodes[0]}x", "--for", "1h", "-o", "json")
    assert (missing.returncode, error(missing)["code"]) == (3, "NODE_NOT_FOUND")
    assert f"did you mean '{nodes[0]}'?" in error(missing)["message"]
    done = yard.run(
        "reserve", "--nodes", ",".join(nodes), "--for", "1h", "--maintenance", "--note", "new fans"
    )
    assert done.returncode == 0, done.stderr
    made = data(yard.run("reservations", "-o", "json"))["reservations"][0]
    assert (made["nodes"], made["active"], made["maintenance"]) == (nodes, True, True)
    listed = yard.run("reservations").stdout
    assert "new fans" in listed
    rows = [line.split() for line in yard.run("nodes").stdout.splitlines()]
    assert [row[0] for row in rows if "reserved" in row] == nodes
    overlap = yard.run("reserve", "--nodes", nodes[1], "--from", "+30m", "--for", "1h", "-o", "json")
    assert (overlap.returncode, error(overlap)["code"]) == (2, "ALREADY_RESERVED")
    run_id = number(yard.run("run", yard.write("waits", "true", accelerator="GPU_1xA10"), "-o", "json"))
    why = data(yard.run("explain", run_id, "-o", "json"))
    assert (why["state"], why["reason"]) == ("QUEUED", "HELD_FOR_RESERVATION")
    done = yard.run("unreserve", str(made["reservation_id"]))
    assert done.stdout == f"reservation {made['reservation_id']} is taken back\n"
    until(yard, run_id, "SUCCEEDED")
    assert yard.run("unreserve", "99").returncode == 3
    assert yard.run("reservations").stderr == "No reservations.\n"


def test_a_run_leaves_a_node_that_is_reserved_from_now_on_and_goes_on_elsewhere(yard: Yard) -> None:
    file = yard.write(
        "moves",
        "trap 'exit 0' TERM\nsleep 300 & wait",
        accelerator="GPU_1xA10",
        more="preemption: {grace_seconds: 5}\n",
    )
    run_id = number(yard.run("run", file, "-o", "json"))
    node = until(yard, run_id, "RUNNING")["attempts"][0]["members"][0]["node"]
    refused = yard.run("reserve", "--nodes", node, "--for", "1h", "--maintenance")
    assert refused.returncode == 2
    assert f"run {run_id} is on these nodes now" in refused.stderr
    assert "--evict" in refused.stderr
    done = yard.run("reserve", "--nodes", node, "--for", "1h", "--maintenance", "--evict", "-o", "json")
    assert f"run {run_id}" in data(done)["warnings"][0]
    deadline = time.monotonic() + 60
    while len((run := data(yard.run("get", run_id, "-o", "json")))["attempts"]) < 2:
        assert time.monotonic() < deadline, run
        time.sleep(0.1)
    first, second = run["attempts"]
    assert (first["outcome"], first["cause"], first["stop"]["reason"]) == ("PREEMPTED", "OPERATOR", "DRAIN")
    assert second["members"][0]["node"] != node
    assert run["retries_spent"] == 0
    assert yard.run("cancel", run_id).returncode == 0
    reservation = data(done)["reservation"]["reservation_id"]
    assert yard.run("unreserve", str(reservation)).returncode == 0
