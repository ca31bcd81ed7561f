"""One post to a real socket: its time limit, TLS, and answers that are none."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airyard.adapters.webhook_post import Answer, post
from certificates import Authority


@contextmanager
def speaking(talk: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen on loopback and hand each connection to ``talk``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    line, _ = listener.accept()
                except OSError:
                    return
                with line:
                    try:
                        talk(line)
                    except OSError:
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def heard(line: socket.socket) -> bytes:
    """Read a request whole: who closes with something unread cuts its own answer short."""
    said = line.recv(65536)
    while not said.endswith(b"{}") and (more := line.recv(65536)):
        said += more
    return said


def sent(port: int, scheme: str = "http", within_s: float = 5.0) -> Answer:
    return post(
        f"{scheme}://127.0.0.1:{port}/hook?a=b", {"webhook-id": "m"}, b"{}", reach=None, within_s=within_s
    )


def test_the_request_is_whole_and_names_its_host() -> None:
    seen: list[bytes] = []

    def talk(line: socket.socket) -> None:
        seen.append(heard(line))
        line.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")

    with speaking(talk) as port:
        assert sent(port) == Answer(status=204)
    head = seen[0].decode().split("\r\n")
    assert head[0] == "POST /hook?a=b HTTP/1.1"
    assert f"Host: 127.0.0.1:{port}" in head
    assert {"Content-Length: 2", "webhook-id: m"} <= set(head)


def test_an_answer_that_drips_is_cut_off() -> None:
    over = threading.Event()

    def talk(line: socket.socket) -> None:
        heard(line)
        line.sendall(b"HTTP/1.1 200 OK\r\n")
        while not over.wait(0.05):
            line.sendall(b"x")

    with speaking(talk) as port:
        answer = sent(port, within_s=0.5)
        over.set()
    assert answer == Answer(problem="no answer within 0.5 s")


@pytest.mark.parametrize(
    "said", [b"", b"\x16\x03 what", b"HTTP/1.1 no number\r\n\r\n", b"220 mail.example ESMTP\r\n"]
)
def test_what_is_no_http_is_a_failure_that_may_pass(said: bytes) -> None:
    def talk(line: socket.socket) -> None:
        heard(line)
        line.sendall(said)

    with speaking(talk) as port:
        answer = sent(port)
    assert answer.status is None
    assert answer.problem
    assert not answer.refused


@pytest.mark.parametrize(
    "said", [b"\x00\xff\x1b]0;owned\x07 garbage\r\n", b"HTTP/1.1 \x1b[2J\r\n", b"x" * 60_000 + b"\r\n"]
)
def test_what_a_receiver_says_is_told_plain_and_bounded(said: bytes) -> None:
    def talk(line: socket.socket) -> None:
        heard(line)
        line.sendall(said)

    with speaking(talk) as port:
        problem = sent(port).problem
    assert problem
    assert problem.isprintable()
    assert len(problem) <= 300


def test_a_certificate_must_be_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "127.0.0.1")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)

    def talk(line: socket.socket) -> None:
        with context.wrap_socket(line, server_side=True) as inner:
            heard(inner)
            inner.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    with speaking(talk) as port:
        refused = sent(port, "https")
        assert refused.problem.startswith("its certificate is refused: ")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
        assert sent(port, "https") == Answer(status=200)
