"""The runner's way to the server: HTTP/1.1 over connections that stay open, and patience.

Owns: requests of the runner API, their headers, what each kind of failure means.
Must not know: what orders and reports say, when to give up (the runner never does).

Standard library only. One ``Channel`` serves one thread.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airyard.core.errors import UserError
from airyard.core.versions import RUNNER
from airyard.node.trust import context_of

PROTOCOL = RUNNER.newest
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 2.0
_SAY_AFTER_S = 1.0
_CONNECT_S = 3.0
_COPY_BYTES = 1024 * 1024


class ServerAway(Exception):
    """No usable answer: connection refused, cut, timed out, or a status that asks to try again.

    ``leader``: the address of the server that leads, where this one only said that.
    """

    def __init__(self, message: str, *, leader: str = "") -> None:
        super().__init__(message)
        self.leader = leader


class AttemptIsOver(Exception):
    """The server answered 410: it does not know the attempt any more."""


class Refused(Exception):
    """The server understood and said no; ``body`` is its JSON."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(f"HTTP status {status}: {body.get('message', '')}")
        self.status = status
        self.body = body


class Servers:
    """Where a leader may be found, shared by a runner's channels. Any thread."""

    __slots__ = ("_urls", "ca_file", "spoken")

    def __init__(self, urls: str, ca_file: Path | None = None) -> None:
        """``urls``: one address, or several with commas between them; ``ca_file``: whom their certificates are of."""
        self.ca_file = ca_file
        self._urls = tuple(url for url in urls.split(",") if url)
        self.spoken = RUNNER.oldest
        """The form of the protocol that the leader speaks, too: until one has answered the oldest, which all do."""

    def answered(self, protocol: object) -> None:
        """Note what the leader says it speaks: it may be of the release before, or after."""
        self.spoken = RUNNER.common(protocol) or RUNNER.oldest

    @property
    def urls(self) -> tuple[str, ...]:
        """All of them, the likeliest first."""
        return self._urls

    def found(self, url: str) -> None:
        """Begin with this one from now on: it leads, or was said to."""
        if url in self._urls and self._urls[0] != url:
            self._urls = (url, *(other for other in self._urls if other != url))

    def learn(self, urls: Iterable[str]) -> None:
        """Add what a leader says there is, behind what is known: the one that just answered stays the first."""
        self._urls = (*self._urls, *(str(url) for url in urls if url not in self._urls))

    def missed(self, url: str) -> None:
        """Try this one last: it did not answer, or does not lead."""
        if len(self._urls) > 1 and self._urls[0] == url:
            self._urls = (*self._urls[1:], url)


