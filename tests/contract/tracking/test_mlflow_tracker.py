"""The tracker against a real MLflow process."""

from __future__ import annotations

import math
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from time import monotonic, sleep

import pytest

from airyard.adapters import mlflow_child
from airyard.adapters.mlflow_endpoint import MlflowEndpoint, endpoint_of_uri
from airyard.adapters.mlflow_rest import MlflowTracker
from airyard.adapters.mlflow_server import EmbeddedMlflow
from airyard.adapters.tracking_worker import FinishJob, MetricsJob, OpenJob, TrackingWorker
from airyard.core.errors import Denied, NotFound, Unavailable, UserError
from airyard.ports.tracker import Metric, OpenRun, TrackedStatus, TrackerKind


def opening(key: str, **changes: object) -> OpenRun:
    fields: dict[str, object] = {
        "key": key, "experiment": "tracker", "run_name": "r", "start_ms": 1_000, "user": "ada"
    }  # fmt: skip
    return OpenRun(**(fields | changes))  # type: ignore[arg-type]  # a test's short form


def test_the_same_key_finds_the_same_run(yard) -> None:
    first = yard.tracker.open_run(opening("y/1.0", params=(("lr", "0.1"),)))
    second = yard.tracker.open_run(opening("y/1.0", params=(("lr", "0.1"),)))
    other = yard.tracker.open_run(opening("y/1.1"))
    assert second == first
    assert other.experiment_id == first.experiment_id
    assert other.run_id != first.run_id


def test_many_and_long_parameters_arrive_and_changes_are_told(yard) -> None:
    params = tuple((f"layer[{index}]", "é" * index * 30) for index in range(250))
    opened = yard.tracker.open_run(
        opening("y/2.0", params=params, tags=(("note", "x" * 9000), ("empty", "")))
    )
    with yard.client() as client:
        data = client.get("/api/2.0/mlflow/runs/get", params={"run_id": opened.run_id}).json()["run"]["data"]
    stored = {item["key"]: item["value"] for item in data["params"]}
    tags = {item["key"]: item["value"] for item in data["tags"]}
    assert len(stored) == 250
    assert stored["layer_3_"] == "é" * 90
    assert stored["layer_249_"].endswith("… [cut]")
    assert len(stored["layer_249_"]) == 6000
    assert len(tags["note"]) == 8000
    assert "layer[0] is stored as layer_0_" in tags["airyard.tracking_changed"]


def test_metrics_of_every_kind_and_their_history(yard) -> None:
    run_id = yard.tracker.open_run(opening("y/3.0")).run_id
    points = tuple(Metric(key="loss", value=1 / (step + 1), time_ms=step, step=step) for step in range(2300))
    odd = (Metric(key="nan", value=math.nan, time_ms=1), Metric(key="inf", value=math.inf, time_ms=1))
    yard.tracker.log_metrics(run_id, points + odd)
    yard.tracker.log_metrics(run_id, points[:5])
    latest = yard.tracker.metrics(run_id)
    assert latest["loss"].step == 2299
    assert math.isnan(latest["nan"].value)
    assert yard.tracker.metric_history(run_id, "loss") == points


def test_an_artifact_goes_in_and_comes_out_through_the_proxy(yard, tmp_path: Path) -> None:
    opened = yard.tracker.open_run(opening("y/4.0"))
    source = tmp_path / "weights.bin"
    source.write_bytes(os.urandom(3_000_000))
    assert yard.tracker.put_artifact(opened.run_id, "logs/node 0/wé.bin", source).stored
    path = f"/api/2.0/mlflow-artifacts/artifacts/{opened.experiment_id}/{opened.run_id}/artifacts"
    with yard.client() as client:
        assert client.get(f"{path}/logs/node 0/wé.bin").content == source.read_bytes()
        page = client.get("/get-artifact", params={"run_id": opened.run_id, "path": "logs/node 0/wé.bin"})
        assert page.content == source.read_bytes()


def test_a_store_that_mlflow_does_not_proxy_is_a_reason(yard, tmp_path: Path) -> None:
    request = opening("y/5.0", experiment="elsewhere", artifact_location="s3://bucket/runs")
    opened = yard.tracker.open_run(request)
    answer = yard.tracker.put_artifact(opened.run_id, "a.txt", Path(__file__))
    assert not answer.stored
    assert "s3://bucket/runs" in answer.reason


def test_finish_and_delete_are_idempotent(yard) -> None:
    run_id = yard.tracker.open_run(opening("y/6.0")).run_id
    for _ in range(2):
        yard.tracker.finish_run(run_id, TrackedStatus.KILLED, 9_000)
    with yard.client() as client:
        info = client.get("/api/2.0/mlflow/runs/get", params={"run_id": run_id}).json()["run"]["info"]
    assert (info["status"], info["end_time"]) == ("KILLED", 9_000)
    for _ in range(2):
        yard.tracker.delete_run(run_id)
    yard.tracker.delete_run("0" * 32)


