"""Requests: paths, queries and what may be repeated."""

from __future__ import annotations

from airyard.sdk import requests


def test_references_are_quoted_and_queries_spelled_as_the_api_reads_them() -> None:
    assert requests.get_run("tag:k=v w/x").path == "/api/v1/runs/tag:k=v%20w%2Fx"
    assert requests.get_run("12", wait_version=3).path == "/api/v1/runs/12?wait_version=3&timeout_s=20"
    path = requests.list_runs(state="active", limit=5, tags={"team": "a b"}, ids=[1, 2]).path
    assert path == "/api/v1/runs?state=active&limit=5&tag=team%3Da+b&ids=1%2C2"
    assert requests.wait([1, 2], any_=True, timeout_s=7).path == "/api/v1/wait?ids=1%2C2&any=true&timeout_s=7"
    assert requests.logs("3", follow=True).path == "/api/v1/runs/3/logs?attempt=-1&follow=true"
    assert requests.stream("3", cursor="a+b").path == "/api/v1/runs/3/stream?cursor=a%2Bb&logs=true"


def test_only_what_may_happen_twice_is_idempotent() -> None:
    keyless = requests.submit({}, source_yaml="", idempotency_key=None, dry_run=False)
    keyed = requests.submit({}, source_yaml="", idempotency_key="k", dry_run=False)
    assert (keyless.idempotent, keyed.idempotent, requests.resume("1").idempotent) == (False, True, False)
    assert requests.submit({}, source_yaml="", idempotency_key=None, dry_run=True).idempotent
    assert requests.update("1", {"held": True}).idempotent
    assert not requests.reserve({"nodes": ["n1"]}).idempotent
    assert not requests.unreserve(3).idempotent


def test_a_hold_and_a_begin_go_along_where_they_are_asked() -> None:
    plain = requests.submit({}, source_yaml=None, idempotency_key="k", dry_run=False)
    later = requests.submit(
        {}, source_yaml=None, idempotency_key="k", dry_run=False, held=True, begin_at="2026-12-02T08:00:00Z"
    )
    assert later.body == {**plain.body, "held": True, "begin_at": "2026-12-02T08:00:00Z"}


def test_a_diff_goes_along_where_there_is_one() -> None:
    bare = requests.submit({}, source_yaml=None, idempotency_key="k", dry_run=False)
    whole = requests.submit({}, source_yaml=None, git_diff="-a\n+b\n", idempotency_key="k", dry_run=False)
    assert "git_diff" not in bare.body
    assert whole.body == {**bare.body, "git_diff": "-a\n+b\n"}


def test_a_secret_travels_in_the_body_only() -> None:
    request = requests.put_secret("hub", "token", "s3cret-value")
    assert "s3cret" not in request.path
    assert request.body["value"] == "s3cret-value"
