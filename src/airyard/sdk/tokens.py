"""Tokens and the audit, as methods: ``client.tokens.create(...)``.

Owns: these calls. Must not know: connections, text for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from airyard.sdk import requests
from airyard.sdk.requests import Request

Document = dict[str, Any]


class Tokens:
    """What a client asks about tokens. ``send`` sends a request and returns its document."""

    def __init__(
        self,
        send: Callable[[Request], Document],
        open_: Callable[[Request], AbstractContextManager[Iterator[bytes]]],
    ) -> None:
        self._send, self._open = send, open_

    def create(self, name: str, **fields: Any) -> Document:
        """Give out a token; returns ``{token, secret}``, and the secret never again.

        Fields: ``user`` (oneself), ``scope`` (read, write, admin), ``kind`` (person, agent, service), ``project``,
        ``expires_s``, ``gpu_hours_limit``. Raises: Denied for one that is wider than the caller's.
        """
        return self._send(requests.create_token({"name": name, **fields}))

    def list(self) -> list[Document]:
        """Return the caller's tokens, newest first; an admin's answer holds everybody's."""
        rows: list[Document] = self._send(requests.list_tokens())["tokens"]
        return rows

    def revoke(self, token_id: str) -> None:
        """Take a token back. Raises: NotFound."""
        self._send(requests.revoke_token(token_id))

    def audit(self, since_ms: int = 0) -> Iterator[bytes]:
        """Yield the audit as JSON lines in pieces, oldest first, from ``since_ms`` on."""
        with self._open(requests.audit(since_ms)) as chunks:
            yield from chunks
