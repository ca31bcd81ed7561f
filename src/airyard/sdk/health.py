"""Nodes' health, as methods: ``client.health.events()``.

Owns: these calls. Must not know: connections, text for people.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from airyard.core.errors import from_json
from airyard.sdk import requests
from airyard.sdk.requests import Request

Document = dict[str, Any]
WAIT_S = 20.0


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

    def check(self, node: str, *, full: bool = False) -> Document:
        """Have a node checked by its agent, and wait: ``{node, profile, simulated, reported, checks}``.

        Blocks for seconds, with ``full`` for minutes. Raises: NotFound, and Unavailable where there are no results.
        """
        begun = self._send(requests.check_node(node, "full" if full else "fast"))
        return self._wait(begun["round"], requests.checked)

    def pair(self, one: str, other: str) -> Document:
        """Have two nodes tested against each other, and wait: ``{nodes, outcome, why, method, busbw_gb_s, ...}``.

        Blocks for seconds, with torch for a minute. Raises: NotFound, UserError, and Unavailable where there is no
        verdict.
        """
        return self._wait(self._send(requests.pair_nodes(one, other))["round"], requests.paired)

    def _wait(self, name: str, ask: Callable[[str, float], Request]) -> Document:
        while True:
            found = self._send(ask(name, WAIT_S))
            if found["done"]:
                # Of the round, not of this request: asking once more would change nothing.
                if problem := found.pop("problem", None):
                    raise from_json(503, problem)
                return found
