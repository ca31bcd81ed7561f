"""User code that started while MLflow was away: what it logs lands in the attempt's run, under the true end."""

from __future__ import annotations

import json
import subprocess
import sys

from airyard.ports.tracker import TrackedStatus

DEFERRED_CLIENT = """
import os, sys, mlflow
mlflow.log_param("lr", 0.1)
for step in range(4):
    mlflow.log_metric("loss", float(step), step=step)
mlflow.set_tag("who", "me")
print(mlflow.active_run().info.run_id, flush=True)
sys.stdin.readline()
mlflow.log_metric("loss", 4.0, step=4)
with mlflow.start_run(nested=True, run_name="child") as child:
    mlflow.log_metric("inner", 7.0)
with open("notes.txt", "w") as file:
    file.write("hello")
mlflow.log_artifact("notes.txt")
print("child", child.info.run_id, flush=True)
raise SystemExit(3)
"""


def start(yard, token: str, tmp_path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DEFERRED_CLIENT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=yard.environment(token), cwd=tmp_path,
    )  # fmt: skip


def run_of(yard, run_id: str) -> dict:
    with yard.client() as client:
        answer = client.get("/api/2.0/mlflow/runs/get", params={"run_id": run_id})
        return answer.json()["run"]


def test_what_was_logged_by_the_alias_is_in_the_run_once_it_is_open(yard, wait_until, tmp_path) -> None:
    deferred = yard.defer("40.0")
    client = start(yard, "40.0", tmp_path)
    try:
        assert client.stdout is not None
        assert client.stdout.readline().strip() == deferred.alias.run_id
        held = yard.spools.held_of("40.0")
        assert held is not None
        assert held.backlog().writes == 6
        scope = yard.open("40.0", "deferred")
        wait_until(lambda: yard.spools.held_of("40.0") is None)
        yard.tracker.log_metrics(str(scope.run_id), ())
        output, _ = client.communicate("go\n", timeout=100)
    finally:
        client.kill()
        client.wait()
    assert client.returncode == 3
    child_id = next(line.split()[1] for line in output.splitlines() if line.startswith("child "))
    child = run_of(yard, child_id)
    assert child["info"]["experiment_id"] == scope.experiment_id
    assert child["info"]["status"] == "FINISHED"  # user code alone ends the runs it made
    tags = {tag["key"]: tag["value"] for tag in child["data"]["tags"]}
    assert tags["mlflow.parentRunId"] == scope.run_id
    history = yard.tracker.metric_history(str(scope.run_id), "loss")
    assert [point.value for point in history] == [0.0, 1.0, 2.0, 3.0, 4.0]
    run = run_of(yard, str(scope.run_id))
    assert run["info"]["status"] == "RUNNING"
    assert run["data"]["params"] == [{"key": "lr", "value": "0.1"}]
    with yard.client() as user:
        path = f"{scope.experiment_id}/{scope.run_id}/artifacts/notes.txt"
        assert user.get(f"/api/2.0/mlflow-artifacts/artifacts/{path}").text == "hello"
        wait_until(lambda: "40.0" not in yard.spools.held())


def test_the_end_that_airyard_gave_stays(yard, wait_until) -> None:
    deferred = yard.defer("41.0")
    own = {"run_id": deferred.alias.run_id}
    with yard.client("41.0") as client:
        late = {**own, "status": "FINISHED", "end_time": 5, "run_name": "mine"}
        assert (
            client.post("/api/2.0/mlflow/runs/update", json=late).json()["run_info"]["status"] == "FINISHED"
        )
        metric = {**own, "key": "x", "value": 1.5, "timestamp": 1, "step": 0}
        assert client.post("/api/2.0/mlflow/runs/log-metric", json=metric).status_code == 200
        # The attempt ends, and its run is opened and closed before what is held was replayed.
        opened = yard.open("41.0", "deferred")
        yard.tracker.finish_run(str(opened.run_id), TrackedStatus.FAILED, 9)
        wait_until(lambda: yard.spools.held_of("41.0") is None)
        for named in (own, {"run_id": opened.run_id}):
            answer = client.post("/api/2.0/mlflow/runs/update", json={**named, "status": "FINISHED"})
            assert answer.status_code == 200
    run = run_of(yard, str(opened.run_id))
    assert (run["info"]["status"], run["info"]["end_time"], run["info"]["run_name"]) == ("FAILED", 9, "mine")
    assert yard.tracker.metrics(str(opened.run_id))["x"].value == 1.5


def test_before_the_run_is_open_only_its_own_token_may_use_the_alias(yard) -> None:
    alias = yard.defer("42.0").alias
    yard.open("43.0", "other")
    with yard.client("42.0") as client:
        api = "/api/2.0/mlflow"
        run = client.get(f"{api}/runs/get", params={"run_id": alias.run_id}).json()["run"]
        assert run["info"]["experiment_id"] == alias.experiment_id
        found = client.get(f"{api}/experiments/get", params={"experiment_id": alias.experiment_id}).json()
        assert found["experiment"]["experiment_id"] == alias.experiment_id
        away = client.post(f"{api}/runs/create", json={"experiment_id": alias.experiment_id})
        assert away.status_code == 503
        both = {"run_id": alias.run_id, "run_uuid": yard.gate.attempts["43.0"].run_id}
        assert client.post(f"{api}/runs/set-tag", json={**both, "key": "k", "value": "v"}).status_code == 403
    with yard.client("43.0") as other:
        tag = {"run_id": alias.run_id, "key": "k", "value": "v"}
        assert other.post(f"{api}/runs/set-tag", json=tag).status_code == 403


def test_one_attempt_without_a_run_holds_up_no_other(yard, wait_until) -> None:
    tokens = ("44.0", "45.0")
    for token in tokens:
        alias = yard.defer(token).alias
        with yard.client(token) as client:
            tag = {"run_id": alias.run_id, "key": "k", "value": token}
            assert client.post("/api/2.0/mlflow/runs/set-tag", json=tag).status_code == 200
    opened = yard.open("45.0", "deferred")
    wait_until(lambda: yard.spools.held_of("45.0") is None)
    tags = {tag["key"]: tag["value"] for tag in run_of(yard, str(opened.run_id))["data"]["tags"]}
    assert tags["k"] == "45.0"
    assert yard.spools.held_of("44.0") is not None
    refused = yard.spools.backlog().refused
    yard.gate.refused.add("44.0")
    wait_until(lambda: yard.spools.held_of("44.0") is None)
    assert yard.spools.backlog().refused == refused + 1
    lines = (yard.folder.parent / "spool" / "writes.refused").read_text().splitlines()
    assert json.loads(lines[-1])["reason"] == "attempt 44.0 has no tracked run"
