"""How an MLflow server is reached: address, socket, credentials, and what its refusals mean.

Owns: the one place that builds HTTP clients for MLflow and maps its answers to Airyard's errors. Must not
know: what is asked of MLflow, or whether the server is embedded.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx

from airyard.core.errors import AiryardError, Denied, NotFound, Unavailable, UserError

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 30.0
AWAY_STATUSES = frozenset({429, 502, 503, 504})


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowEndpoint:
    """An MLflow server: ``base_url`` without a trailing slash, over a UNIX socket if one is given."""

    base_url: str
    socket_path: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        """The address for people; never holds a credential."""
        return self.label or self.base_url

    def client(self) -> httpx.Client:
        """Open a blocking client for threads; the caller closes it."""
        transport = httpx.HTTPTransport(uds=self.socket_path) if self.socket_path else None
        return httpx.Client(
            base_url=self.base_url,
            headers=dict(self.headers),
            transport=transport,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=self.socket_path is None,
        )

    def async_client(self) -> httpx.AsyncClient:
        """Open an asyncio client; the caller closes it in the same event loop."""
        transport = httpx.AsyncHTTPTransport(uds=self.socket_path) if self.socket_path else None
        return httpx.AsyncClient(
            base_url=self.base_url,
            headers=dict(self.headers),
            transport=transport,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            trust_env=self.socket_path is None,
            follow_redirects=False,
        )


def endpoint_of_uri(uri: str, environment: Mapping[str, str]) -> MlflowEndpoint:
    """Build the endpoint of a configured tracking URI.

    Credentials come from the URI's user part or, as with MLflow's own client, from ``MLFLOW_TRACKING_TOKEN``
    or ``MLFLOW_TRACKING_USERNAME`` and ``MLFLOW_TRACKING_PASSWORD`` in ``environment``.

    Raises: ``UserError`` for anything but ``http(s)://host``.
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(
            f"tracking URI {_without_credentials(uri)!r} is not an http or https address",
            code="BAD_TRACKING_URI",
            fix="use http(s)://HOST[:PORT][/PREFIX], `embedded`, or `off`",
        )
    host = parts.netloc.rpartition("@")[2]
    base_url = urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
    username = parts.username or environment.get("MLFLOW_TRACKING_USERNAME")
    password = parts.password or environment.get("MLFLOW_TRACKING_PASSWORD") or ""
    token = environment.get("MLFLOW_TRACKING_TOKEN")
    headers: tuple[tuple[str, str], ...] = ()
    if username:
        secret = base64.b64encode(f"{username}:{password}".encode()).decode("ascii")
        headers = (("Authorization", f"Basic {secret}"),)
    elif token:
        headers = (("Authorization", f"Bearer {token}"),)
    return MlflowEndpoint(base_url=base_url, headers=headers)


def _without_credentials(uri: str) -> str:
    head, _, tail = uri.rpartition("@")
    return f"{head.split('//')[0]}//***@{tail}" if head else tail


def unreachable(endpoint: MlflowEndpoint, error: Exception) -> Unavailable:
    """Describe a failed exchange with ``endpoint``."""
    reason = str(error) or type(error).__name__
    return Unavailable(
        f"MLflow at {endpoint.name} does not answer: {reason}",
        code="TRACKING_UNAVAILABLE",
        retry_after_ms=2000,
    )


def refusal(endpoint: MlflowEndpoint, response: httpx.Response, what: str) -> AiryardError:
    """Turn an MLflow answer of status 400 or more, already read, into the error it means.

    500 is counted as away: MLflow answers it for a locked or full database, which passes.
    """
    code, message = _error_of(response)
    text = f"MLflow at {endpoint.name} refused to {what}: {message}"
    details = {"status": response.status_code, "mlflow_error_code": code}
    if response.status_code in AWAY_STATUSES or response.status_code >= 500:
        return Unavailable(text, code="TRACKING_UNAVAILABLE", details=details, retry_after_ms=2000)
    if response.status_code in (401, 403):
        return Denied(
            text,
            code="TRACKING_DENIED",
            details=details,
            fix="check MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        )
    if response.status_code == 404 or code == "RESOURCE_DOES_NOT_EXIST":
        return NotFound(text, code="TRACKING_NOT_FOUND", details=details)
    return UserError(text, code="TRACKING_REFUSED", details=details)


def _error_of(response: httpx.Response) -> tuple[str, str]:
    try:
        body = response.json()
    except ValueError:
        body = None
    if isinstance(body, dict):
        return str(body.get("error_code", "")), str(body.get("message", ""))[:2000]
    return "", f"HTTP status {response.status_code}: {response.text[:300]}"
