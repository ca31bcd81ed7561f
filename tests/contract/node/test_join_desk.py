"""A machine that joins a yard of several servers finds the one that leads, and trusts only who knows the token."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from airyard.core.errors import Denied, Unavailable
from airyard.node import leaving
from airyard.node.joining import Desk

TOKEN = "f" * 64


class Server:
    """A server that leads, or says who does."""

    def __init__(self, *, token: str = TOKEN) -> None:
        self.leader: str | None = None
        """None: it leads itself."""
        self.told: list[str | None] = []
        """The tokens that it was sent."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: Any) -> None:
                pass

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.do_GET()

            def do_GET(self) -> None:
                outer.told.append(self.headers["Authorization"])
                if outer.leader is not None:
                    error = {
                        "code": "NOT_LEADER",
                        "details": {"leader": outer.leader},
                        "message": "elsewhere",
                    }
                    self.answer(503, {"error_code": "TEMPORARILY_UNAVAILABLE", "error": error, **error})
                    return
                nonce = parse_qs(urlsplit(self.path).query).get("nonce", [""])[0]
                proof = hmac.new(token.encode(), nonce.encode(), hashlib.sha256).hexdigest()
                self.answer(200, {"proof": proof, "time_ns": time.time_ns(), "at": outer.url, "members": []})

            def answer(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def servers() -> Iterator[tuple[Server, Server]]:
    both = Server(), Server()
    yield both
    for server in both:
        server.close()


def test_the_leader_is_found_and_followed(servers: tuple[Server, Server]) -> None:
    first, second = servers
    first.leader = second.url
    desk = Desk(f"{first.url},{second.url}", TOKEN)
    desk.check()
    assert desk.url == second.url
    first.leader, second.leader = None, first.url
    assert desk.post("leave", {})["at"] == first.url
    assert desk.urls == f"{first.url},{second.url}"


def test_one_that_only_a_stranger_names_must_prove_itself_first(servers: tuple[Server, Server]) -> None:
    first, second = servers
    first.leader = second.url
    desk = Desk(first.url, TOKEN)
    with pytest.raises(Unavailable, match="elsewhere"):
        desk.post("leave", {})
    assert second.told == []
    desk.check()
    assert (desk.url, second.told) == (second.url, [None])


def test_the_token_goes_to_no_server_that_has_not_proved_itself(servers: tuple[Server, Server]) -> None:
    first, _ = servers
    foreign = Server(token="0" * 64)
    try:
        assert Desk(f"{foreign.url},{first.url}", TOKEN).post("leave", {})["at"] == first.url
        with pytest.raises(Denied) as refused:
            Desk(foreign.url, TOKEN).post("leave", {})
        assert refused.value.code == "WRONG_FLEET_TOKEN"
        assert foreign.told == [None, None]
        assert f"Bearer {TOKEN}" in first.told
    finally:
        foreign.close()


def test_a_leader_of_another_fleet_is_no_leader(servers: tuple[Server, Server]) -> None:
    first, _ = servers
    foreign = Server(token="0" * 64)
    try:
        first.leader = foreign.url
        with pytest.raises(Denied) as refused:
            Desk(first.url, TOKEN).check()
        assert refused.value.code == "WRONG_FLEET_TOKEN"
        assert foreign.told == [None]
    finally:
        foreign.close()


def test_a_drain_outlives_a_server_that_is_away(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "_LOOK_S", 0.01)
    first, second = servers
    first.leader = second.leader = "http://nobody.invalid"

    def back() -> None:
        first.leader = None

    leaving._drain(Desk(f"{first.url},{second.url}", TOKEN), "m1", 600, back)
    assert first.told[-1] == f"Bearer {TOKEN}"


def test_a_drain_that_no_server_ever_answers_fails(
    servers: tuple[Server, Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaving, "_LOOK_S", 0.01)
    monkeypatch.setattr(leaving, "_LATE_S", 0.1)
    asked = []
    servers[0].leader = "http://nobody.invalid"
    with pytest.raises(Unavailable):
        leaving._drain(Desk(servers[0].url, TOKEN), "m1", 0, lambda: asked.append(1))
    assert len(asked) > 1
