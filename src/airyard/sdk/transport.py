"""HTTP on the standard library: proven connections, kept alive, JSON and streams over them.

Owns: sockets, TLS, proxies, the identity proof, the token header. No connection carries a token before the
other side has proved over that same connection that it knows the token too.
Must not know: what a request means, when to repeat one (client.py).

The standard library instead of httpx because every command pays the import: 30 ms against 270 ms.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import ipaddress
import json
import os
import ssl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

import airyard
from airyard.core.errors import AiryardError, Denied, Unavailable, UserError, from_json
from airyard.core.versions import CLIENT, Kinship, kinship
from airyard.sdk import requests
from airyard.sdk.requests import Request

CONNECT_TIMEOUT_S = 5.0
READ_BYTES = 256 * 1024
KEPT_CONNECTIONS = 8
GIVEN_PREFIX = "ayu_"
_MAYBE_TOO_NEW = ("INVALID_ARGS", "NO_SUCH_PATH", "METHOD_NOT_ALLOWED")
"""What a server of another release says to a request, a field or a path that it does not know."""
BROKEN = (OSError, http.client.HTTPException)
"""What a connection raises when it breaks; TimeoutError and ssl.SSLError are OSErrors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer with a status below 400."""

    status: int
    data: Any = None
    """The parsed JSON body; None when there was none."""


class Transport(Protocol):
    """What the client needs of HTTP.

    Both calls raise the server's own error for a status of 400 and above, and ``ConnectionLost`` for anything
    wrong with the connection.
    """

    def send(self, request: Request, content: BinaryIO | None = None, size: int = 0) -> Answer:
        """Send a request, with ``size`` octets of ``content`` where it uploads, and read the whole answer."""
        ...

    def open(self, request: Request) -> AbstractContextManager[Iterator[bytes]]:
        """Send a request; the value iterates the octets of the answer as they arrive."""
        ...


class ConnectionLost(Unavailable):
    """No connection, or it broke; ``sent`` says whether the server may have acted on the request."""

    default_code = "SERVER_UNREACHABLE"

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(
            message,
            fix="Check the address (--host, AIRYARD_HOST, config.toml) and that a server runs there; "
            "`airyard up` starts a local one.",
        )
        self.sent = sent


def prove(token: str, nonce: str) -> str:
    """Return what a server that knows the token answers to the nonce.

    Of a token that was given out it keeps the SHA-256 alone, and proves that it knows that.
    """
    given = token_id_of(token) is not None
    key = hashlib.sha256(token.encode()).hexdigest() if given else token
    return hmac.new(key.encode(), nonce.encode(), hashlib.sha256).hexdigest()


def token_id_of(token: str) -> str | None:
    """Return the id within a token that was given out (``ayu_ID_SECRET``); None for the owner's, which has none."""
    if not token.startswith(GIVEN_PREFIX):
        return None
    return token.removeprefix(GIVEN_PREFIX).partition("_")[0]


