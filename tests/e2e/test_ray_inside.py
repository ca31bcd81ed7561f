"""Ray clusters inside runs: two beside each other on one machine. They install Ray, so they are slow."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.yard import Yard

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ray-in-gang" / "workload.yaml"


def test_two_clusters_beside_each_other(make_yard: Callable[..., Yard]) -> None:
    yard = make_yard()
    # As on a machine whose own Ray is set up by variables: none of it may reach the run.
    yard.set(RAY_ADDRESS="192.0.2.1:6379", RAY_TMPDIR="/nonexistent")
    ids = [int(yard.data("run", "-f", str(EXAMPLE))["run_id"]) for _ in range(2)]
    with ThreadPoolExecutor() as pool:
        runs = list(pool.map(lambda run_id: yard.ended(run_id, timeout=300), ids))
    assert [run["outcome"] for run in runs] == ["SUCCEEDED", "SUCCEEDED"], runs
    for run_id in ids:
        assert "squares [0, 1, 4, 9, 16, 25, 36, 49] from 2 Ray nodes" in yard.ok("logs", str(run_id))
