"""The offset of a clock over real HTTP: a server that is ahead, slow, silent, or that says nothing of its time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from airyard.node.clock_offset import measure
from airyard.node.runner_http import Channel


@contextmanager
def server(ahead_ms: float = 0.0, slow_s: float = 0.0, says: bytes | None = None) -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert body["reports"] == []
            now_ns = time.time_ns() + int(ahead_ms * 1e6)
            time.sleep(slow_s)
            data = says if says is not None else json.dumps({"server_time_ns": now_ns}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.server_address[1]}"
    finally:
        listening.shutdown()
        listening.server_close()


@pytest.mark.parametrize(("ahead_ms", "slow_s"), [(0.0, 0.0), (1500.0, 0.0), (-300.0, 0.1)])
def test_the_offset_is_found_within_its_bounds(ahead_ms: float, slow_s: float) -> None:
    with server(ahead_ms, slow_s) as url:
        found = measure(Channel(url, "token"))
    assert found is not None
    assert abs(found.offset_ms + ahead_ms) <= found.error_ms + 0.01
    assert found.error_ms >= slow_s * 500


def test_a_server_that_is_away_or_says_nothing_of_its_time_costs_no_more_than_its_deadline() -> None:
    began = time.monotonic()
    assert measure(Channel("http://127.0.0.1:9", "token")) is None
    with server(says=b"{}") as url:
        assert measure(Channel(url, "token")) is None
    with server(slow_s=5.0) as url:
        assert measure(Channel(url, "token")) is None
    assert time.monotonic() - began < 12
