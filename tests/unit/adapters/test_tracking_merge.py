"""Joining spooled writes: only neighbouring plain points of one run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airyard.adapters.tracking_merge import BATCH, METRIC, first_request


def metric(run_id: str, step: int, **more: Any) -> tuple[str, bytes]:
    body = {
        "run_uuid": run_id,
        "run_id": run_id,
        "key": "m",
        "value": 0.5,
        "timestamp": 7,
        "step": step,
    } | more
    return METRIC, json.dumps(body).encode()


def batch(run_id: str, *steps: int, **more: Any) -> tuple[str, bytes]:
    points = [{"key": "m", "value": "NaN", "timestamp": 7, "step": step} for step in steps]
    return BATCH, json.dumps({"run_id": run_id, "metrics": points} | more).encode()


def test_points_of_one_run_are_joined_in_order() -> None:
    request = first_request([metric("a", 1), batch("a", 2, 3), metric("a", 4), metric("b", 5)])
    assert (request.path, request.writes) == (BATCH, 3)
    body = json.loads(request.body)
    assert body["run_id"] == "a"
    assert [point["step"] for point in body["metrics"]] == [1, 2, 3, 4]
    assert body["metrics"][1]["value"] == "NaN"


@pytest.mark.parametrize(
    "second",
    [
        metric("b", 2),
        metric("a", 2, model_id="m-1"),
        batch("a", 2, tags=[{"key": "t", "value": "1"}]),
        ("/api/2.0/mlflow/runs/set-tag", b'{"run_id": "a", "key": "t", "value": "1"}'),
        (METRIC, b"not json"),
        (METRIC, b'{"run_id": "a", "run_uuid": "b", "key": "m", "value": 1, "timestamp": 1}'),
        (METRIC, b'{"run_id": "a", "key": "m", "value": 1}'),
        (BATCH, b'{"run_id": "a", "metrics": 5}'),
    ],
)
def test_anything_else_ends_the_joining_and_goes_alone_unchanged(second: tuple[str, bytes]) -> None:
    first = metric("a", 1)
    assert (first_request([first, second]).path, first_request([first, second]).body) == first
    alone = first_request([second, first])
    assert (alone.path, alone.body, alone.writes) == (*second, 1)


def test_the_limit_of_a_batch_is_kept() -> None:
    request = first_request([batch("a", *range(600)), batch("a", *range(400)), metric("a", 1)])
    assert request.writes == 2
    assert len(json.loads(request.body)["metrics"]) == 1000
