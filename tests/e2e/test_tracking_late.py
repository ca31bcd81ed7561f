"""An MLflow that hangs when an attempt starts: what user code logs is in the run when MLflow is back."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from e2e.yard import Yard, wait_for

pytestmark = pytest.mark.e2e

LOGGING = """
import os, mlflow
mlflow.log_param("lr", 0.1)
for step in range(3):
    mlflow.log_metric("loss", 1.0 / (step + 1), step=step)
print("tracking is", os.environ["AIRYARD_TRACKING"], flush=True)
raise SystemExit(3)
"""


def test_a_run_that_started_and_failed_without_mlflow_is_tracked_in_the_end(
    make_yard: Callable[..., Yard],
) -> None:
    yard = make_yard(tracking="embedded")
    wait_for(lambda: yard.data("status")["mlflow"]["kind"] == "up", 90, "MLflow")
    pid = next(pid for pid, line in yard.processes().items() if "airyard.adapters.mlflow_child" in line)
    os.kill(pid, signal.SIGSTOP)
    try:
        run_id = yard.submit(f"{shlex.quote(sys.executable)} -c {shlex.quote(LOGGING)}")
        run = yard.until(run_id, lambda run: run["state"] == "ENDED", 90)
        assert run["outcome"] == "FAILED"
        assert "tracking is deferred" in yard.ok("logs", str(run_id))
        assert run["attempts"][0]["tracking"]["state"] == "DEFERRED"
    finally:
        os.kill(pid, signal.SIGCONT)
    run = yard.until(run_id, lambda run: run["attempts"][0]["tracking"]["state"] == "CLOSED", 60)
    tracked = run["attempts"][0]["tracking"]
    metric = wait_for(lambda: read(yard, f"/api/v1/runs/{run_id}/metrics")["metrics"].get("loss"), 30, "loss")
    assert (metric["value"], metric["step"]) == (1 / 3, 2)
    found = read(yard, f"/mlflow/api/2.0/mlflow/runs/get?run_id={tracked['run_id']}")["run"]
    assert found["info"]["status"] == "FAILED"
    assert {"key": "lr", "value": "0.1"} in found["data"]["params"]
    other = read(yard, "/mlflow/api/2.0/mlflow/runs/search", {"experiment_ids": ["0"]})
    assert not other.get("runs"), "a stray run outside the attempt's experiment"


def read(yard: Yard, path: str, body: dict[str, Any] | None = None) -> Any:
    """Ask the yard's server with the owner's token."""
    server = yard.home / "server"
    url = json.loads((server / "endpoint.json").read_text())["url"]
    headers = {"Authorization": f"Bearer {(server / 'token').read_text().strip()}"}
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=60) as answer:
        return json.load(answer)
