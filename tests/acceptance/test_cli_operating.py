"""Operating nodes by the command line: one shown, cordoned, drained with and without a deadline, opened again."""

from __future__ import annotations

import json
import subprocess
import time
from typing import Any

import pytest

from acceptance_yard import Yard

pytestmark = pytest.mark.e2e

LEAVES = "trap 'exit 0' TERM\nsleep 300 & wait"


def data(done: subprocess.CompletedProcess[str]) -> Any:
    """Return the data of an envelope."""
    return json.loads(done.stdout)["data"]


def error(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)["error"]


def number(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return str(data(done)["run_id"])


def until(yard: Yard, run_id: str, status: str) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while True:
        run: dict[str, Any] = data(yard.run("get", run_id, "-o", "json"))
        if run["status"] == status:
            return run
        assert time.monotonic() < deadline, run
        time.sleep(0.1)


def names(yard: Yard) -> list[str]:
    """The GPU nodes of the yard."""
    nodes = data(yard.run("nodes", "-o", "json"))["nodes"]
    return [node["name"] for node in nodes if node["accelerator"] == "GPU_1xA10"]


def moved(yard: Yard, run_id: str) -> dict[str, Any]:
    """Wait until a run has a second attempt that runs."""
    deadline = time.monotonic() + 120
    while True:
        run: dict[str, Any] = data(yard.run("get", run_id, "-o", "json"))
        if len(run["attempts"]) == 2 and run["status"] == "RUNNING":
            return run
        assert time.monotonic() < deadline, run
        time.sleep(0.1)


def test_cordoned_nodes_take_nothing_new_and_who_waits_is_told_why(yard: Yard) -> None:
    first, second = names(yard)
    unknown = yard.run("cordon", first, f"{second}x", "-o", "json")
    assert (unknown.returncode, error(unknown)["code"]) == (3, "NODE_NOT_FOUND")
    assert f"did you mean '{second}'?" in error(unknown)["message"]
    done = yard.run("cordon", first, second, "--reason", "loud fan")
    assert (done.returncode, done.stdout) == (0, f"{first} is cordoned\n{second} is cordoned\n")
    assert f"{first} is cordoned already, by " in yard.run("cordon", first).stdout
    rows = [line for line in yard.run("nodes").stdout.splitlines() if "cordoned" in line]
    assert (len(rows), all("loud fan" in row for row in rows)) == (2, True)
    run_id = number(yard.run("run", yard.write("waits", "true", accelerator="GPU_1xA10"), "-o", "json"))
    why = data(yard.run("explain", run_id, "-o", "json"))
    assert (why["state"], why["reason"]) == ("QUEUED", "NODES_UNHEALTHY")
    assert f"{first} (cordoned by " in why["message"]
    assert "loud fan" in why["message"]
    shown = yard.run("nodes", first)
    assert "loud fan" in shown.stdout
    assert data(yard.run("nodes", first, "-o", "json"))["node"]["cordon"]["reason"] == "loud fan"
    assert yard.run("uncordon", first, second).returncode == 0
    until(yard, run_id, "SUCCEEDED")
    assert yard.run("uncordon", first).stdout == f"{first} is not cordoned\n"


def test_a_drained_node_becomes_empty_and_its_run_goes_on_elsewhere(yard: Yard) -> None:
    file = yard.write("moves", LEAVES, accelerator="GPU_1xA10", more="preemption: {grace_seconds: 20}\n")
    run_id = number(yard.run("run", file, "-o", "json"))
    node = until(yard, run_id, "RUNNING")["attempts"][0]["members"][0]["node"]
    done = yard.run("drain", node, "--reason", "new fans", "--wait")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{node} is drained\nrun {run_id} ")
    assert done.stdout.endswith(f"{node}: nothing is left\n")
    run = moved(yard, run_id)
    first, second = run["attempts"]
    assert (first["outcome"], first["cause"], first["stop"]["reason"]) == ("PREEMPTED", "OPERATOR", "DRAIN")
    assert first["stop"]["message"].endswith(": new fans")
    assert second["members"][0]["node"] != node
    assert run["retries_spent"] == 0
    assert next(line for line in yard.run("nodes").stdout.splitlines() if "drained" in line).startswith(node)
    assert yard.run("cancel", run_id).returncode == 0
    assert yard.run("uncordon", node).returncode == 0
    until(yard, run_id, "CANCELLED")


def test_until_its_deadline_a_run_may_go_on(yard: Yard) -> None:
    file = yard.write("ends", "sleep 8", accelerator="GPU_1xA10", more="preemption: {grace_seconds: 5}\n")
    run_id = number(yard.run("run", file, "-o", "json"))
    node = until(yard, run_id, "RUNNING")["attempts"][0]["members"][0]["node"]
    done = data(yard.run("drain", node, "--deadline", "1h", "-o", "json"))
    assert [leaving["run_id"] for leaving in done["runs"]] == [int(run_id)]
    assert done["runs"][0]["gone_by"] == done["nodes"][0]["node"]["draining"]["deadline_at"]
    assert until(yard, run_id, "SUCCEEDED")["attempts"][0]["stop"] is None
    shown = data(yard.run("nodes", node, "-o", "json"))
    assert (shown["node"]["draining"]["drained"], shown["runs"]) == (True, [])
    assert yard.run("uncordon", node).returncode == 0


def test_a_machine_that_is_connected_is_not_dead(yard: Yard) -> None:
    node = names(yard)[0]
    for verb in (("confirm-dead",), ("nodes", "confirm-dead")):
        refused = yard.run(*verb, node, "--yes", "-o", "json")
        assert (refused.returncode, error(refused)["code"]) == (2, "MACHINE_IS_ALIVE")
    assert yard.run("confirm-dead", "nowhere", "--yes").returncode == 3


def test_a_node_that_the_prolog_finds_unfit_is_cordoned_and_the_run_goes_on_elsewhere(yard: Yard) -> None:
    first, second = names(yard)
    declared = yard.work / "yard.yaml"
    declared.write_text(
        "pools:\n"
        "  checked:\n"
        "    accelerator: GPU_1xA10\n"
        "    prolog:\n"
        "      command: |\n"
        '        echo "run $AIRYARD_RUN_ID, devices $AIRYARD_DEVICES"\n'
        f"        test -e {yard.work}/mended || [ $AIRYARD_ATTEMPT != 0 ] || {{ echo Xid 79; exit 3; }}\n"
        "    epilog: {command: 'echo cleaned up after $AIRYARD_RUN_ID', timeout: 20s}\n"
    )
    assert yard.run("apply", "-f", str(declared)).returncode == 0
    try:
        run_id = number(
            yard.run("run", yard.write("moves", "echo here", accelerator="GPU_1xA10"), "-o", "json")
        )
        run = until(yard, run_id, "SUCCEEDED")
        unfit, fit = (attempt["members"][0]["node"] for attempt in run["attempts"])
        assert {unfit, fit} == {first, second}
        assert (run["attempts"][0]["cause"], run["retries_spent"]) == ("NODE", 0)
        assert run["attempts"][0]["failure"]["message"] == "the prolog exited with 3: Xid 79"
        shown = data(yard.run("nodes", unfit, "-o", "json"))["node"]["cordon"]
        assert (shown["by"], shown["reason"]) == ("prolog", "the prolog exited with 3: Xid 79")
        done = yard.run("logs", run_id, "--no-follow")
        log = done.stdout + done.stderr
        assert f"airyard: prolog: run {run_id}, devices 0" in log
        assert f"airyard: epilog: cleaned up after {run_id}" in log
        assert yard.run("uncordon", unfit).returncode == 0
        (yard.work / "mended").touch()
        declared.write_text(
            declared.read_text().replace("echo cleaned up after $AIRYARD_RUN_ID", "echo dirty; exit 1")
        )
        assert yard.run("apply", "-f", str(declared)).returncode == 0
        run_id = number(yard.run("run", yard.write("ends", "true", accelerator="GPU_1xA10"), "-o", "json"))
        node = until(yard, run_id, "SUCCEEDED")["attempts"][0]["members"][0]["node"]
        shown = data(yard.run("nodes", node, "-o", "json"))["node"]["cordon"]
        assert (shown["by"], shown["reason"]) == ("epilog", "the epilog exited with 1: dirty")
        assert yard.run("uncordon", node).returncode == 0
    finally:
        declared.write_text("{}\n")
        yard.run("apply", "-f", str(declared))
