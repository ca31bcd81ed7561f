"""Which writes to MLflow tell of progress."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airyard.server.metric_signs import progress_in

BATCH, METRIC = "runs/log-batch", "runs/log-metric"


@pytest.mark.parametrize(
    ("operation", "body", "found"),
    [
        (METRIC, {"key": "loss", "step": 7}, (True, 7)),
        (METRIC, {"key": "loss"}, (True, 0)),
        (METRIC, {"key": "system/gpu_0_power", "step": 9}, (False, None)),
        (BATCH, {"metrics": [{"key": "a", "step": "3"}, {"key": "b", "step": 12}]}, (True, 12)),
        (BATCH, {"metrics": [{"key": "system/cpu", "step": 40}, {"key": "b", "step": 2}]}, (True, 2)),
        (BATCH, {"metrics": [{"key": "system/cpu", "step": 40}]}, (False, None)),
        (BATCH, {"metrics": [], "params": [{"key": "lr", "value": "1"}]}, (False, None)),
        (BATCH, {"params": [{"key": "lr", "value": "1"}]}, (False, None)),
        (BATCH, {"metrics": [{"key": "a", "step": -5}, {"key": "b", "step": "x"}, 3]}, (True, 0)),
        (BATCH, {"metrics": {"key": "a"}}, (False, None)),
        (METRIC, [1], (False, None)),
        ("runs/set-tag", {"key": "loss", "step": 7}, (False, None)),
    ],
)
def test_metrics_of_user_code_are_progress(operation: str, body: Any, found: tuple[bool, int | None]) -> None:
    assert progress_in(operation, json.dumps(body).encode()) == found


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 20_000])
def test_what_cannot_be_read_is_none(body: bytes) -> None:
    assert progress_in(BATCH, body) == (False, None)


def test_a_very_large_batch_counts_unread() -> None:
    assert progress_in(BATCH, b" " * 300_000) == (True, None)
