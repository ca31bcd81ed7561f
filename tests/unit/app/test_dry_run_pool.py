"""Which pool a dry run names for a run that would wait."""

from __future__ import annotations

import pytest

from airyard.app.dry_run import Admitted, dry_run_document
from airyard.core.commands import SubmitRun
from core_samples import RUN
from core_yard import workload


@pytest.mark.parametrize(
    ("pools", "named"),
    [
        ({"a": "h100", "b": "h100"}, "h100"),
        ({"a": "h100", "b": "GPU_8xH100"}, "GPU_8xH100"),
        ({}, "GPU_8xH100"),
    ],
)
def test_a_run_that_would_wait_names_the_only_pool_that_could_serve_it(
    pools: dict[str, str], named: str
) -> None:
    command = SubmitRun(owner="ada", workload=workload(), idempotency_key="k")
    found = dry_run_document(
        command, Admitted(run=RUN, existing=True), None, pools, (), environment_cached=None
    )
    assert found["pool"] == named
