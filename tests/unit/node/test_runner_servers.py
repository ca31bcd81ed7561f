"""Which server a runner asks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airyard.node.runner_http import Channel, ServerAway, Servers


class _Server(ThreadingHTTPServer):
    """Answers as leader, or says who leads."""

    leader: str | None = None
    asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.asked += 1
        leader = self.server.leader
        body = {"me": self.server.url} if leader is None else {"error": {"details": {"leader": leader}}}
        data = json.dumps(body).encode()
        self.send_response(200 if leader is None else 503)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        pass


@pytest.fixture
def servers() -> Iterator[list[_Server]]:
    """Three servers."""
    made = [_Server(("127.0.0.1", 0), _Handler) for _ in range(3)]
    for one in made:
        threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
    yield made
    for one in made:
        one.shutdown()
        one.server_close()


def test_it_goes_where_it_is_sent_and_tells_its_other_channels(servers: list[_Server]) -> None:
    a, b, c = servers
    a.leader = c.url
    known = Servers(",".join(one.url for one in servers))
    orders, logs = Channel(known, "t"), Channel(known, "t")
    with pytest.raises(ServerAway):
        orders.get_json("orders", timeout_s=5)
    assert orders.get_json("orders", timeout_s=5) == {"me": c.url}
    assert logs.get_json("logs", timeout_s=5) == {"me": c.url}
    assert b.asked == 0


def test_it_asks_the_next_where_one_is_away_and_learns_of_new_ones(servers: list[_Server]) -> None:
    a, b, _ = servers
    known = Servers(a.url)
    channel = Channel(known, "t")
    assert channel.get_json("orders", timeout_s=5) == {"me": a.url}
    known.learn([b.url, a.url])
    assert channel.get_json("orders", timeout_s=5) == {"me": a.url}, "the one that answers stays the first"
    a.leader = ""
    with pytest.raises(ServerAway):
        channel.get_json("orders", timeout_s=5)
    assert channel.get_json("orders", timeout_s=5) == {"me": b.url}


def test_an_address_that_no_one_named_is_not_followed(servers: list[_Server]) -> None:
    a, b, _ = servers
    a.leader = b.url
    channel = Channel(a.url, "t")
    for _ in range(2):
        with pytest.raises(ServerAway):
            channel.get_json("orders", timeout_s=5)
    assert b.asked == 0
