"""The tracker on MLflow's REST API 2.0.

Owns: requests to an MLflow server, embedded or remote. Must not know: the mlflow package (importing it costs
seconds and hundreds of MB), attempts, the control loop. Blocking; used from worker threads; safe from several
at once.

Source: MLflow 3.17 REST API, ``/api/2.0/mlflow`` and ``/api/2.0/mlflow-artifacts``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from airyard.adapters import mlflow_limits as limits
from airyard.adapters.mlflow_endpoint import MlflowEndpoint, refusal, unreachable
from airyard.core.errors import AiryardError, NotFound, UserError
from airyard.ports.tracker import (
    ArtifactStored,
    Metric,
    OpenRun,
    Pairs,
    TrackedRun,
    TrackedStatus,
    TrackerKind,
    TrackerState,
)

KEY_TAG = "airyard.attempt_key"
_API = "/api/2.0/mlflow/"
_ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts/"
_KEY = re.compile(r"[\w.:/-]{1,250}")
_CHUNK_BYTES = 1 << 20
_HISTORY_PAGE = 25_000


class MlflowTracker:
    """Tracks attempts as MLflow runs.

    ``supervised_state`` is given for the embedded server, whose supervisor knows more than a request can
    tell.
    """

    def __init__(
        self, endpoint: MlflowEndpoint, *, supervised_state: Callable[[], TrackerState] | None = None
    ) -> None:
        self._endpoint = endpoint
        self._supervised_state = supervised_state
        self._client = endpoint.client()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def state(self) -> TrackerState:
        """Return the supervisor's word, or that of one request of at most 2 s."""
        if self._supervised_state is not None:
            return self._supervised_state()
        uri = self._endpoint.name
        try:
            answer = self._client.get("/health", timeout=2.0)
        except httpx.HTTPError as error:
            return TrackerState(
                kind=TrackerKind.DOWN, detail=str(unreachable(self._endpoint, error)), uri=uri
            )
        if answer.status_code >= 400:
            detail = str(refusal(self._endpoint, answer, "say that it is healthy"))
            return TrackerState(kind=TrackerKind.DOWN, detail=detail, uri=uri)
        return TrackerState(kind=TrackerKind.UP, uri=uri)

    def open_run(self, request: OpenRun) -> TrackedRun:
        """Find the run by its key tag, else make it; then write parameters and tags (again)."""
        experiment_id = self._experiment(request.experiment, request.artifact_location)
        run_id = self._find(experiment_id, request.key) or self._create(experiment_id, request)
        params, tags = limits.fit_run(request.params, request.tags)
        self._log(run_id, params=_pairs(params), tags=_pairs(tags))
        return TrackedRun(experiment_id=experiment_id, run_id=run_id)

    def log_metrics(self, run_id: str, metrics: tuple[Metric, ...]) -> None:
        """Send the points in batches of at most 1000."""
        self._log(run_id, metrics=[_metric(metric) for metric in metrics])

    def set_tags(self, run_id: str, tags: Pairs) -> None:
        """Set tags in batches of at most 100; too long values are cut, visibly."""
        _, fitted = limits.fit_run((), tags)
        self._log(run_id, tags=_pairs(fitted))

    def put_artifact(self, run_id: str, artifact_path: str, source: Path) -> ArtifactStored:
        """Stream one file through MLflow's artifact proxy.

        A run whose artifacts MLflow does not proxy (``s3://...`` straight from the client) is not an error:
        the reason comes back. Raises: ``OSError`` when ``source`` cannot be read.
        """
        artifact_uri = str(self._run(run_id)["info"].get("artifact_uri", ""))
        parts = urlsplit(artifact_uri)
        if parts.scheme != "mlflow-artifacts" or parts.netloc:
            reason = f"MLflow does not proxy the artifacts of run {run_id}, they are at {artifact_uri or '?'}"
            return ArtifactStored(stored=False, reason=reason)
        clean = artifact_path.strip("/")
        if not clean or any(part in ("", ".", "..") for part in clean.split("/")):
            raise UserError(f"{artifact_path!r} is no artifact path", code="BAD_ARTIFACT_PATH")
        url = _ARTIFACTS + quote(f"{parts.path.strip('/')}/{clean}")
        with source.open("rb") as file:
            # Stores that need a length up front (S3) can stream then; a file that grows is sent as it was.
            size = source.stat().st_size
            headers = {"Content-Length": str(size)}
            self._send("PUT", url, f"store artifact {clean}", content=_chunks(file, size), headers=headers)
        return ArtifactStored(stored=True)

    def finish_run(self, run_id: str, status: TrackedStatus, end_ms: int) -> None:
        """Set status and end time."""
        body = {"run_id": run_id, "status": status.value, "end_time": end_ms}
        self._call("POST", "runs/update", f"end run {run_id}", json_body=body)

    def metrics(self, run_id: str) -> Mapping[str, Metric]:
        """Return the latest points of the run."""
        points = [_point(item) for item in self._run(run_id).get("data", {}).get("metrics", ())]
        return {point.key: point for point in points}

    def metric_history(self, run_id: str, key: str) -> tuple[Metric, ...]:
        """Page through the history of one metric."""
        points: list[Metric] = []
        query = {"run_id": run_id, "metric_key": key, "max_results": str(_HISTORY_PAGE)}
        while True:
            page = self._call("GET", "metrics/get-history", f"read metric {key} of run {run_id}", query=query)
            points.extend(_point(item) for item in page.get("metrics", ()))
            if not page.get("next_page_token"):
                return tuple(points)
            query["page_token"] = page["next_page_token"]

    def delete_run(self, run_id: str) -> None:
        """Delete the run; gone already is fine."""
        try:
            self._call("POST", "runs/delete", f"delete run {run_id}", json_body={"run_id": run_id})
        except NotFound:
            return

    def _experiment(self, name: str, artifact_location: str | None) -> str:
        found = self._experiment_named(name)
        if found is None:
            body = {"name": name} | ({"artifact_location": artifact_location} if artifact_location else {})
            try:
                made = self._call("POST", "experiments/create", f"create experiment {name}", json_body=body)
                return str(made["experiment_id"])
            except UserError as error:
                if error.details.get("mlflow_error_code") != "RESOURCE_ALREADY_EXISTS":
                    raise
                found = self._experiment_named(name)  # made by somebody else between the two requests
                if found is None:
                    raise
        if found.get("lifecycle_stage") == "deleted":
            raise UserError(
                f"experiment {name} is deleted in MLflow at {self._endpoint.name}",
                code="EXPERIMENT_DELETED",
                fix="restore the experiment in MLflow, or use another experiment_name",
            )
        return str(found["experiment_id"])

    def _experiment_named(self, name: str) -> dict[str, Any] | None:
        try:
            query = {"experiment_name": name}
            answer = self._call("GET", "experiments/get-by-name", f"find experiment {name}", query=query)
        except NotFound:
            return None
        found: dict[str, Any] = answer["experiment"]
        return found

    def _find(self, experiment_id: str, key: str) -> str | None:
        if not _KEY.fullmatch(key):  # MLflow's filter language has no way to quote a quote
            raise UserError(
                f"{key!r} is no attempt key: 1 to 250 letters, digits and ._:/-", code="BAD_ATTEMPT_KEY"
            )
        body = {
            "experiment_ids": [experiment_id],
            "filter": f"tags.`{KEY_TAG}` = '{key}'",
            "run_view_type": "ACTIVE_ONLY",
            "max_results": 1,
            "order_by": ["attributes.start_time ASC"],
        }
        answer = self._call("POST", "runs/search", f"find the run of attempt {key}", json_body=body)
        runs = answer.get("runs", ())
        return str(runs[0]["info"]["run_id"]) if runs else None

    def _create(self, experiment_id: str, request: OpenRun) -> str:
        tags = ((KEY_TAG, request.key), ("mlflow.user", request.user), ("mlflow.source.type", "JOB"))
        body = {
            "experiment_id": experiment_id,
            "run_name": request.run_name,
            "start_time": request.start_ms,
            "user_id": request.user,
            "tags": _pairs(tags),
        }
        answer = self._call("POST", "runs/create", f"create the run of attempt {request.key}", json_body=body)
        return str(answer["run"]["info"]["run_id"])

    def _run(self, run_id: str) -> dict[str, Any]:
        answer = self._call("GET", "runs/get", f"read run {run_id}", query={"run_id": run_id})
        run: dict[str, Any] = answer["run"]
        return run

    def _log(
        self,
        run_id: str,
        *,
        metrics: list[dict[str, Any]] | None = None,
        params: list[dict[str, Any]] | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> None:
        """Send ``log-batch`` requests; one kind each, so that their limits do not add up."""
        kinds = (
            ("params", params, limits.PARAMS_PER_BATCH),
            ("tags", tags, limits.TAGS_PER_BATCH),
            ("metrics", metrics, limits.METRICS_PER_BATCH),
        )
        for kind, items, count in kinds:
            for batch in limits.batches(items or (), count):
                body = {"run_id": run_id, kind: batch}
                self._call(
                    "POST", "runs/log-batch", f"store {len(batch)} {kind} of run {run_id}", json_body=body
                )

    def _call(
        self,
        method: str,
        path: str,
        what: str,
        *,
        json_body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        content = None if json_body is None else json.dumps(json_body, allow_nan=False).encode()
        headers = {"Content-Type": "application/json"} if content is not None else {}
        answer = self._send(method, _API + path, what, content=content, query=query, headers=headers)
        try:
            body = answer.json() if answer.content else {}
        except ValueError as error:
            raise AiryardError(
                f"{self._endpoint.name} answered {path} without JSON; is it an MLflow server?",
                code="NOT_MLFLOW",
            ) from error
        return body if isinstance(body, dict) else {}

    def _send(
        self,
        method: str,
        path: str,
        what: str,
        *,
        content: bytes | Iterator[bytes] | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        try:
            answer = self._client.request(method, path, content=content, params=query, headers=headers)
        except httpx.HTTPError as error:
            raise unreachable(self._endpoint, error) from error
        if answer.status_code >= 400:
            raise refusal(self._endpoint, answer, what)
        return answer


def _pairs(pairs: Pairs) -> list[dict[str, Any]]:
    return [{"key": key, "value": value} for key, value in pairs]


def _metric(metric: Metric) -> dict[str, Any]:
    value: float | str = metric.value
    if not math.isfinite(metric.value):  # JSON has no such numbers; MLflow's own client sends these words
        value = "NaN" if math.isnan(metric.value) else "Infinity" if metric.value > 0 else "-Infinity"
    return {
        "key": limits.fit_key(metric.key),
        "value": value,
        "timestamp": metric.time_ms,
        "step": metric.step,
    }


def _point(item: Mapping[str, Any]) -> Metric:
    return Metric(
        key=str(item["key"]),
        value=float(item["value"]),
        time_ms=int(item.get("timestamp", 0)),
        step=int(item.get("step", 0)),
    )


def _chunks(file: Any, size: int) -> Iterator[bytes]:
    left = size
    while left > 0:
        data: bytes = file.read(min(_CHUNK_BYTES, left))
        if not data:
            return
        left -= len(data)
        yield data
