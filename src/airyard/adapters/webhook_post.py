"""Posts one message to one address, and refuses addresses that messages must not reach.

Owns: the connection, its time limit, which addresses count as public. Must not know: what is sent, tries, secrets.

A user's address makes the server send: names are resolved here, and the connection goes to the very address that was
checked, so that a name cannot mean another one in between. Redirects are not followed, no proxy is asked, and of an
answer only the status is read.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from airyard.core.plain import plain

ANSWER_S = 10.0
"""From the first try to connect until the status is there."""
_MOST_ADDRESSES = 4
_MOST_SAID = 300
_PRIVATE = [
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
]
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv4 addresses as a translating router knows them (RFC 6052)."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Where messages may go: to public addresses, and beyond them as said here."""

    allow_private: bool = False
    hosts: frozenset[str] = frozenset()
    """``NAME`` or ``NAME:PORT`` in lower case; ``[ADDRESS]`` for one of IPv6."""

    def allows(self, address: str) -> bool:
        """Say whether messages may go to an address, whatever its name."""
        found = _meant(ipaddress.ip_address(address.partition("%")[0]))
        if found.is_global and not found.is_multicast:
            return True
        return self.allow_private and any(
            found.version == network.version and found in network for network in _PRIVATE
        )

    def names(self, host: str, port: int) -> bool:
        """Say whether a host is allowed by name."""
        written = f"[{host}]" if ":" in host else host
        return written in self.hosts or f"{written}:{port}" in self.hosts


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a post: a status, or why there is none. ``refused``: nothing was sent, nor will ever be."""

    status: int | None = None
    problem: str = ""
    refused: bool = False


def post(
    url: str, headers: Mapping[str, str], body: bytes, *, reach: Reach | None, within_s: float = ANSWER_S
) -> Answer:
    """Send a message and return the answer; ``reach`` None goes anywhere. Blocks, at most about ``within_s``.

    Looking up a name takes as long as the resolver lets it. Problems are told without the address.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Answer(problem=f"the name cannot be resolved: {_words(error)}")
    if reach is not None and not reach.names(host, port):
        found = [one for one in found if reach.allows(str(one[4][0]))]
        if not found:
            return Answer(
                refused=True,
                problem="the host has no public address, and this yard's [notify] allows no other for it",
            )
    try:
        return Answer(status=_exchange(parts, host, port, found, headers, body, within_s))
    except (OSError, http.client.HTTPException, ValueError) as error:
        return Answer(problem=_words(error))


def _exchange(
    parts: SplitResult,
    host: str,
    port: int,
    found: Sequence[Any],
    headers: Mapping[str, str],
    body: bytes,
    within_s: float,
) -> int:
    deadline = time.monotonic() + within_s
    connection = http.client.HTTPConnection(host, port)
    line = _connected(found, deadline)
    held = [line]
    # A timeout of the socket counts from octet to octet: an answer that drips would never end.
    watch = threading.Timer(within_s, lambda: _cut(held[-1]))
    watch.daemon = True
    watch.start()
    try:
        if parts.scheme == "https":
            line = ssl.create_default_context().wrap_socket(line, server_hostname=host)
            held.append(line)
        line.settimeout(within_s)
        connection.sock = line
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", target, body=body, headers=dict(headers))
        status = connection.getresponse().status
        if time.monotonic() >= deadline:
            raise TimeoutError("cut off")  # what was cut reads as an answer that has ended
        return status
    except (OSError, http.client.HTTPException):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"no answer within {within_s:g} s") from None
        raise
    finally:
        watch.cancel()
        connection.close()
        line.close()


def _connected(found: Sequence[Any], deadline: float) -> socket.socket:
    """Return a connection to the first address that takes one. Raises: OSError of the last one."""
    last: OSError = TimeoutError("no address answered in time")
    for family, kind, protocol, _, address in found[:_MOST_ADDRESSES]:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        line = socket.socket(family, kind, protocol)
        try:
            line.settimeout(left_s)
            line.connect(address)
            return line
        except OSError as error:
            line.close()
            last = error
    raise last


def _cut(line: socket.socket) -> None:
    try:
        line.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is closed already


def _meant(address: Address) -> Address:
    """Return the address behind one that only wraps it."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _TRANSLATED:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address


def _words(error: Exception) -> str:
    """Return why there is no answer, plain: what is no HTTP is quoted, and a receiver answers what it likes."""
    return plain(_said(error), _MOST_SAID)


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, TimeoutError):
        return str(error) if error.args and len(error.args) == 1 else "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
