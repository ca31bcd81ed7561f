"""How a person's request to MLflow is read: what is bounded by the runs it names passes, nothing else."""

from __future__ import annotations

import json

import pytest

from airyard.server.mlflow_people import Ask, PersonScope, ask_of, narrowed, number_of, with_user
from airyard.server.mlflow_policy import RunFacts, purpose_of

RUN, OTHER = "a" * 32, "b" * 32
UMA = PersonScope(name="uma", may_write=True, sees=lambda run: run in (1, 2), steers=lambda run: run == 1)


def asked(method: str, path: str, body: object = None, /, **query: str) -> Ask:
    sent = b"" if body is None else json.dumps(body).encode()
    values = {name: [value] for name, value in query.items()}
    return ask_of(UMA, purpose_of(method, path), method, path, values, sent)


@pytest.mark.parametrize(
    "path", ["", "static-files/static/js/main.js", "version", "ajax-api/3.0/mlflow/server-info", "health"]
)
def test_pages_and_their_parts_pass(path: str) -> None:
    assert asked("GET", path) == Ask()


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("api/2.0/mlflow/runs/get", {"run_id": RUN}),
        ("ajax-api/2.0/mlflow/metrics/get-history-bulk", {"run_ids": RUN}),
        ("get-artifact", {"run_uuid": RUN, "path": "model"}),
        (f"api/2.0/mlflow-artifacts/artifacts/7/{RUN}/artifacts/model/x", {}),
        ("api/2.0/mlflow-artifacts/artifacts", {"path": f"7/{RUN}/artifacts"}),
    ],
)
def test_a_look_at_named_runs_asks_for_these(path: str, query: dict[str, str]) -> None:
    assert asked("GET", path, **query) == Ask(runs=frozenset({RUN}))


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("api/2.0/mlflow/runs/get", {}),
        ("api/2.0/mlflow/experiments/search", {"run_id": RUN}),
        ("api/2.0/mlflow/registered-models/search", {}),
        ("ajax-api/3.0/mlflow/traces", {"run_id": RUN}),
        ("model-versions/get-artifact", {"name": "m"}),
        ("api/2.0/mlflow-artifacts/artifacts", {"path": f"7/{RUN}/artifacts/../../../{OTHER}"}),
        ("api/2.0/mlflow-artifacts/artifacts", {}),
        ("gateway/x", {}),
    ],
)
def test_what_names_no_run_or_answers_with_others_is_refused(path: str, query: dict[str, str]) -> None:
    assert asked("GET", path, **query).refused


@pytest.mark.parametrize(
    "query",
    [
        "mutation { mlflowSearchRuns { runs { info { runId } } } }",
        "query { mlflowSearchModelVersions { modelVersions { name } } }",
        f'query {{ mlflowGetRun(input: {{runId: "{RUN}"}}) {{ run }} mlflowSearchModelVersions {{ x }} }}',
        "query { mlflowGetRun(input: {runId: \"\\u0061\"}) { run } }",
        "query { mlflowGetRun(input: {runId: \"short\"}) { run } }",
        "query { __schema { types { name } } }",
        7,
    ],
)  # fmt: skip
def test_other_graphql_is_refused(query: object) -> None:
    assert asked("POST", "graphql", {"query": query}).refused


def test_every_run_that_graphql_names_is_asked_for() -> None:
    query = f'query {{ a: mlflowGetRun(input: {{runId: "{RUN}"}}) {{ run }} b: mlflowGetRun(input: $x) {{ run }} }}'
    found = asked("POST", "graphql", {"query": query, "variables": {"x": {"runId": OTHER}}})
    assert found.runs == {RUN, OTHER}


def test_a_write_names_its_runs_or_is_refused() -> None:
    write = asked("POST", "api/2.0/mlflow/runs/log-metric", {"run_id": RUN, "run_uuid": OTHER})
    assert (write.runs, write.write) == ({RUN, OTHER}, True)
    assert asked("POST", "api/2.0/mlflow/runs/log-metric", {}).refused
    assert asked("POST", "api/2.0/mlflow/experiments/delete", {"experiment_id": "1"}).refused
    assert asked("POST", "api/2.0/mlflow/registered-models/create", {"name": "m"}).refused
    assert asked(
        "POST", "api/2.0/mlflow/experiments/create", {"name": "e", "artifact_location": "/etc"}
    ).refused
    assert asked("POST", "api/2.0/mlflow/experiments/create", {"name": "e"}) == Ask()


def test_whose_a_run_is_is_told_by_who_made_it() -> None:
    assert number_of(RunFacts(experiment_id="1", created_by="12.0", airyard_run=3)) == 12
    assert number_of(RunFacts(experiment_id="1", created_by="nonsense", airyard_run=3)) is None
    assert number_of(RunFacts(experiment_id="1", created_by=None, airyard_run=3)) == 3
    by_hand = RunFacts(experiment_id="1", created_by=None, created_by_user="uma", airyard_run=9)
    assert UMA.may(by_hand, write=True)
    assert not UMA.may(None, write=False)
    assert not UMA.may(RunFacts(experiment_id="1", created_by=None), write=False)
    seen = RunFacts(experiment_id="1", created_by=None, airyard_run=2)
    assert (UMA.may(seen, write=False), UMA.may(seen, write=True)) == (True, False)


def test_bodies_are_narrowed_and_signed() -> None:
    assert json.loads(narrowed(b"", "uma"))["filter"] == "tags.`mlflow.user` = 'uma'"
    assert json.loads(narrowed(b'{"filter": "a = 1"}', "uma"))["filter"].endswith("'uma' and a = 1")
    forged = {"tags": [{"key": "airyard.created_by_user", "value": "bob"}, {"key": "mine", "value": "1"}]}
    tags = json.loads(with_user(json.dumps(forged).encode(), "uma"))["tags"]
    assert {"key": "mine", "value": "1"} in tags
    assert [tag["value"] for tag in tags if tag["key"] == "airyard.created_by_user"] == ["uma"]
