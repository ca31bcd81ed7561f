"""The client on real sockets: identity before anything else, kept connections, broken ones."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

import airyard
from airyard.core.errors import Denied, NotFound, UserError
from airyard.sdk import embedded
from airyard.sdk.client import Client
from airyard.sdk.transport import ConnectionLost, HttpTransport, prove

TOKEN = "ayt_right"


class Handler(BaseHTTPRequestHandler):
    """A little of the native API, and a record of what it was sent."""

    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.seen.append((self.path.partition("?")[0], self.headers.get("Authorization")))
        url = urlsplit(self.path)
        if url.path == "/api/v1/identify":
            nonce = parse_qs(url.query)["nonce"][0]
            self.answer(200, self.server.identity(nonce))
        elif url.path == "/api/v1/status" and self.server.drop > 0:
            self.server.drop -= 1
            self.close_connection = True
        elif url.path == "/api/v1/runs/9":
            self.answer(404, {"error": {"code": "NO_RUN", "message": "There is no run 9.", "fix": None}})
        elif url.path == "/api/v1/runs/8":
            self.answer(404, {"error": {"code": "NO_SUCH_PATH", "message": "There is nothing.", "fix": None}})
        else:
            self.answer(200, {"version": "1", "path": url.path})

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(201, None)

    def answer(self, status: int, body: Any) -> None:
        payload = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


def airyard_identity(nonce: str) -> dict[str, Any]:
    return {"service": "airyard", "version": "1", "protocol": 1, "proof": prove(TOKEN, nonce)}


@contextmanager
def serving(identity: Any = airyard_identity) -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.identity, server.seen, server.drop = identity, [], 0
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_token_follows_the_proof_on_the_same_connection() -> None:
    with serving() as server:
        with Client(server.url, TOKEN) as client:
            assert client.status()["version"] == "1"
            client.status()
        assert server.seen == [
            ("/api/v1/identify", None),
            ("/api/v1/status", f"Bearer {TOKEN}"),
            ("/api/v1/status", f"Bearer {TOKEN}"),
        ]


@pytest.mark.parametrize(
    "identity",
    [
        lambda nonce: {"service": "airyard", "protocol": 1, "proof": prove("another token", nonce)},
        lambda nonce: {"service": "airyard", "protocol": 1},
        lambda nonce: {"hello": "world"},
        lambda nonce: b"<html>",
    ],
)
def test_a_server_that_cannot_prove_itself_gets_nothing(identity: Any) -> None:
    with serving(identity) as server:
        with pytest.raises(Denied, match=r"127\.0\.0\.1") as caught, Client(server.url, TOKEN) as client:
            client.put_secret("scope", "key", "value")
        assert caught.value.code == "NOT_AIRYARD"
        assert server.seen == [("/api/v1/identify", None)]


def test_another_protocol_is_named() -> None:
    with serving(lambda nonce: {**airyard_identity(nonce), "protocol": 9, "version": "9.8.7"}) as server:
        both = rf"Airyard 9\.8\.7\) speaks protocol 9; this client \(Airyard {airyard.__version__}\)"
        with pytest.raises(UserError, match=both) as refused, Client(server.url, TOKEN) as client:
            client.status()
        assert refused.value.code == "PROTOCOL_MISMATCH"
        assert refused.value.fix is not None
        assert "Install Airyard 9.8.7 here" in refused.value.fix.text


def test_what_another_release_does_not_know_is_said_with_both_versions() -> None:
    with serving(lambda nonce: {**airyard_identity(nonce), "version": "9.8.7"}) as server:
        with Client(server.url, TOKEN) as client, pytest.raises(NotFound) as refused:
            client.get(8)
        assert refused.value.code == "NO_SUCH_PATH"
        for version in ("9.8.7", airyard.__version__):
            assert version in refused.value.message


def test_a_connection_that_breaks_is_made_and_proved_again() -> None:
    with serving() as server:
        server.drop = 2
        with Client(server.url, TOKEN) as client:
            assert client.status()["version"] == "1"
        paths = [path for path, _ in server.seen]
        assert paths == ["/api/v1/identify", "/api/v1/status"] * 3


def test_errors_of_the_server_arrive_whole() -> None:
    with serving() as server, Client(server.url, TOKEN) as client:
        with pytest.raises(NotFound, match="There is no run 9") as caught:
            client.get(9)
        assert caught.value.code == "NO_RUN"
        assert client.status()["version"] == "1"  # the connection is good for more


def test_uploads_are_streamed_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    with serving() as server, Client(server.url, TOKEN) as client, open(tmp_path / "a", "rb") as file:
        client.upload_code("abc", file, 100_000)


def test_nobody_there_is_said_and_no_token_is_an_error_before_any_connection() -> None:
    with serving() as server:
        url = server.url
        with pytest.raises(Denied) as caught, Client(url, None, home="/nonexistent") as client:
            client.status()
        assert (caught.value.code, server.seen) == ("NO_TOKEN", [])
    with pytest.raises(ConnectionLost, match="connection refused"):
        HttpTransport(url, TOKEN).prove()
    with pytest.raises(UserError, match="not the address of a server"):
        HttpTransport("ftp://host", TOKEN)


def test_an_endpoint_file_that_a_dead_server_left_counts_as_none(tmp_path: Path) -> None:
    folder = tmp_path / "server"
    folder.mkdir()
    assert embedded.find(tmp_path) is None
    (folder / "token").write_text(TOKEN)
    with serving(lambda nonce: {"some": "program"}) as server:
        (folder / "endpoint.json").write_text(json.dumps({"url": server.url, "pid": 1, "version": "1"}))
        assert embedded.find(tmp_path) is None  # another program has the port now
    assert embedded.find(tmp_path) is None  # nobody has it
    with serving() as server:
        (folder / "endpoint.json").write_text(json.dumps({"url": server.url, "pid": 1, "version": "1"}))
        transport = embedded.find(tmp_path)
        assert transport is not None
        transport.close()
