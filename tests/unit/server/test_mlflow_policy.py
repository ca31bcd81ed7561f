"""What an attempt's token may do with MLflow, as tables."""

from __future__ import annotations

import json

import pytest

from airyard.core.tracking_alias import alias_of
from airyard.server.mlflow_policy import (
    CREATED_BY_TAG,
    AttemptScope,
    Effect,
    RunFacts,
    is_path_of_server,
    may_write_run,
    purpose_of,
    run_ids_of,
    with_maker,
    without_ending,
)

RUN = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("method", "path", "effect"),
    [
        ("GET", "", Effect.READ),
        ("GET", "static-files/static/js/main.js", Effect.READ),
        ("GET", "api/2.0/mlflow/runs/get", Effect.READ),
        ("POST", "api/2.0/mlflow/runs/search", Effect.READ),
        ("POST", "ajax-api/2.0/mlflow/experiments/search", Effect.READ),
        ("POST", "ajax-api/3.0/mlflow/traces/search", Effect.READ),
        ("POST", "graphql", Effect.READ),
        ("POST", "api/2.0/mlflow/runs/create", Effect.CREATE),
        ("POST", "api/2.0/mlflow/experiments/create", Effect.CREATE),
        ("POST", "api/2.0/mlflow/logged-models", Effect.CREATE),
        ("PATCH", "api/2.0/mlflow/logged-models/m-1/tags", Effect.CREATE),
        ("POST", "api/2.0/mlflow/model-versions/create", Effect.CREATE),
        ("POST", "v1/traces", Effect.CREATE),
        ("POST", "api/2.0/mlflow/runs/log-batch", Effect.RUN_WRITE),
        ("POST", "ajax-api/2.0/mlflow/runs/update", Effect.RUN_WRITE),
        ("POST", "api/2.0/mlflow/runs/delete", Effect.RUN_WRITE),
        ("POST", "ajax-api/2.0/mlflow/upload-artifact", Effect.RUN_WRITE),
        ("PUT", f"api/2.0/mlflow-artifacts/artifacts/1/{RUN}/artifacts/a", Effect.RUN_WRITE),
        ("DELETE", f"api/2.0/mlflow-artifacts/artifacts/1/{RUN}/artifacts/a", Effect.RUN_WRITE),
        ("POST", f"api/2.0/mlflow-artifacts/mpu/create/1/{RUN}/artifacts/a", Effect.RUN_WRITE),
        ("PUT", f"api/2.0/mlflow-artifacts/artifacts/1/models/m-{RUN}/artifacts/MLmodel", Effect.CREATE),
        ("DELETE", f"api/2.0/mlflow-artifacts/artifacts/1/models/m-{RUN}/artifacts/a", Effect.OTHER_WRITE),
        ("PUT", "api/2.0/mlflow-artifacts/artifacts/x", Effect.OTHER_WRITE),
        ("POST", "api/2.0/mlflow/experiments/delete", Effect.OTHER_WRITE),
        ("DELETE", "api/2.0/mlflow/registered-models/delete", Effect.OTHER_WRITE),
        ("DELETE", "api/2.0/mlflow/logged-models/m-1", Effect.OTHER_WRITE),
        ("POST", "anything/else", Effect.OTHER_WRITE),
        ("GET", "ajax-api/3.0/mlflow/assistant/config", Effect.FORBIDDEN),
        ("POST", "ajax-api/3.0/jobs/", Effect.FORBIDDEN),
        ("POST", "gateway/x/mlflow/invocations", Effect.FORBIDDEN),
        ("GET", "ajax-api/2.0/mlflow/gateway-proxy", Effect.FORBIDDEN),
        ("POST", "api/2.0/mlflow/webhooks", Effect.FORBIDDEN),
        ("GET", "api/2.0/mlflow/webhooks", Effect.READ),
    ],
)
def test_effects(method: str, path: str, effect: Effect) -> None:
    assert purpose_of(method, path).effect is effect


def test_only_small_idempotent_writes_are_spooled() -> None:
    spooled = {"log-metric", "log-batch", "log-parameter", "set-tag", "delete-tag", "log-inputs", "update"}
    every = spooled | {"create", "delete", "restore", "search", "log-model", "outputs"}
    assert {name for name in every if purpose_of("POST", f"api/2.0/mlflow/runs/{name}").spooled} == spooled
    assert not purpose_of("POST", "api/3.0/mlflow/runs/log-metric").spooled
    assert not purpose_of("GET", "api/2.0/mlflow/runs/log-metric").spooled


