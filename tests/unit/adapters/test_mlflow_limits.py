"""Fitting names and values into MLflow's limits."""

from __future__ import annotations

import pytest

from airyard.adapters import mlflow_limits as limits
from airyard.adapters.mlflow_endpoint import endpoint_of_uri
from airyard.core.errors import UserError


@pytest.mark.parametrize(
    ("key", "fitted"),
    [
        ("model/lr", "model/lr"),
        ("a[0].b", "a_0_.b"),
        ("a//b", "a/b"),
        ("/etc/passwd", "etc/passwd"),
        ("../up", "_up"),
        ("", "_"),
        ("k" * 300, "k" * 250),
        ("größe", "größe"),
    ],
)
def test_keys(key: str, fitted: str) -> None:
    assert limits.fit_key(key) == fitted


def test_names_that_become_the_same_are_kept_apart() -> None:
    fitted, notes = limits.fit_pairs((("a[0]", "1"), ("a_0_", "2")), 10)
    assert dict(fitted) == {"a_0_": "1", "a_0__2": "2"}
    assert len(notes) == 2


def test_nothing_is_told_where_nothing_changed() -> None:
    params, tags = limits.fit_run((("a", "1"),), (("b", "2"),))
    assert (params, tags) == ((("a", "1"),), (("b", "2"),))


def test_batches_keep_to_count_and_size() -> None:
    small = [{"key": str(index)} for index in range(250)]
    assert [len(batch) for batch in limits.batches(small, 100)] == [100, 100, 50]
    large = [{"value": "x" * 400_000} for _ in range(5)]
    assert [len(batch) for batch in limits.batches(large, 100)] == [2, 2, 1]
    assert list(limits.batches([], 100)) == []


def test_a_tracking_uri_with_credentials() -> None:
    endpoint = endpoint_of_uri("https://ada:pw@mlflow.example/sub/", {"MLFLOW_TRACKING_TOKEN": "t"})
    assert endpoint.base_url == "https://mlflow.example/sub"
    assert endpoint.headers == (("Authorization", "Basic YWRhOnB3"),)
    assert "pw" not in endpoint.name
    bearer = endpoint_of_uri("http://mlflow.example:5000", {"MLFLOW_TRACKING_TOKEN": "t"})
    assert bearer.headers == (("Authorization", "Bearer t"),)


@pytest.mark.parametrize("uri", ["sqlite:///x.db", "databricks", "http://", "ftp://ada:pw@host"])
def test_other_tracking_uris_are_refused_without_their_password(uri: str) -> None:
    with pytest.raises(UserError) as caught:
        endpoint_of_uri(uri, {})
    assert "pw" not in caught.value.message
