"""The client: what is repeated, paging, waiting."""

from __future__ import annotations

import pytest

from airyard.core.errors import NotFound, Unavailable
from airyard.sdk.transport import ConnectionLost
from client_fakes import fake_client, run_document


def test_an_idempotent_request_is_repeated_for_ten_seconds() -> None:
    lost = ConnectionLost("gone", sent=True)
    client, transport, _ = fake_client({"GET /runs/12": [lost, lost, {"run": run_document()}]})
    assert client.get(12)["run_id"] == 12
    assert len(transport.asked) == 3
    client, _, clock = fake_client({"GET /runs/12": [lost]})
    with pytest.raises(ConnectionLost):
        client.get(12)
    assert 5 < clock.now <= 10


def test_a_request_that_may_have_happened_is_not_repeated() -> None:
    client, transport, _ = fake_client({"POST /runs/12/resume": [ConnectionLost("gone", sent=True)]})
    with pytest.raises(ConnectionLost):
        client.resume(12)
    assert len(transport.asked) == 1


def test_one_that_was_never_sent_is_repeated_all_the_same() -> None:
    answers = [ConnectionLost("refused", sent=False), {"run": run_document()}]
    client, _, _ = fake_client({"POST /runs/12/resume": answers})
    assert client.resume(12)["run_id"] == 12


def test_a_busy_server_is_asked_again_when_it_says_so() -> None:
    busy = Unavailable("full", retry_after_ms=3000)
    client, _, clock = fake_client({"GET /status": [busy, {"version": "1"}]})
    assert client.status() == {"version": "1"}
    assert clock.now == 3


def test_list_pages_up_to_its_limit() -> None:
    pages = [
        {"runs": [run_document(9), run_document(8)], "next_before": 8},
        {"runs": [run_document(7)], "next_before": None},
    ]
    client, transport, _ = fake_client({"GET /runs": pages})
    assert [run["run_id"] for run in client.list(limit=None)] == [9, 8, 7]
    assert "before=8" in transport.asked[1].path
    client, transport, _ = fake_client({"GET /runs": pages})
    assert [run["run_id"] for run in client.list(limit=2)] == [9, 8]
    assert len(transport.asked) == 1


def test_wait_asks_until_done_and_keeps_the_order_given() -> None:
    live, done = run_document(1, state="ACTIVE"), run_document(2)
    answers = [{"done": False, "runs": [live, done]}, {"done": True, "runs": [run_document(1), done]}]
    client, transport, _ = fake_client({"GET /wait": answers})
    assert [run["run_id"] for run in client.wait([2, 1])] == [2, 1]
    assert len(transport.asked) == 2


def test_wait_gives_up_and_names_what_is_live() -> None:
    answers = [{"done": False, "runs": [run_document(1, state="ACTIVE"), run_document(2)]}]
    client, _, _ = fake_client({"GET /wait": answers})
    with pytest.raises(Unavailable, match="Run 1 is not over") as caught:
        client.wait([1, 2], timeout_s=0)
    assert caught.value.code == "WAIT_TIMEOUT"


def test_a_missing_snapshot_is_an_answer_not_an_error() -> None:
    client, _, _ = fake_client({"HEAD /code/abc": [NotFound("no"), None]})
    assert client.has_code("abc") is False
    assert client.has_code("abc") is True
