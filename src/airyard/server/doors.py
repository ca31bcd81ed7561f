"""Where the server is reached: on this machine, and beyond it by TLS alone.

Owns: which sockets are opened, TLS, the addresses that clients are told. Must not know: what is served.
With TLS there are two doors: a plain one on loopback for this machine's own clients and runners, which then need no
certificate, and one for everybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvicorn

from airyard.core.errors import UserError
from airyard.server.config import ServerSection
from airyard.server.premises import Premises, write_atomically

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doors:
    """Open listeners. ``public`` is the one that speaks TLS; None where there is only one, which speaks plain HTTP."""

    private: socket.socket
    public: socket.socket | None
    public_url: str | None
    """What others are told to come by; None: at the address of ``private``."""
    insecure: bool
    """True where plain HTTP leaves this machine."""

    @classmethod
    @contextlib.contextmanager
    def opened(cls, premises: Premises, section: ServerSection) -> Iterator[Doors]:
        """Open what is configured. Raises: UserError (``TLS_REQUIRED``, ``BAD_CERTIFICATE``), Unavailable."""
        check(section)
        beyond = not is_loopback(section.host)
        with contextlib.ExitStack() as sockets:
            if section.tls is None:
                plain = sockets.enter_context(contextlib.closing(premises.listen(section.host, section.port)))
                yield cls(private=plain, public=None, public_url=section.url, insecure=beyond)
                return
            tls_context(section)
            private = sockets.enter_context(contextlib.closing(premises.listen(LOOPBACK, None)))
            public = premises.listen(section.host, section.port, name="https")
            sockets.enter_context(contextlib.closing(public))
            host = named_host(section.host)
            url = section.url or f"https://{f'[{host}]' if ':' in host else host}:{public.getsockname()[1]}"
            yield cls(private=private, public=public, public_url=url, insecure=False)

    def copies(self) -> Doors:
        """Return the same listeners once more: closing them leaves these open."""
        return replace(
            self, private=self.private.dup(), public=self.public.dup() if self.public is not None else None
        )


def is_loopback(host: str) -> bool:
    """True when only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check(section: ServerSection) -> None:
    """Refuse to carry tokens in the open. Raises: UserError (``TLS_REQUIRED``)."""
    if is_loopback(section.host) or section.tls is not None or section.insecure:
        return
    raise UserError(
        f"[server] host = {section.host!r} is reached from other machines, and there is no TLS: tokens, secrets and "
        "logs would travel in the open",
        code="TLS_REQUIRED",
        fix="set [server.tls] certificate and key (PEM files); in a network that nobody else is in, --insecure does "
        "without, and `airyard status` says so",
    )


def tls_context(section: ServerSection) -> ssl.SSLContext:
    """Load the certificate, so that a bad one is told at the start. Raises: UserError (``BAD_CERTIFICATE``)."""
    assert section.tls is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(section.tls.certificate, section.tls.key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"the certificate {section.tls.certificate} with the key {section.tls.key} cannot be used: "
            f"{error.strerror or error}",
            code="BAD_CERTIFICATE",
            fix="[server.tls] names two PEM files that belong together: the chain, and its key without a passphrase",
        ) from error
    return context


def keep_ca(section: ServerSection, node_folder: Path) -> None:
    """Let what runs on this machine trust the public door, where a machine that joined keeps the CA it was given.

    Raises: UserError (``BAD_CA_FILE``).
    """
    kept = node_folder / "ca.pem"
    given = section.tls.ca if section.tls is not None else None
    if given is None:
        kept.unlink(missing_ok=True)
        return
    try:
        ssl.create_default_context(cafile=given)
        node_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(kept, Path(given).read_bytes(), 0o644)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"{given} cannot be used as the certificate of a CA: {error.strerror or error}",
            code="BAD_CA_FILE",
            fix="[server.tls] ca names a PEM file with the certificate of the CA that issued `certificate`",
        ) from error


def named_host(host: str) -> str:
    """Return what clients call this machine: a wildcard is no address."""
    return socket.getfqdn() if host in ("0.0.0.0", "::") else host


class Beside(uvicorn.Server):
    """A second server in the same process; signals are the first one's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield


async def serve(server: uvicorn.Server, doors: Doors, section: ServerSection) -> None:
    """Serve at both doors until the first server ends."""
    if doors.public is None or section.tls is None:
        await server.serve(sockets=[doors.private])
        return
    first = server.config
    settings: dict[str, Any] = {
        "log_config": None,
        "access_log": False,
        "timeout_graceful_shutdown": first.timeout_graceful_shutdown,
        "timeout_keep_alive": first.timeout_keep_alive,
        "http": first.http,
        "loop": first.loop,
        "lifespan": "off",  # the first server runs it
        "ssl_certfile": section.tls.certificate,
        "ssl_keyfile": section.tls.key,
    }
    beside = Beside(uvicorn.Config(first.app, **settings))
    outer = asyncio.create_task(beside.serve(sockets=[doors.public]))
    try:
        await server.serve(sockets=[doors.private])
    finally:
        beside.should_exit = True
        await outer