def test_a_tracking_uri_by_configuration(yard) -> None:
    """The same adapter over HTTP, below a prefix, with a token: here the proxy plays the remote server."""
    remote = MlflowTracker(endpoint_of_uri(f"{yard.url}/mlflow/", {"MLFLOW_TRACKING_TOKEN": "ayt_user"}))
    stranger = MlflowTracker(endpoint_of_uri(f"{yard.url}/mlflow", {}))
    try:
        assert remote.state().kind is TrackerKind.UP
        opened = remote.open_run(opening("y/9.0"))
        assert opened == yard.tracker.open_run(opening("y/9.0"))
        assert remote.put_artifact(opened.run_id, "a.py", Path(__file__)).stored
        assert stranger.state().kind is TrackerKind.DOWN
        with pytest.raises(Denied):
            stranger.open_run(opening("y/9.1"))
    finally:
        remote.close()
        stranger.close()


def test_refusals_are_told_apart(yard) -> None:
    with pytest.raises(NotFound):
        yard.tracker.set_tags("0" * 32, (("a", "b"),))
    with pytest.raises(UserError, match="attempt key"):
        yard.tracker.open_run(opening("it's"))
    away = MlflowTracker(MlflowEndpoint(base_url="http://127.0.0.1:9"))
    try:
        assert away.state().kind is TrackerKind.DOWN
        with pytest.raises(Unavailable):
            away.open_run(opening("y/7.0"))
    finally:
        away.close()


def test_the_worker_carries_an_attempt_from_open_to_finish(yard) -> None:
    worker = TrackingWorker(yard.tracker)
    worker.start()
    results = []
    worker.submit(OpenJob(key="8.0", request=opening("y/8.0")), results.append)
    for step in range(20):
        worker.submit(MetricsJob(key="8.0", metrics=(Metric(key="m", value=step, time_ms=step, step=step),)))
    worker.submit(FinishJob(key="8.0", status=TrackedStatus.FINISHED, end_ms=5, tags=(("cause", "none"),)))
    assert worker.stop(timeout_s=60) == 0
    run_id = results[0].value.run_id
    assert len(yard.tracker.metric_history(run_id, "m")) == 20
    assert worker.state().last_error == ""


def test_files_of_the_embedded_server_are_private(yard) -> None:
    assert yard.folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o077 == 0 for path in yard.folder.iterdir())


def test_a_second_server_on_the_folder_is_refused(yard, tmp_path: Path) -> None:
    second = EmbeddedMlflow(yard.folder, tmp_path / "second.log")
    second.start()
    try:
        deadline_s = monotonic() + 30
        while "another MLflow holds" not in second.state().detail and monotonic() < deadline_s:
            sleep(0.05)
        assert second.state().kind is TrackerKind.DOWN
        assert "another MLflow holds" in second.state().detail
    finally:
        second.stop()
    assert yard.mlflow.state().kind is TrackerKind.UP


def test_a_database_of_another_version_is_copied_and_migrated(tmp_path: Path) -> None:
    """The marker of the installed version differs: MLflow's own upgrade runs, on a copy's original."""
    database, marker = tmp_path / "mlflow.db", tmp_path / "mlflow.version"
    sqlite3.connect(database).close()
    marker.write_text("2.0.0\n")
    mlflow_child.prepare_database(tmp_path)
    assert marker.read_text().strip() == version("mlflow")
    assert (tmp_path / f"mlflow.db.before-{version('mlflow')}").exists()
    with closing(sqlite3.connect(database)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        mode = connection.execute("PRAGMA journal_mode").fetchone()
    assert {"runs", "metrics", "alembic_version"} <= tables
    assert mode == ("wal",)


def test_mlflow_dies_with_a_killed_server(tmp_path: Path) -> None:
    """``kill -9`` of the supervising process leaves no MLflow behind."""
    script = (
        "import sys, time, pathlib\n"
        "from airyard.adapters.mlflow_server import EmbeddedMlflow\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "server = EmbeddedMlflow(folder / 'mlflow', folder / 'log')\n"
        "server.start()\n"
        "while server.pid is None: time.sleep(0.01)\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        deadline_s = monotonic() + 30
        while not (tmp_path / "mlflow" / "mlflow.lock").exists() and monotonic() < deadline_s:
            sleep(0.02)  # the child has asked the kernel before it takes the lock
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        while _alive(child) and monotonic() < deadline_s:
            sleep(0.02)
        assert not _alive(child)
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()


def _alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
