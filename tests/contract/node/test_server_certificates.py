"""What a machine that joins says of a server's certificate, and that its runners trust the CA that it was given."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from airyard.core.errors import AiryardError, UserError
from airyard.node.joining import Desk
from airyard.node.runner_http import Channel, ServerAway, Servers
from airyard.node.trust import keep_ca, kept_ca
from certificates import Authority

TOKEN = "t" * 32


class Handler(BaseHTTPRequestHandler):
    """Shows who asks for it that it knows the fleet's token; answers everything else with an empty object."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        nonce = parse_qs(urlsplit(self.path).query).get("nonce")
        said = {}
        if nonce is not None:
            said["proof"] = hmac.new(TOKEN.encode(), nonce[0].encode(), hashlib.sha256).hexdigest()
        body = json.dumps(said).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(certificate: tuple[Path, Path] | None) -> Iterator[int]:
    """Serve on loopback; yield the port."""

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Handshakes that a client breaks off are what is tried here."""

    server = Quiet(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def refused(server: str, ca: Path | None) -> AiryardError:
    with pytest.raises(AiryardError) as caught:
        Desk(server, TOKEN, ca).get("identify")
    return caught.value


def test_a_private_ca_is_trusted_where_it_is_named(authority: Authority) -> None:
    with serving(authority.issue("yard", "127.0.0.1")) as port:
        assert Desk(f"127.0.0.1:{port}", TOKEN, authority.ca).get("identify") == {}
        error = refused(f"https://127.0.0.1:{port}", None)
        assert error.code == "CERTIFICATE"
        assert "issued by nobody whom this machine trusts" in error.message
        assert error.fix is not None
        assert "--ca-file" in error.fix.text


def test_the_servers_own_certificate_will_do(authority: Authority) -> None:
    certificate, key = authority.issue("yard", "127.0.0.1")
    with serving((certificate, key)) as port:
        assert Desk(f"127.0.0.1:{port}", TOKEN, certificate).get("identify") == {}


@pytest.mark.parametrize(
    ("address", "expired", "words", "step"),
    [
        ("127.0.0.1", True, "has expired", "Renew it on the server"),
        ("10.1.2.3", False, "does not name 127.0.0.1", "name or address of its certificate"),
    ],
)
def test_what_is_wrong_with_a_certificate_is_said(
    authority: Authority, address: str, expired: bool, words: str, step: str
) -> None:
    with serving(authority.issue("yard", address, expired=expired)) as port:
        error = refused(f"127.0.0.1:{port}", authority.ca)
    assert error.code == "CERTIFICATE"
    assert words in error.message
    assert error.fix is not None
    assert step in error.fix.text


def test_a_server_without_tls_and_one_that_was_not_asked_for_it(authority: Authority) -> None:
    with serving(None) as port:
        assert refused(f"127.0.0.1:{port}", authority.ca).code == "NO_TLS"
    with serving(authority.issue("yard", "127.0.0.1")) as port:
        error = refused(f"127.0.0.1:{port}", None)
        assert error.code == "SERVER_UNREACHABLE"
        assert error.fix is not None
        assert "https://" in error.fix.text


def test_a_file_that_is_no_ca_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(UserError, match=r"empty\.pem cannot be used") as caught:
        Desk("127.0.0.1:1", TOKEN, tmp_path / "empty.pem")
    assert caught.value.code == "BAD_CA_FILE"


def test_runners_trust_what_the_join_kept(authority: Authority, tmp_path: Path) -> None:
    node = tmp_path / "node"
    node.mkdir()
    with serving(authority.issue("yard", "127.0.0.1")) as port:
        url = f"https://127.0.0.1:{port}"
        with pytest.raises(ServerAway, match="certificate verify failed"):
            Channel(Servers(url, kept_ca(node)), "t").get_json("orders", timeout_s=5)
        for _ in range(2):  # a join once more
            keep_ca(node, authority.ca)
        assert Channel(Servers(url, kept_ca(node)), "t").get_json("orders", timeout_s=5) == {}
        keep_ca(node, kept_ca(node))  # as `AIRYARD_CA_FILE` may say
        assert kept_ca(node) is not None
        keep_ca(node, None)
        assert kept_ca(node) is None


def test_a_ca_that_has_gone_is_a_server_that_is_away(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ServerAway, match="cannot be used"):
            Channel(Servers(url, tmp_path / "gone.pem"), "t").get_json("orders", timeout_s=5)
