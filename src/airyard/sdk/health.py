"""Nodes' health, as methods: ``client.health.events()``.

Owns: these calls. Must not know: connections, text for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airyard.sdk import requests
from airyard.sdk.requests import Request

Document = dict[str, Any]


class Health:
    """What a client asks about nodes' health. ``send`` sends a request and returns its document."""

    def __init__(self, send: Callable[[Request], Document]) -> None:
        self._send = send

    def events(self, node: str | None = None, since_s: int | None = None) -> Document:
        """Return ``{events, breakers}``: what became of nodes by their health, the newest last."""
        return self._send(requests.health_events(node, since_s))

    def maintenance(self, nodes: Sequence[str], on: bool, *, reason: str = "") -> Document:
        """Take nodes over, or give them back to be tested; returns what ``cordon`` returns."""
        return self._send(requests.maintenance(nodes, on, reason))

    def acquit(self, nodes: Sequence[str], *, reason: str = "") -> Document:
        """Say that it was a false alarm; returns what ``cordon`` returns. Raises: Conflict."""
        return self._send(requests.acquit(nodes, reason))

    def reset_breaker(self, pool: str = "") -> Document:
        """Let nodes be taken out again; returns what ``cordon`` returns, with pools for nodes."""
        return self._send(requests.reset_breaker(pool))

    def notifications(self, state: str = "all", limit: int = 100) -> Document:
        """Return ``{notifications, counts}``: messages to people (waiting, delivered, given_up, all), newest first."""
        return self._send(requests.notifications(state, limit))

    def report(self, events: Sequence[Mapping[str, Any]]) -> Document:
        """Report what a monitor of one's own saw; returns ``{taken}``."""
        return self._send(requests.health_report(events))