class Channel:
    """One connection to the server's runner API, made when needed and again after a failure.

    Of several servers it asks one until that fails or does not lead, then the next.
    """

    __slots__ = ("_connection", "_headers", "_host", "_https", "_prefix", "_servers", "_token", "_url")

    def __init__(self, servers: str | Servers, token: str) -> None:
        self._servers = Servers(servers) if isinstance(servers, str) else servers
        self._token = token
        self._connection: http.client.HTTPConnection | None = None
        self._url = ""
        self._turn_to(self._servers.urls[0] if self._servers.urls else "")

    def _turn_to(self, url: str) -> None:
        parts = urlsplit(url)
        self.close()
        self._url = url
        self._https = parts.scheme == "https"
        self._host = parts.netloc
        self._prefix = f"{parts.path.rstrip('/')}/api/v1/runner"
        self._headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}

    @property
    def servers(self) -> Servers:
        """Where a leader may be found, and what it speaks."""
        return self._servers

    def close(self) -> None:
        """Cut the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def get_json(self, path: str, *, timeout_s: float) -> dict[str, Any]:
        """GET. Raises: ServerAway, AttemptIsOver, Refused."""
        return _json(self._request("GET", path, None, {}, timeout_s))

    def post_json(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """POST a JSON object. Raises: ServerAway, AttemptIsOver, Refused."""
        data = json.dumps(body, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json"}
        return _json(self._request("POST", path, data, headers, timeout_s))

    def post_bytes(self, path: str, data: bytes, *, timeout_s: float) -> dict[str, Any]:
        """POST octets. Raises: ServerAway, AttemptIsOver, Refused."""
        headers = {"Content-Type": "application/octet-stream"}
        return _json(self._request("POST", path, data, headers, timeout_s))

    def download(self, path: str, write: Callable[[bytes], object], *, timeout_s: float) -> None:
        """Hand an answer's body to ``write``. Raises: ServerAway, AttemptIsOver, Refused; what it raises."""
        with self._turning():
            response = self._respond("GET", path, None, {}, timeout_s)
            if response.status != 200:
                _check(response.status, self._read(response))
        try:
            while data := response.read(_COPY_BYTES):
                write(data)
        except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
            self.close()
            raise ServerAway(str(error)) from error
        if response.length:
            self.close()
            raise ServerAway(f"the answer ended {response.length} bytes early")

    def _request(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> bytes:
        with self._turning():
            response = self._respond(method, path, data, headers, timeout_s)
            return _check(response.status, self._read(response))

    @contextlib.contextmanager
    def _turning(self) -> Iterator[None]:
        """Ask the likeliest server, and another one the next time where this one is away or does not lead."""
        if self._servers.urls and self._servers.urls[0] != self._url:
            self._turn_to(self._servers.urls[0])
        try:
            yield
        except ServerAway as away:
            self._servers.missed(self._url)
            if away.leader:
                self._servers.found(away.leader)
            raise

    def _respond(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str], timeout_s: float
    ) -> http.client.HTTPResponse:
        """Send and read the head. A connection kept open may have been closed meanwhile: one retry."""
        for fresh in (False, True):
            reused = self._connection is not None
            try:
                connection = self._connected(timeout_s)
                connection.request(
                    method, f"{self._prefix}/{path}", body=data, headers={**self._headers, **headers}
                )
                return connection.getresponse()
            except UserError as error:  # the CA's file is gone, or damaged
                raise ServerAway(error.message) from error
            except (http.client.HTTPException, OSError) as error:
                self.close()
                if fresh or not reused or isinstance(error, TimeoutError):
                    raise ServerAway(f"{method} {path}: {error or type(error).__name__}") from error
        raise AssertionError("unreachable")

    def _connected(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._connection is not None and self._connection.sock is None:
            self.close()  # the last answer said `Connection: close`, as those of a stopping server do
        if self._connection is None:
            # A machine that is off says nothing at all: where there are others, they are asked soon.
            connect_s = min(timeout_s, _CONNECT_S) if len(self._servers.urls) > 1 else timeout_s
            if self._https:
                context = context_of(self._servers.ca_file)
                self._connection = http.client.HTTPSConnection(self._host, timeout=connect_s, context=context)
            else:
                self._connection = http.client.HTTPConnection(self._host, timeout=connect_s)
            self._connection.connect()
        assert isinstance(self._connection.sock, socket.socket)
        self._connection.sock.settimeout(timeout_s)
        return self._connection

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        try:
            return response.read()
        except (http.client.HTTPException, OSError) as error:
            self.close()
            raise ServerAway(str(error) or type(error).__name__) from error


class Patience:
    """Pauses that grow while the server is away: 20 ms, doubling to 2 s; says so once an outage."""

    __slots__ = ("_pause_s", "_said", "_what")

    def __init__(self, what: str) -> None:
        self._what = what
        self._pause_s = _FIRST_PAUSE_S
        self._said = False

    def wait(self, reason: object = None, *, at_most_s: float = _LONGEST_PAUSE_S) -> None:
        """Sleep for the next pause; the first ``reason`` of an outage goes to the process's log."""
        if reason is not None and not self._said and self._pause_s >= min(_SAY_AFTER_S, at_most_s):
            self._said = True
            sys.stderr.write(f"{time.strftime('%FT%T%z')} {self._what}: {reason}; trying on\n")
            sys.stderr.flush()
        self._pause_s = min(at_most_s, self._pause_s)
        time.sleep(self._pause_s)
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)

    def reset(self) -> None:
        """Begin anew after an answer."""
        self._pause_s = _FIRST_PAUSE_S
        self._said = False


def _check(status: int, body: bytes) -> bytes:
    """Return the body of a good answer; turn others into what they mean for the runner."""
    if status < 300:
        return body
    try:
        parsed = json.loads(body)
    except ValueError:
        parsed = {}
    fields = parsed if isinstance(parsed, dict) else {}
    if status == 410:
        raise AttemptIsOver(str(fields.get("message", "")))
    if status in (408, 425, 429) or status >= 500:
        error = fields.get("error")
        details = error.get("details") if isinstance(error, dict) else None
        leader = details.get("leader") if isinstance(details, dict) else None
        raise ServerAway(f"HTTP status {status}: {fields.get('message', '')}", leader=str(leader or ""))
    raise Refused(status, fields)


def _json(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body) if body else {}
    except ValueError as error:
        raise ServerAway("the answer was no JSON") from error
    if not isinstance(value, dict):
        raise ServerAway("the answer was no JSON object")
    return value
