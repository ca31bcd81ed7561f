"""Join neighbouring metric writes of one run into one request, so that a long backlog is soon replayed.

Owns: which writes may be joined without changing what MLflow stores. Pure; must not know: files, HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airyard.adapters.mlflow_limits import BATCH_CHARACTERS, METRICS_PER_BATCH

METRIC = "/api/2.0/mlflow/runs/log-metric"
BATCH = "/api/2.0/mlflow/runs/log-batch"

_METRIC_FIELDS = frozenset({"key", "value", "timestamp", "step"})
_RUN_FIELDS = frozenset({"run_id", "run_uuid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to send for the first ``writes`` of a backlog."""

    path: str
    body: bytes
    writes: int


def first_request(backlog: Sequence[tuple[str, bytes]]) -> Request:
    """Join as many of the first (path, body) writes as may be: metrics of one run within MLflow's limits."""
    path, body = backlog[0]
    run_id, metrics = _metrics_of(path, body)
    if run_id is None:
        return Request(path=path, body=body, writes=1)
    joined, characters, taken = list(metrics), len(body), 1
    for next_path, next_body in backlog[1:]:
        next_run_id, more = _metrics_of(next_path, next_body)
        characters += len(next_body)
        if (
            next_run_id != run_id
            or len(joined) + len(more) > METRICS_PER_BATCH
            or characters > BATCH_CHARACTERS
        ):
            break
        joined.extend(more)
        taken += 1
    if taken == 1:
        return Request(path=path, body=body, writes=1)
    return Request(path=BATCH, body=json.dumps({"run_id": run_id, "metrics": joined}).encode(), writes=taken)


def _metrics_of(path: str, body: bytes) -> tuple[str | None, list[dict[str, Any]]]:
    """Return the run and the points of a write that stores points and nothing else, else None."""
    if path not in (METRIC, BATCH):
        return None, []
    try:
        request = json.loads(body)
    except ValueError:
        return None, []
    if not isinstance(request, dict) or not _one_run(request):
        return None, []
    run_id = request.get("run_id") or request.get("run_uuid")
    fields = {name: value for name, value in request.items() if name not in _RUN_FIELDS}
    if path == METRIC:
        points = [fields]
    elif not (fields.get("params") or fields.get("tags")) and fields.keys() <= {"metrics", "params", "tags"}:
        points = fields.get("metrics") or []
    else:
        return None, []
    if not isinstance(points, list) or not all(_is_plain(point) for point in points):
        return None, []
    return run_id, [{"step": 0} | point for point in points]


def _one_run(request: dict[str, Any]) -> bool:
    named = {request[name] for name in _RUN_FIELDS if isinstance(request.get(name), str) and request[name]}
    return len(named) == 1


def _is_plain(point: object) -> bool:
    """Whether a point has what a batch must have and no more (a model, a data set)."""
    if not isinstance(point, dict) or not point.keys() <= _METRIC_FIELDS:
        return False
    return {"key", "value", "timestamp"} <= point.keys()
