"""A receiver of webhooks: a real HTTP server on loopback that answers as a test says and checks signatures itself."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

HANG = -1
"""Takes the request and never answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes
    answered: int

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def genuine(self, key: bytes) -> bool:
        """Check the signature as a receiver does that knows nothing of Airyard's code."""
        at = self.headers["webhook-timestamp"]
        signed = self.id.encode() + b"." + at.encode() + b"." + self.body
        wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        return self.headers.get("webhook-signature") == wanted and abs(time.time() - int(at)) < 300


class Receiver:
    """Answers with ``script`` in turn, then with 200. A context."""

    def __init__(self, script: Sequence[int] = (), *, location: str = "") -> None:
        self.script = list(script)
        self.received: list[Received] = []
        self.location = location
        self._over = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.take(self)

            def log_message(self, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hooks/airyard"

    def take(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length", 0)))
        status = self.script.pop(0) if self.script else 200
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.received.append(Received(path=request.path, headers=headers, body=body, answered=status))
        if status == HANG:
            self._over.wait(60)
            return
        request.send_response(status)
        if 300 <= status < 400:
            request.send_header("location", self.location)
        request.send_header("content-length", "0")
        request.end_headers()

    def until(self, count: int, timeout: float = 60) -> list[Received]:
        """Wait for so many requests."""
        deadline = time.monotonic() + timeout
        while len(self.received) < count:
            assert time.monotonic() < deadline, self.received
            time.sleep(0.02)
        return self.received

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()
