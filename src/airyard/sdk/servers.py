"""Several servers of which one leads, as one transport: asks the likeliest, and another one next time.

Owns: which server is asked. Must not know: when to repeat a call (``client``).

A server that only stands by says who leads; it has proved that it knows the token, and so must the one it names.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from airyard.core.errors import AiryardError
from airyard.sdk.requests import Request
from airyard.sdk.transport import Answer, ConnectionLost, HttpTransport

NOT_LEADER = "NOT_LEADER"


def split_hosts(host: str) -> list[str]:
    """Return the addresses in a host that may name several, with commas between them."""
    return [part.strip() for part in host.split(",") if part.strip()] or [host]


class ServersTransport:
    """Implements ``Transport`` over the servers of one yard. Any thread."""

    def __init__(self, servers: Sequence[str | HttpTransport], token: str | None) -> None:
        """``servers``: addresses, or connections to them. Raises: UserError for something that is no address."""
        self._token = token
        self._lock = threading.Lock()
        self._all = [HttpTransport(one, token) if isinstance(one, str) else one for one in servers]

    @property
    def url(self) -> str:
        """The address that is asked next."""
        return self._all[0].url

    def send(self, request: Request, content: BinaryIO | None = None, size: int = 0) -> Answer:
        """See Transport."""
        asked = self._all[0]
        with self._turning(asked):
            return asked.send(request, content, size)

    @contextmanager
    def open(self, request: Request) -> Iterator[Iterator[bytes]]:
        """See Transport."""
        asked = self._all[0]
        with self._turning(asked), asked.open(request) as chunks:
            yield chunks

    def prove(self) -> None:
        """See HttpTransport."""
        asked = self._all[0]
        with self._turning(asked):
            asked.prove()

    def close(self) -> None:
        """Close the kept connections; the transport can still be used."""
        for transport in self._all:
            transport.close()

    @contextmanager
    def _turning(self, asked: HttpTransport) -> Iterator[None]:
        try:
            yield
        except ConnectionLost:
            self._miss(asked, None)
            raise
        except AiryardError as error:
            if error.code == NOT_LEADER:
                self._miss(asked, str(error.details.get("leader") or "") or None)
            raise

    def _miss(self, asked: HttpTransport, leader: str | None) -> None:
        """Ask another one next: the one that is said to lead, else the next in turn."""
        with self._lock:
            if self._all[0] is not asked:
                return  # another thread has turned already
            self._all.append(self._all.pop(0))
            if leader is None:
                return
            named = [transport for transport in self._all if transport.url == leader]
            first = named[0] if named else HttpTransport(leader, self._token)
            self._all = [first, *(transport for transport in self._all if transport is not first)]
