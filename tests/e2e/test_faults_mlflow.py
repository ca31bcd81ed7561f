"""Tracking that dies under a run: the run does not notice, and its metrics arrive."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

TRAIN = """
import os, pathlib, time
import mlflow
gate = pathlib.Path(os.environ["GATE"])
def log(first, last):
    for step in range(first, last):
        mlflow.log_metric("loss", 1 / (step + 1), step=step)
log(0, 5)
print("before", flush=True)
while not gate.exists():
    time.sleep(0.05)
log(5, 10)
print("after", flush=True)
"""


@pytest.fixture(scope="module")
def tracked(make_yard: Callable[..., Yard]) -> Yard:
    return make_yard(tracking="embedded")


def mlflow_pids(yard: Yard) -> list[int]:
    found = []
    for pid, line in yard.processes().items():
        if "mlflow" in line and "airyard.server" not in line and "attempts" not in line:
            found.append(pid)
    return found


def test_a_killed_mlflow_stops_no_run_and_loses_no_metric(tracked: Yard, tmp_path: Path) -> None:
    folder = tracked.home / "train"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    source = {"type": "snapshot", "snapshot": {"root_path": str(folder)}}
    gate = tmp_path / "gate"
    path = tracked.file(
        "python train.py",
        code_source=source,
        env_variables={"GATE": str(gate)},
        parameters={"model": {"depth": 4}},
    )
    run_id = int(tracked.data("run", path)["run_id"])
    watching = tracked.start("watch", str(run_id))
    assert watching.stdout is not None
    assert watching.stdout.readline() == "before\n"
    pids = mlflow_pids(tracked)
    assert pids
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    gate.touch()
    out, err = watching.communicate(timeout=120)
    assert watching.returncode == 0, err
    assert out.startswith("after\n")
    run = tracked.ended(run_id)
    assert len(run["attempts"]) == 1

    def loss() -> dict[str, float]:
        done = tracked.call("-o", "json", "metrics", str(run_id), "--key", "loss")
        if done.returncode == 5:
            return {}  # MLflow is still away, and says so
        (found,) = json.loads(done.stdout)["data"]["runs"]
        return found["metrics"].get("loss") or {}

    wait_for(lambda: loss().get("step") == 9, 120, "the metrics logged while MLflow was down")
    assert loss()["value"] == pytest.approx(0.1)
    wait_for(lambda: tracked.get(run_id)["tracking"]["state"] == "CLOSED", 60, "the end of the tracked run")
