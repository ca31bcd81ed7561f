"""MLflow's own client, a browser's requests and an outage, through the real proxy."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from airyard.ports.tracker import TrackerKind

CLIENT = """
import json, os, sys, mlflow
from mlflow.exceptions import MlflowException
with mlflow.start_run():
    mlflow.log_param("lr", 0.1)
    for step in range(3):
        mlflow.log_metric("loss", 1.0 / (step + 1), step=step)
    mlflow.log_artifact(sys.argv[1], artifact_path="files")
    mlflow.set_tag("who", "me")
mlflow.set_experiment("made by the client")
with mlflow.start_run() as own:
    mlflow.log_metric("inner", 1.0)
refused = ""
try:
    mlflow.MlflowClient().log_metric(sys.argv[2], "theirs", 1.0)
except MlflowException as error:
    refused = f"{error.error_code}: {error}"
print(json.dumps({"own": own.info.run_id, "refused": refused}))
"""

OUTAGE_CLIENT = """
import sys, mlflow
with mlflow.start_run():
    mlflow.log_metric("loss", 0.0, step=0)
    print("ready", flush=True)
    sys.stdin.readline()
    for step in range(1, 6):
        mlflow.log_metric("loss", float(step), step=step)
        mlflow.set_tag("step", str(step))
    mlflow.log_params({"late": "yes"})
