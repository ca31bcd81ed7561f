"""The address of this machine that a browser comes back to after a login.

Owns: a listener for one answer. Must not know: the server, what the answer is good for.
"""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

PAGE = (
    b'<!doctype html><html lang="en"><meta charset="utf-8"><title>Airyard</title>'
    b"<p>Airyard has the answer. Go back to the terminal; this page can be closed.</p></html>"
)


class Loopback:
    """Waits for one visit of ``http://127.0.0.1:<port>/callback`` that repeats ``state``; others do not count."""

    def __init__(self) -> None:
        self.state = ""
        self.answer: dict[str, str] = {}
        self._came = threading.Event()
        outer = self

        class Visit(http.server.BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                fits = outer._take(self.path)
                self.send_response(200 if fits else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Referrer-Policy", "no-referrer")
                self.send_header("Content-Security-Policy", "default-src 'none'")
                self.end_headers()
                self.wfile.write(PAGE if fits else b"not here\n")
                if fits:
                    outer._came.set()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class names it so
                """Say nothing: the address holds a code."""

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Visit)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]

    def wait(self, timeout_s: float) -> dict[str, str] | None:
        """Return the fields that the browser came back with; None when it did not in time."""
        return self.answer if self._came.wait(timeout_s) else None

    def _take(self, path: str) -> bool:
        parts = urlsplit(path)
        fields = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path != "/callback" or not self.state or fields.get("state") != self.state or self.answer:
            return False
        self.answer = {name: fields[name] for name in ("state", "code", "error") if name in fields}
        return True

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Answer meanwhile."""
        thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="loopback", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join(timeout=5)
            self._server.server_close()


def state_of(url: str) -> str:
    """Return the state in the address that a browser is sent to."""
    return next(iter(parse_qs(urlsplit(url).query).get("state", [])), "")