def test_every_named_run_counts() -> None:
    body = json.dumps({"run_id": "a", "run_uuid": "b"}).encode()
    assert run_ids_of(body, {"run_uuid": "c"}) == {"a", "b", "c"}
    assert run_ids_of(b"not json", {}) == set()
    assert run_ids_of(b"[1]", {}) == set()


@pytest.mark.parametrize(
    ("run_id", "facts", "allowed"),
    [
        ("own", None, True),
        ("other", None, False),
        ("other", RunFacts(experiment_id="9", created_by=None), False),
        ("other", RunFacts(experiment_id="1", created_by=None), True),
        ("other", RunFacts(experiment_id="9", created_by="12.0"), True),
        ("other", RunFacts(experiment_id="9", created_by="12.1"), False),
    ],
)
def test_an_attempt_writes_to_its_own(run_id: str, facts: RunFacts | None, allowed: bool) -> None:
    scope = AttemptScope(key="12.0", run_id="own", experiment_id="1")
    assert may_write_run(scope, run_id, facts) is allowed


def test_an_attempt_without_a_run_owns_nothing_yet() -> None:
    scope = AttemptScope(key="12.0", run_id=None, experiment_id=None)
    assert not may_write_run(scope, "x", RunFacts(experiment_id="1", created_by=None))


def test_the_makers_tag_cannot_be_forged() -> None:
    sent = {
        "experiment_id": "1",
        "tags": [{"key": CREATED_BY_TAG, "value": "99.0"}, {"key": "a", "value": "b"}],
    }
    made = json.loads(with_maker(json.dumps(sent).encode(), "12.0"))
    assert made["tags"] == [{"key": "a", "value": "b"}, {"key": CREATED_BY_TAG, "value": "12.0"}]
    assert with_maker(b"not json", "12.0") == b"not json"


@pytest.mark.parametrize(
    ("location", "refused"),
    [
        ("/etc", True),
        ("file:///etc", True),
        ("./x", True),
        (["x"], True),
        ("s3://b/x", False),
        ("", False),
        (None, False),
    ],
)
def test_an_attempt_names_no_folder_of_the_server(location: object, refused: bool) -> None:
    assert is_path_of_server(json.dumps({"name": "e", "artifact_location": location}).encode()) is refused
    assert is_path_of_server(b"[]")


def test_an_attempt_may_write_to_its_alias_and_no_others() -> None:
    alias = alias_of("yard", "12.0")
    for run_id in (None, "own"):
        scope = AttemptScope(key="12.0", run_id=run_id, experiment_id="1" if run_id else None, alias=alias)
        assert may_write_run(scope, alias.run_id, None)
        assert not may_write_run(scope, alias_of("yard", "13.0").run_id, None)
        assert (scope.real is None) is (run_id is None)


@pytest.mark.parametrize(
    ("sent", "left"),
    [
        ({"run_id": "own", "status": "FINISHED", "end_time": 5}, None),
        ({"run_id": "own", "run_uuid": "own", "status": "RUNNING", "run_name": None}, None),
        ({"run_id": "own", "status": "FINISHED", "run_name": "n"}, {"run_id": "own", "run_name": "n"}),
        ({"run_uuid": "ALIAS", "status": "FAILED"}, None),
        ({"run_id": "child", "status": "FINISHED"}, {"run_id": "child", "status": "FINISHED"}),
    ],
)
def test_only_airyard_says_how_the_own_run_ends(sent: dict[str, object], left: object) -> None:
    alias = alias_of("yard", "12.0")
    scope = AttemptScope(key="12.0", run_id="own", experiment_id="1", alias=alias)
    body = without_ending(scope, json.dumps(sent).replace("ALIAS", alias.run_id).encode())
    assert (None if body is None else json.loads(body)) == left


def test_a_body_that_is_no_object_is_left_to_mlflow() -> None:
    scope = AttemptScope(key="12.0", run_id="own", experiment_id="1")
    assert without_ending(scope, b"not json") == b"not json"
    assert without_ending(scope, b"[1]") == b"[1]"
