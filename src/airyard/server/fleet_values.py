"""What nodes measured when they passed, kept in memory: a server that is started again learns it anew.

Owns: the newest value of each node by pool, board and profile, how many are kept. Must not know: what is usual
(``core/health/fleet_values``), routes, how nodes are asked. Any thread.

Nothing is stored: certificates tell it again with the next start on each node, and are a day old at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

from airyard.app.control import Control
from airyard.app.loop import ControlLoop
from airyard.core.cluster import Node
from airyard.core.health.fleet_values import (
    CHECKS,
    LASTS_MS,
    Told,
    measured,
    usual_among,
    usual_to_json,
    values_from_json,
)
from airyard.core.ids import MemberKey

MOST_OF_GROUP = 10_000
"""Nodes of one pool and board whose values are kept; of more the oldest go."""
_Group = tuple[str, str, str, str]
"""Pool, board, profile, check: a short test and a long one of one GPU do not measure the same."""


class FleetValues:
    """The values of the fleet."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._groups: dict[_Group, dict[str, Told]] = {}

    def note(
        self, node: Node, pool: str, profile: str, values: Mapping[str, float], at_ms: int, now_ms: int
    ) -> None:
        """Take in what a node measured; of a simulated one nothing, and nothing older than is known of it."""
        if node.simulated or not now_ms - LASTS_MS <= at_ms <= now_ms:
            return
        with self._lock:
            for check, value in values.items():
                group = (pool, node.model or "", profile, check)
                for other, held in self._groups.items():
                    if other != group and other[2:] == group[2:]:
                        held.pop(node.name, None)  # it was of another pool or board before
                known = self._groups.setdefault(group, {})
                before = known.get(node.name)
                if before is None or before.at_ms <= at_ms:
                    known.pop(node.name, None)
                    known[node.name] = Told(node=node.name, machine=node.machine, value=value, at_ms=at_ms)
                if len(known) > MOST_OF_GROUP:
                    known.pop(min(known, key=lambda name: known[name].at_ms))
            self._groups = {group: held for group, held in self._groups.items() if held}

    def usual(self, node: Node, pool: str, profile: str, now_ms: int) -> dict[str, Any]:
        """Return what checks of a node are told of the others; nothing where too few have told."""
        if node.simulated:
            return {}
        with self._lock:
            told = {
                check: list(self._groups.get((pool, node.model or "", profile, check), {}).values())
                for check in CHECKS
            }
        found = {check: usual_among(values, node.machine, now_ms) for check, values in told.items()}
        known = {check: usual for check, usual in found.items() if usual is not None}
        return {"fleet": usual_to_json(known)} if known else {}

    # --- rounds that the server asks for

    def told_to(self, loop: ControlLoop, asked: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
        """Return what a round is told of the others."""
        found = _node_and_pool(loop, str(asked["node"]))
        return self.usual(*found, str(asked["profile"]), now_ms) if found is not None else {}

    def learn(
        self, loop: ControlLoop, asked: Mapping[str, Any], answer: Mapping[str, Any], now_ms: int
    ) -> None:
        """Take in what a round measured, if it was passed."""
        found = _node_and_pool(loop, str(asked["node"]))
        rows = answer.get("results")
        if found is None or answer.get("state") != "done" or not isinstance(rows, list):
            return
        values = measured(row for row in rows if isinstance(row, Mapping))
        self.note(*found, str(asked["profile"]), values, now_ms, now_ms)

    # --- starts

    def heard(self, loop: ControlLoop, key: MemberKey, told: Any, now_ms: int) -> None:
        """Take in what a member's report of READY says that its node measured; nonsense is left out."""
        if not isinstance(told, Mapping):
            return
        node = loop.peek(lambda control: _node_of(control, key))
        found = _node_and_pool(loop, node)
        values, age_s = values_from_json(told.get("values")), told.get("age_s", 0)
        if found is None or isinstance(age_s, bool) or not isinstance(age_s, int) or age_s < 0:
            return
        profile = str(told.get("profile"))
        if profile in _PROFILES:
            self.note(*found, profile, values, now_ms - age_s * 1000, now_ms)


_PROFILES = frozenset({"fast", "full"})


def _node_of(control: Control, key: MemberKey) -> str:
    found = control.state.member(key)
    return found[2].node if found is not None else ""


def _node_and_pool(loop: ControlLoop, name: str) -> tuple[Node, str] | None:
    def read(control: Control) -> tuple[Node, str] | None:
        node = control.state.nodes.get(name)
        return (node, control.state.policy.pool_of(node)) if node is not None else None

    return loop.peek(read)
