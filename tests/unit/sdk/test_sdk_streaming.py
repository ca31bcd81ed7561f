"""Streams: cut into objects, gone on with after a broken connection, nothing lost or doubled."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.core.errors import NotFound
from airyard.sdk import streaming
from airyard.sdk.streaming import TICK, split_objects
from airyard.sdk.transport import ConnectionLost
from client_fakes import fake_client

STREAM = "GET /runs/12/stream"
LOGS = "GET /runs/12/logs"


def log(cursor: str, line: str, **more: Any) -> dict[str, Any]:
    return {"type": "LOG", "cursor": cursor, "node": 0, "line": line, **more}


def lost() -> ConnectionLost:
    return ConnectionLost("gone", sent=True)


def test_objects_are_cut_at_newlines_wherever_chunks_end() -> None:
    chunks = [b'{"type":"A"}\n{"ty', b'pe":"B"}', b"\n\n", b'{"type":"unfinished"']
    assert list(split_objects(chunks)) == [{"type": "A"}, {"type": "B"}, TICK]


def test_a_broken_stream_goes_on_at_its_cursor() -> None:
    end = {"type": "TERMINAL", "cursor": "9", "run": {}}
    answers = [[log("1", "a"), log("2", "b"), b'{"type":"LOG","cur', lost()], lost(), [log("3", "c"), end]]
    client, transport, _ = fake_client({STREAM: answers})
    assert [event.get("line") for event in client.stream(12)] == ["a", "b", "c", None]
    assert [request.path.partition("?")[2] for request in transport.asked] == [
        "logs=true",
        "cursor=2&logs=true",
        "cursor=2&logs=true",
    ]


def test_a_server_that_stays_away_ends_the_patience() -> None:
    client, _, clock = fake_client({STREAM: [[log("1", "a"), lost()], lost()]})
    with pytest.raises(ConnectionLost):
        list(client.stream(12))
    assert streaming.PATIENCE_S < clock.now < streaming.PATIENCE_S + 5


def test_what_the_server_refuses_is_not_repeated() -> None:
    client, transport, _ = fake_client({STREAM: [NotFound("There is no run 12.")]})
    with pytest.raises(NotFound):
        list(client.stream(12))
    assert len(transport.asked) == 1


def test_followed_logs_overlap_after_a_break_and_no_line_is_doubled() -> None:
    lines = [log("", f"line {n}", time_ns=n * 10**9, stream="stdout") for n in range(100, 104)]
    twice = log("", "same", time_ns=103 * 10**9, stream="stdout")
    end = {"type": "END", "complete": True}
    answers = [[*lines, twice, twice, lost()], [*lines[2:], twice, twice, twice, log("", "new"), end]]
    client, transport, _ = fake_client({LOGS: answers})
    got = [event["line"] for event in client.logs(12, tail=5, follow=True) if event["type"] == "LOG"]
    assert got == ["line 100", "line 101", "line 102", "line 103", "same", "same", "same", "new"]
    assert "tail=5" in transport.asked[0].path
    assert "tail" not in transport.asked[1].path
    assert f"since_ms={103_000 - 30_000}" in transport.asked[1].path