class HttpTransport:
    """Connections to one server. Safe to use from several threads; each call has a connection for itself.

    Idle connections are kept and used again; a call that may not be repeated gets a fresh one, because a kept
    one may already be closed at the other end.
    """

    def __init__(self, url: str, token: str | None, *, anonymous: bool = False) -> None:
        """``anonymous``: to log in, without a token that the other side could prove to know. TLS must do instead."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise UserError(
                f"{url!r} is not the address of a server; it looks like http://HOST:PORT or https://HOST.",
                code="BAD_HOST",
            )
        try:
            port = parts.port
        except ValueError as error:
            raise UserError(f"{url!r} is not the address of a server: {error}.", code="BAD_HOST") from None
        self._scheme, self._host = parts.scheme, parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._prefix = parts.path.rstrip("/")
        self.url = f"{parts.scheme}://{parts.netloc}{self._prefix}"
        self._token = token
        self._anonymous = anonymous
        self._idle: list[http.client.HTTPConnection] = []
        self._version = airyard.__version__
        """Of the server, as it said last."""

    @property
    def is_private(self) -> bool:
        """True where nobody else reads along: over TLS, or on this machine."""
        return self._scheme == "https" or _is_here(self._host)

    def send(self, request: Request, content: BinaryIO | None = None, size: int = 0) -> Answer:
        """See Transport."""
        connection, response = self._exchange(request, content, size)
        try:
            payload = response.read()
        except BROKEN as error:
            connection.close()
            raise self._lost(error, sent=True) from error
        if response.status >= 400:
            self._keep(connection, response)
            raise self._refused(response.status, payload)
        data = _parse(payload, self.url) if payload else None
        self._keep(connection, response)
        return Answer(status=response.status, data=data)

    @contextmanager
    def open(self, request: Request) -> Iterator[Iterator[bytes]]:
        """See Transport. The connection is closed afterwards: the rest of a stream is not worth reading."""
        connection, response = self._exchange(request, None, 0)
        try:
            if response.status >= 400:
                raise self._refused(response.status, response.read())
            yield self._chunks(response)
        finally:
            response.close()
            connection.close()

    def prove(self) -> None:
        """Open a connection and have the other side prove itself. Raises: ConnectionLost, Denied."""
        self._idle.append(self._connect())

    def close(self) -> None:
        """Close the kept connections; the transport can still be used."""
        while self._idle:
            self._idle.pop().close()

    def _chunks(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while chunk := response.read1(READ_BYTES):
                yield chunk
        except BROKEN as error:
            raise self._lost(error, sent=True) from error

    def _exchange(
        self, request: Request, content: BinaryIO | None, size: int
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self._take(request)
        headers = {"Accept": "application/json"}
        if not self._anonymous:
            headers["Authorization"] = f"Bearer {self._token}"
        body: Any = None
        if content is not None:
            body = content
            headers |= {"Content-Length": str(size), "Content-Type": "application/octet-stream"}
        elif request.body is not None:
            body = json.dumps(request.body, separators=(",", ":")).encode()
            headers["Content-Type"] = "application/json"
        try:
            try:
                connection.request(request.method, self._prefix + request.path, body=body, headers=headers)
            except (BrokenPipeError, ConnectionResetError):
                if content is None:
                    raise
                # A server that refuses an upload answers before it has read all of it: the answer says why.
            return connection, connection.getresponse()
        except BROKEN as error:
            connection.close()
            raise self._lost(error, sent=True) from error

    def _take(self, request: Request) -> http.client.HTTPConnection:
        try:
            connection = self._idle.pop() if request.idempotent else self._connect()
        except IndexError:
            connection = self._connect()
        if connection.sock is not None:
            connection.sock.settimeout(request.read_timeout_s)
        return connection

    def _keep(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        if response.will_close or connection.sock is None or len(self._idle) >= KEPT_CONNECTIONS:
            connection.close()
        else:
            self._idle.append(connection)

    def _connect(self) -> http.client.HTTPConnection:
        token = self._token or ""
        if not token and not self._anonymous:
            raise Denied(
                f"There is no token for the server {self.url}.",
                code="NO_TOKEN",
                fix="Run `airyard login`, or set AIRYARD_TOKEN, or `token` beside `host` in config.toml.",
            )
        connection = self._open_connection()
        nonce = os.urandom(16).hex()
        try:
            connection.request("GET", self._prefix + requests.identify(nonce, token_id_of(token)))
            response = connection.getresponse()
            payload = response.read(64 * 1024)
            self._version = _check_identity(
                payload, prove(token, nonce) if token and not self._anonymous else None, self.url
            )
        except BROKEN as error:
            connection.close()
            if _spoke_something_else(error):
                raise _not_airyard(self.url, "its answer is not HTTP") from None
            raise self._lost(error, sent=False) from error
        except AiryardError:
            connection.close()
            raise
        connection.auto_open = 0  # were it made anew behind our back, nothing would have proved it
        return connection

    def _open_connection(self) -> http.client.HTTPConnection:
        proxy = _proxy(self._scheme, self._host)
        host, port = proxy or (self._host, self._port)
        if self._scheme == "https":
            context = _tls_context()
            secure = http.client.HTTPSConnection(host, port, timeout=CONNECT_TIMEOUT_S, context=context)
            if proxy:
                secure.set_tunnel(self._host, self._port)
            return secure
        plain = http.client.HTTPConnection(host, port, timeout=CONNECT_TIMEOUT_S)
        if proxy:
            plain.set_tunnel(self._host, self._port)
        return plain

    def _refused(self, status: int, payload: bytes) -> AiryardError:
        """Return the server's own error; where it may come from the difference of two releases, say so."""
        error = _error(status, payload, self.url)
        alike = kinship(self._version, airyard.__version__) in (Kinship.SAME, Kinship.UNKNOWN)
        if alike or error.code not in _MAYBE_TOO_NEW:
            return error
        body = error.as_json()
        message = (
            f"{error.message} (The server is of Airyard {self._version}, this client of {airyard.__version__}: "
            "what only one of the two knows cannot be used before both have it.)"
        )
        return from_json(status, {"error": {**body, "message": message}})

    def _lost(self, error: BaseException, *, sent: bool) -> AiryardError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return Denied(
                f"The certificate of {self.url} is not trusted: {error.verify_message}.",
                code="CERTIFICATE",
                fix="Set AIRYARD_CA_FILE to the certificate of the server or of its CA (PEM).",
            )
        reason = _reason(error)
        return ConnectionLost(f"The server {self.url} cannot be reached: {reason}.", sent=sent)


