"""Logging in to a yard, as methods: ``stranger(target).logins.browser(port)``.

Owns: these calls, and the client of somebody who has no token yet. Must not know: browsers, text for people, files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airyard.core.errors import Denied, UserError
from airyard.sdk import requests
from airyard.sdk.requests import Request

if TYPE_CHECKING:
    from airyard.sdk.client import Client
    from airyard.sdk.config import Target

Document = dict[str, Any]


class Logins:
    """What a client asks about logins. ``send`` sends a request and returns its document.

    The server speaks with the login provider; the caller only passes on what its browser came back with.
    """

    def __init__(self, send: Callable[[Request], Document]) -> None:
        self._send = send

    def ways(self) -> Document:
        """Return ``{issuer, person, service}``. Raises: NotFound where the yard has no provider."""
        return self._send(requests.login_ways())

    def browser(self, port: int) -> Document:
        """Begin a login whose browser comes back to this port; returns ``{handle, url, expires_s}``."""
        return self._send(requests.login_step("browser", {"port": port}))

    def finish(self, handle: str, **fields: str) -> Document:
        """Finish it with ``state`` and ``code`` (or ``error``); returns ``{token, secret}``."""
        return self._send(requests.login_step("finish", {"handle": handle, **fields}))

    def device(self) -> Document:
        """Begin a login on another device; returns ``{handle, user_code, verification_uri, interval_s, ...}``."""
        return self._send(requests.login_step("device", {}))

    def poll(self, handle: str) -> Document:
        """Ask whether it is finished; returns ``{token, secret}``, or ``{wait_s}`` to ask again after."""
        return self._send(requests.login_step("poll", {"handle": handle}))

    def service(self, token: str) -> Document:
        """Change the token that a job has of its own system; returns ``{token, secret}``."""
        return self._send(requests.login_step("service", {"token": token}))


def stranger(target: Target, *, plain: bool = False) -> Client:
    """Return a client that has no token yet. It sends nothing in the open, unless ``plain`` allows it.

    Raises: UserError where no server is named; Denied (``LOGIN_IN_THE_OPEN``).
    """
    from airyard.sdk.client import Client
    from airyard.sdk.servers import ServersTransport, split_hosts
    from airyard.sdk.transport import HttpTransport

    if target.host is None:
        raise UserError(
            "There is no server to log in to: the local one is yours without a login.",
            code="NO_HOST",
            fix="Name the server: --host URL, AIRYARD_HOST, or [client] host in config.toml.",
        )
    servers = [HttpTransport(host, None, anonymous=True) for host in split_hosts(target.host)]
    for server in servers:
        if not server.is_private and not plain:
            raise Denied(
                f"{server.url} is not reached over TLS: whoever listens on the way could take the login over.",
                code="LOGIN_IN_THE_OPEN",
                fix="Use the https:// address of the server; in a network that nobody else is in, --insecure.",
            )
    return Client(target=target, connect=lambda: ServersTransport(servers, None))
