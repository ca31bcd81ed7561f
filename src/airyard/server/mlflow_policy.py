"""What a request to MLflow does, and whether an attempt's token may do it.

Owns: the reading of MLflow's paths and the rules. Pure; must not know: HTTP libraries, tokens, the upstream.

A user's token may do all that MLflow offers but for the features that make the server's machine act (its
assistant, AI gateway, jobs and webhooks). An attempt's token may read and create, and write only to its own
run, to the runs of its own experiment and to the runs it created itself, which carry a tag that the proxy
sets. It may delete nothing else. Model files and traces name no run and are open to every attempt. How an
attempt's own run ends is Airyard's to say: a status that user code gives it is taken and left out, so that no
late or replayed one can replace the true end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from airyard.core.tracking_alias import TrackedIds

CREATED_BY_TAG = "airyard.created_by_attempt"

API = re.compile(r"^(?:ajax-)?api/(\d\.\d)/mlflow/(.+)$")
ARTIFACT = re.compile(
    r"^(?:ajax-)?api/2\.0/mlflow-artifacts/(?:artifacts|mpu/(?:create|complete|abort))/(.+)$"
)
RUN_FOLDER = re.compile(r"(?:^|/)([0-9a-f]{32})/artifacts(?:/|$)")
_MODEL_FOLDER = re.compile(r"(?:^|/)models/m-[0-9a-f]{32}/artifacts(?:/|$)")
_FORBIDDEN = re.compile(
    r"^(?:gateway/|(?:ajax-)?api/3\.0/jobs(?:/|$)|(?:ajax-)?api/\d\.\d/mlflow/(?:assistant(?:/|$)|gateway-proxy))"
)
_FORBIDDEN_WRITES = re.compile(
    r"^(?:ajax-)?api/\d\.\d/mlflow/(?:webhooks|gateway/|prompt-optimization|scorers/online-config|workspaces|users)"
)
_SPOOLED = frozenset(
    {
        "runs/log-metric",
        "runs/log-batch",
        "runs/log-parameter",
        "runs/set-tag",
        "runs/delete-tag",
        "runs/log-inputs",
        "runs/update",
    }
)
_READING_POSTS = re.compile(
    r"(?:/search|/search-datasets|/batchGetInfos|/calculate-filter-correlation|traces/metrics"
    r"|/presigned-download-url|/get-latest-versions)$"
)
_CREATING = re.compile(
    r"^(?:runs/create|experiments/create|experiments/set-experiment-tag"
    r"|registered-models/(?:create|update|set-tag|alias)|model-versions/(?:create|update|set-tag)"
    r"|logged-models(?:/[^/]+(?:/params|/tags)?)?|traces(?:/[^/]+(?:/tags|/assessments(?:/[^/]+)?)?)?"
    r"|datasets/create|datasets/[^/]+/(?:records|tags|add-experiments))$"
)
_ENDING = frozenset({"status", "end_time"})
_NAMING = frozenset({"run_id", "run_uuid"})
_RUN_WRITES = re.compile(r"^(?:runs/.+|upload-artifact|artifacts/presigned-upload-url|traces/link-to-run)$")


class Effect(StrEnum):
    """What a request does, as far as the rules tell requests apart."""

    READ = "read"
    CREATE = "create"
    RUN_WRITE = "run_write"
    OTHER_WRITE = "other_write"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """A classified request. ``run_id`` is set where the path names it; else the body does."""

    effect: Effect
    operation: str = ""
    run_id: str | None = None
    spooled: bool = False

    @property
    def creates_experiment(self) -> bool:
        """Whether it makes an experiment, which may name a place for artifacts."""
        return self.operation == "experiments/create"

    @property
    def creates_run(self) -> bool:
        """Whether it makes a run, which is then tagged with its maker."""
        return self.operation == "runs/create"

    @property
    def may_end_run(self) -> bool:
        """Whether it may change a run's status."""
        return self.operation == "runs/update"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptScope:
    """What an attempt's token is bound to; ids are None while its tracked run does not exist yet.

    ``alias`` is what its user code may call that run from before it existed.
    """

    key: str
    run_id: str | None
    experiment_id: str | None
    alias: TrackedIds | None = None

    @property
    def real(self) -> TrackedIds | None:
        """The ids to put in the alias's place, once there are any."""
        if not self.run_id or not self.experiment_id:
            return None
        return TrackedIds(run_id=self.run_id, experiment_id=self.experiment_id)

    def owns(self, run_id: str) -> bool:
        """Whether this is the attempt's own run, by its id or its alias."""
        return run_id == self.run_id or (self.alias is not None and run_id == self.alias.run_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What MLflow says of a run that is about to be written to."""

    experiment_id: str
    created_by: str | None
    """The key of the attempt whose user code made it."""
    created_by_user: str | None = None
    """The user who made it by hand."""
    airyard_run: int | None = None
    """Which run of Airyard it is."""


def purpose_of(method: str, path: str) -> Purpose:
    """Classify a request; ``path`` is decoded and relative to MLflow's root."""
    reading = method in ("GET", "HEAD", "OPTIONS")
    if _FORBIDDEN.match(path) or (not reading and _FORBIDDEN_WRITES.match(path)):
        return Purpose(effect=Effect.FORBIDDEN)
    if reading:
        return Purpose(effect=Effect.READ)
    if match := ARTIFACT.match(path):
        return _artifact_purpose(method, match[1])
    if path == "graphql":
        return Purpose(effect=Effect.READ)
    if path == "v1/traces" and method == "POST":
        return Purpose(effect=Effect.CREATE, operation="v1/traces")
    match = API.match(path)
    operation = match[2] if match else ""
    if method == "POST" and operation and _READING_POSTS.search(operation):
        return Purpose(effect=Effect.READ, operation=operation)
    if method in ("POST", "PATCH") and _CREATING.match(operation):
        return Purpose(effect=Effect.CREATE, operation=operation)
    if method == "POST" and _RUN_WRITES.match(operation):
        spooled = operation in _SPOOLED and match is not None and match[1] == "2.0"
        return Purpose(effect=Effect.RUN_WRITE, operation=operation, spooled=spooled)
    return Purpose(effect=Effect.OTHER_WRITE, operation=operation)


def _artifact_purpose(method: str, folder: str) -> Purpose:
    if match := RUN_FOLDER.search(folder):
        return Purpose(effect=Effect.RUN_WRITE, operation="artifact", run_id=match[1])
    if method != "DELETE" and _MODEL_FOLDER.search(folder):
        return Purpose(effect=Effect.CREATE, operation="artifact")
    return Purpose(effect=Effect.OTHER_WRITE, operation="artifact")


def run_ids_of(body: bytes, query: Mapping[str, str]) -> frozenset[str]:
    """Return every run that a JSON body or a query names; MLflow takes either of two names for it."""
    named: Mapping[str, Any] = {}
    try:
        parsed = json.loads(body) if body else {}
        named = parsed if isinstance(parsed, dict) else {}
    except ValueError:
        pass  # MLflow will refuse it; without a run named, the rules do too
    values = [source.get(name) for source in (named, query) for name in ("run_id", "run_uuid")]
    return frozenset(value for value in values if isinstance(value, str) and value)


def may_write_run(scope: AttemptScope, run_id: str, facts: RunFacts | None) -> bool:
    """Whether the attempt may write to ``run_id``; without ``facts`` only its own run is certain."""
    if scope.owns(run_id):
        return True
    if facts is None:
        return False
    return facts.created_by == scope.key or (
        scope.experiment_id is not None and facts.experiment_id == scope.experiment_id
    )


def is_path_of_server(body: bytes) -> bool:
    """Whether an ``experiments/create`` puts artifacts into a folder of MLflow's machine: not for an attempt to say.

    A body that cannot be read counts as one; MLflow would refuse it anyway.
    """
    try:
        location = json.loads(body).get("artifact_location") or ""
    except (ValueError, AttributeError):
        return True
    return bool(location) and (
        not isinstance(location, str) or urlsplit(location).scheme.lower() in ("", "file")
    )


def with_maker(body: bytes, attempt_key: str) -> bytes:
    """Return the body of a ``runs/create`` with the maker's tag, replacing one that the caller sent."""
    try:
        request = json.loads(body)
    except ValueError:
        return body
    if not isinstance(request, dict):
        return body
    tags = request.get("tags") if isinstance(request.get("tags"), list) else []
    kept = [tag for tag in tags or [] if not (isinstance(tag, dict) and tag.get("key") == CREATED_BY_TAG)]
    request["tags"] = [*kept, {"key": CREATED_BY_TAG, "value": attempt_key}]
    return json.dumps(request).encode()


def without_ending(scope: AttemptScope, body: bytes) -> bytes | None:
    """Return the body of an attempt's ``runs/update`` without a status for its own run; None: nothing else is in it.

    Other runs of its token, such as children, end by user code alone: their bodies come back as they are.
    """
    try:
        request = json.loads(body)
    except ValueError:
        return body
    if not isinstance(request, dict) or not any(scope.owns(run_id) for run_id in run_ids_of(body, {})):
        return body
    kept = {name: value for name, value in request.items() if name not in _ENDING and value is not None}
    return json.dumps(kept).encode() if kept.keys() - _NAMING else None
