"""The documents about power and cooling that slow nodes down: of all, of one node, of the nodes of a run.

Owns: IncidentDoc, SlowdownDoc, SlowedDoc and their words. Pure; must not know: HTTP, stores, clocks, rules.
"""

from __future__ import annotations

from collections.abc import Collection

from airyard.app.views import Document, rfc3339
from airyard.core.health.facility import NEXT_STEP, QUIET_MS, Facility, Incident, Slowdown, Supply

_FAILS = {Supply.POWER: "power", Supply.COOLING: "cooling"}
_NAMED = 4


def incidents(known: Facility, node: str | None, since_ms: int) -> list[Document]:
    """Return the incidents (of a node: those that it is part of) that go on, or ended since then; the newest last."""
    return [
        {
            "place": one.place,
            "supply": one.supply.value,
            "began": rfc3339(one.began_ms),
            "ended": rfc3339(one.ended_ms or None),
            "nodes": list(one.nodes),
            "why": one.why,
            "next_step": "" if one.ended_ms else NEXT_STEP[one.supply],
        }
        for one in known.incidents
        if (not one.ended_ms or one.ended_ms >= since_ms) and (node is None or node in one.nodes)
    ]


def slowdowns(known: Facility, node: str | None, since_ms: int) -> list[Document]:
    """Return the newest slowdown of each node (or one) by each supply since then, the newest last."""
    return [
        {
            "node": one.node,
            "supply": one.supply.value,
            "place": one.place,
            "since": rfc3339(one.since_ms),
            "at": rfc3339(one.at_ms),
            "device": one.device,
            "message": one.message,
        }
        for one in known.slowdowns
        if one.at_ms >= since_ms and node in (None, one.node)
    ]


def slowed(known: Facility, nodes: Collection[str], now_ms: int) -> list[Document]:
    """Return what slows nodes of a run down now: incidents first, then single nodes."""
    going_on = [one for one in known.incidents if not one.ended_ms and not set(nodes).isdisjoint(one.nodes)]
    inside = {(one.supply, name) for one in going_on for name in one.nodes}
    alone = [
        one
        for one in known.slowdowns
        if one.node in nodes and one.at_ms > now_ms - QUIET_MS and (one.supply, one.node) not in inside
    ]
    return [*(_of_place(one, nodes) for one in going_on), *map(_of_node, alone)]


def _of_place(one: Incident, nodes: Collection[str]) -> Document:
    mine = [name for name in one.nodes if name in nodes]
    named = ", ".join(mine[:_NAMED]) + (", ..." if len(mine) > _NAMED else "")
    return {
        "supply": one.supply.value,
        "place": one.place,
        "nodes": mine,
        "since": rfc3339(one.began_ms),
        "incident": True,
        "text": f"{_FAILS[one.supply]} of {one.place} fails: it slows {named} of this run down, "
        f"{len(one.nodes)} nodes in all; no node is blamed",
        "next_step": NEXT_STEP[one.supply],
    }


def _of_node(one: Slowdown) -> Document:
    return {
        "supply": one.supply.value,
        "place": one.place,
        "nodes": [one.node],
        "since": rfc3339(one.since_ms),
        "incident": False,
        "text": f"{one.node}: {one.message}",
        "next_step": "",
    }