print("done", flush=True)
"""


def test_callers_are_checked(yard) -> None:
    path = "/api/2.0/mlflow/experiments/search?max_results=1"
    with yard.client("wrong") as client:
        answer = client.get(path)
        assert answer.status_code == 401
        assert answer.json()["error_code"] == "UNAUTHENTICATED"
    with httpx.Client(base_url=f"{yard.url}/mlflow", cookies={"airyard_session": "ayt_user"}) as browser:
        assert browser.get(path).status_code == 200
        body = {"name": "by cookie"}
        foreign = browser.post(
            "/api/2.0/mlflow/experiments/create", json=body, headers={"Origin": "https://elsewhere.example"}
        )
        assert foreign.status_code == 403
        same = browser.post("/api/2.0/mlflow/experiments/create", json=body, headers={"Origin": yard.url})
        assert same.status_code == 200


def test_the_pages_work_below_the_prefix(yard) -> None:
    with httpx.Client(cookies={"airyard_session": "ayt_user"}) as browser:
        moved = browser.get(f"{yard.url}/mlflow")
        assert moved.headers["location"] == "/mlflow/"
        page = browser.get(f"{yard.url}/mlflow/")
        assert "<title>MLflow</title>" in page.text
        assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert len(assets) >= 3
        for asset in assets:
            assert not asset.startswith("/")
            got = browser.get(str(page.url.join(asset)))
            assert got.status_code == 200
            assert len(got.content) == int(got.headers.get("content-length", len(got.content)))
        found = browser.post(
            str(page.url.join("ajax-api/2.0/mlflow/experiments/search")),
            json={"max_results": 5},
            headers={"Origin": yard.url},
        )
        assert found.json()["experiments"]


def test_paths_out_of_bounds_are_refused(yard) -> None:
    with yard.client() as client:
        assert client.get("/api/2.0/%2e%2e/mlflow").status_code == 400
        assert client.post("/gateway/x/mlflow/invocations", json={}).status_code == 404
        assert client.get("/ajax-api/3.0/mlflow/assistant/config").status_code == 404


def test_mlflows_client_with_an_attempts_token(yard, tmp_path: Path) -> None:
    scope = yard.open("20.0", "client")
    other = yard.open("21.0", "not the client's")
    file = tmp_path / "notes.txt"
    file.write_text("hello")
    ran = subprocess.run(
        [sys.executable, "-c", CLIENT, str(file), str(other.run_id)],
        env=yard.environment("20.0"), capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    assert told["refused"].startswith("PERMISSION_DENIED")
    assert [point.value for point in yard.tracker.metric_history(scope.run_id, "loss")] == [1.0, 0.5, 1 / 3]
    assert yard.tracker.metrics(told["own"])["inner"].value == 1.0
    assert yard.tracker.metrics(str(other.run_id)) == {}
    with yard.client() as client:
        path = f"{scope.experiment_id}/{scope.run_id}/artifacts/files/notes.txt"
        assert client.get(f"/api/2.0/mlflow-artifacts/artifacts/{path}").text == "hello"
    with yard.client("20.0") as client:
        theirs = f"{other.experiment_id}/{other.run_id}/artifacts/x.txt"
        assert client.put(f"/api/2.0/mlflow-artifacts/artifacts/{theirs}", content=b"x").status_code == 403
        body = {"experiment_id": scope.experiment_id}
        assert client.post("/api/2.0/mlflow/experiments/delete", json=body).status_code == 403
        folder = {"name": "on the server", "artifact_location": str(tmp_path)}
        assert client.post("/api/2.0/mlflow/experiments/create", json=folder).status_code == 403


@contextmanager
def outage(yard, wait_until) -> Iterator[None]:
    """Kill MLflow and hold its folder's lock, so that the supervisor's restarts cannot succeed."""
    lock = os.open(yard.folder / "mlflow.lock", os.O_RDWR)
    try:
        os.kill(yard.mlflow.pid, signal.SIGKILL)
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_until(lambda: yard.mlflow.state().kind is not TrackerKind.UP)
        yield
    finally:
        os.close(lock)


def test_writes_during_an_outage_are_kept_and_replayed_in_order(yard, wait_until) -> None:
    scope = yard.open("30.0", "outage")
    client = subprocess.Popen(
        [sys.executable, "-c", OUTAGE_CLIENT],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=yard.environment("30.0"),
    )  # fmt: skip
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "ready\n"
        with outage(yard, wait_until):
            output, _ = client.communicate("go\n", timeout=100)
            assert client.returncode == 0
            assert output.endswith("done\n")
            assert yard.spools.backlog().writes >= 11
            with yard.client("30.0") as direct:
                body = {"run_id": scope.run_id, "key": "bad//name", "value": "1"}
                refused_later = direct.post("/api/2.0/mlflow/runs/set-tag", json=body)
                assert refused_later.headers["x-airyard-tracking"] == "spooled"
                away = direct.post("/api/2.0/mlflow/runs/search", json={"experiment_ids": ["0"]})
                assert away.status_code == 503
                assert int(away.headers["retry-after"]) >= 1
    finally:
        client.kill()
        client.wait()
    wait_until(lambda: yard.mlflow.state().kind is TrackerKind.UP and yard.spools.backlog().writes == 0)
    history = yard.tracker.metric_history(str(scope.run_id), "loss")
    assert [point.value for point in history] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    with yard.client() as direct:
        run = direct.get("/api/2.0/mlflow/runs/get", params={"run_id": scope.run_id}).json()["run"]
    tags = {tag["key"]: tag["value"] for tag in run["data"]["tags"]}
    assert tags["step"] == "5"
    assert run["info"]["status"] == "RUNNING"  # only Airyard says how the attempt's own run ended
    assert run["data"]["params"] == [{"key": "late", "value": "yes"}]
    assert yard.spools.backlog().refused == 1


def test_user_code_that_meets_an_absent_mlflow_from_start_to_end_succeeds(yard, wait_until) -> None:
    scope = yard.open("31.0", "outage")
    with outage(yard, wait_until):
        ran = subprocess.run(
            [sys.executable, "-c", OUTAGE_CLIENT],
            input="go\n", env=yard.environment("31.0"), capture_output=True, text=True, timeout=100, check=False,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
    wait_until(lambda: yard.mlflow.state().kind is TrackerKind.UP and yard.spools.backlog().writes == 0)
    assert len(yard.tracker.metric_history(str(scope.run_id), "loss")) == 6
