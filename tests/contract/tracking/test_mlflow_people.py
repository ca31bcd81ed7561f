"""A person who may not see every run, at a real MLflow: only runs that are theirs, or opened to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from airyard.ports.tracker import OpenRun
from airyard.server.mlflow_people import PersonScope

API = "/api/2.0/mlflow"
QUERY = "query GetRun($data: MlflowGetRunInput!) { mlflowGetRun(input: $data) { run { info { runName } } } }"


@pytest.fixture(scope="module")
def runs(yard) -> dict[str, Any]:
    """Open runs of Airyard's run 1 (of uma), 2 (of bob, opened to uma) and 3 (of bob)."""
    person = PersonScope(
        name="uma", may_write=True, sees=lambda run_id: run_id in (1, 2), steers=lambda run_id: run_id == 1
    )
    yard.gate.people["ayu_uma"] = person
    yard.gate.people["ayu_reader"] = replace(person, may_write=False)
    yard.gate.people["ayu_watcher"] = replace(person, may_write=False, sees_all=True)
    found = {}
    for number, user in ((1, "uma"), (2, "bob"), (3, "bob")):
        found[number] = yard.tracker.open_run(
            OpenRun(
                key=f"people/{number}.0",
                experiment="shared by both",
                run_name=f"name of {number}",
                start_ms=1,
                user=user,
                tags=(("airyard.run_id", str(number)),),
            )
        )
    return found


def test_runs_are_read_as_far_as_they_are_opened(yard, runs) -> None:
    with yard.client("ayu_uma") as uma:
        for number, status in ((1, 200), (2, 200), (3, 403)):
            asked = {"run_id": runs[number].run_id}
            assert uma.get(f"{API}/runs/get", params=asked).status_code == status
            history = uma.get(f"{API}/metrics/get-history", params={**asked, "metric_key": "loss"})
            assert (history.status_code == 403) == (status == 403)
            assert (uma.get(f"{API}/artifacts/list", params=asked).status_code == 403) == (status == 403)
            answer = uma.post(
                "/graphql", json={"query": QUERY, "variables": {"data": {"runId": asked["run_id"]}}}
            )
            assert answer.status_code == status
            assert (f"name of {number}" in answer.text) == (status == 200)


def test_lists_of_everybody_are_refused_and_a_search_finds_ones_own(yard, runs) -> None:
    with yard.client("ayu_uma") as uma:
        for method, path in (
            ("POST", f"{API}/experiments/search"),
            ("GET", f"{API}/experiments/search?max_results=5&run_id={runs[1].run_id}"),
            ("POST", f"{API}/registered-models/search"),
            ("POST", "/ajax-api/3.0/mlflow/traces/search"),
            ("POST", f"{API}/experiments/delete"),
        ):
            assert uma.request(method, path, json={"max_results": 5}).status_code == 403, path
        searched = uma.post(
            "/graphql", json={"query": "mutation { mlflowSearchRuns { runs { info { runId } } } }"}
        )
        assert searched.status_code == 403
        experiment = [runs[1].experiment_id]
        for asked in ("", "attributes.run_name LIKE '%name%'"):
            found = uma.post(
                f"{API}/runs/search", json={"experiment_ids": experiment, "filter": asked}
            ).json()
            assert [run["info"]["run_id"] for run in found["runs"]] == [runs[1].run_id]
        for trick in ("tags.x = 'y' OR tags.x != 'y'", "' OR 1=1 --", "tags.`mlflow.user` = 'bob'"):
            answer = uma.post(f"{API}/runs/search", json={"experiment_ids": experiment, "filter": trick})
            assert not answer.json().get("runs"), trick


def test_writes_need_the_right_to_manage(yard, runs) -> None:
    def tag(client: httpx.Client, run_id: str) -> int:
        return client.post(
            f"{API}/runs/set-tag", json={"run_id": run_id, "key": "k", "value": "v"}
        ).status_code

    with yard.client("ayu_uma") as uma, yard.client("ayu_reader") as reader:
        assert [tag(uma, runs[number].run_id) for number in (1, 2, 3)] == [200, 403, 403]
        assert tag(reader, runs[1].run_id) == 403
        forged = {"experiment_id": runs[1].experiment_id, "tags": [{"key": "airyard.run_id", "value": "3"}]}
        made = uma.post(f"{API}/runs/create", json=forged).json()["run"]
        tags = {each["key"]: each["value"] for each in made["data"]["tags"]}
        assert tags["airyard.created_by_user"] == "uma"
        assert "airyard.run_id" not in tags
        assert tag(uma, made["info"]["run_id"]) == 200
        assert reader.post(f"{API}/runs/create", json=forged).status_code == 403


def test_pages_are_open_and_a_reader_of_everything_only_reads(yard, runs) -> None:
    with yard.client("ayu_reader") as reader:
        assert "<title>MLflow</title>" in reader.get("/").text
    with yard.client("ayu_watcher") as watcher:
        assert watcher.post(f"{API}/experiments/search", json={"max_results": 5}).status_code == 200
        assert watcher.get(f"{API}/runs/get", params={"run_id": runs[3].run_id}).status_code == 200
        body = {"run_id": runs[3].run_id, "key": "k", "value": "v"}
        assert watcher.post(f"{API}/runs/set-tag", json=body).status_code == 403