def _tls_context() -> ssl.SSLContext:
    """Trust what ``AIRYARD_CA_FILE`` holds, else what this machine trusts. Raises: UserError."""
    for name in ("AIRYARD_CA_FILE", "SSL_CERT_FILE"):
        file = os.environ.get(name)
        if file:
            try:
                return ssl.create_default_context(cafile=file)
            except (OSError, ssl.SSLError) as error:
                raise UserError(
                    f"{name} names {file}, which cannot be used: {error.strerror or error}.",
                    code="BAD_CA_FILE",
                ) from None
    return ssl.create_default_context()


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, http.client.RemoteDisconnected):
        return "it closed the connection"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


def _spoke_something_else(error: BaseException) -> bool:
    return isinstance(error, http.client.BadStatusLine) and not isinstance(
        error, http.client.RemoteDisconnected
    )


def _check_identity(payload: bytes, proof: str | None, url: str) -> str:
    """Return the version that the server says it is of; ``proof`` None asks for none. Raises: Denied, UserError."""
    try:
        identity = json.loads(payload)
    except ValueError:
        raise _not_airyard(url, "its answer is not JSON") from None
    if not isinstance(identity, dict) or identity.get("service") != "airyard":
        raise _not_airyard(url, "it does not say that it is one")
    if proof is not None and not hmac.compare_digest(str(identity.get("proof", "")).encode(), proof.encode()):
        raise _not_airyard(url, "it does not know the token of this client")
    spoken, version = identity.get("protocol"), str(identity.get("version"))
    if CLIENT.common(spoken, spoken) is None:
        raise UserError(
            f"The server {url} (Airyard {version}) speaks protocol {spoken}; this client (Airyard "
            f"{airyard.__version__}) speaks {CLIENT}.",
            code="PROTOCOL_MISMATCH",
            fix=f"Install Airyard {version} here, or the release before or after it.",
            details={"server": version, "client": airyard.__version__},
        )
    return version


def _not_airyard(url: str, why: str) -> Denied:
    return Denied(
        f"{url} has not proved to be your Airyard server: {why}. Nothing was sent to it.",
        code="NOT_AIRYARD",
        fix="Check the host, and that AIRYARD_TOKEN is the token of that server; a login that ended some days ago is "
        "forgotten: `airyard login`.",
        details={"host": url},
    )


def _error(status: int, payload: bytes, url: str) -> AiryardError:
    try:
        body = json.loads(payload)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        body = {"message": f"The server {url} answered with HTTP status {status}."}
    return from_json(status, body)


def _parse(payload: bytes, url: str) -> Any:
    try:
        return json.loads(payload)
    except ValueError:
        raise Unavailable(f"The server {url} sent an answer that is not JSON.", code="BAD_ANSWER") from None


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False  # a name, whatever it begins with


def _proxy(scheme: str, host: str) -> tuple[str, int] | None:
    """Return host and port of the proxy that the environment names for this server, if any."""
    if _is_here(host):
        return None
    if not any(name.lower() in (f"{scheme}_proxy", "all_proxy") for name in os.environ):
        return None
    from urllib.request import getproxies, proxy_bypass

    proxies = getproxies()
    url = proxies.get(scheme) or proxies.get("all")
    if not url or proxy_bypass(host):
        return None
    parts = urlsplit(url if "://" in url else f"http://{url}")
    return (parts.hostname, parts.port or 80) if parts.hostname else None
