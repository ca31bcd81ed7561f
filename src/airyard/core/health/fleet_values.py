"""What nodes of one kind measure, and what is usual among them: the median of the others.

Owns: which checks are compared, what of a round counts, the median's rule and its form on the wire. Must not know:
who asks, what a node below the median comes to (the check judges), where values are kept. Pure.

Only what a node passed counts, so that a node which is slow and known to be does not make slowness usual; one that
nobody has found out yet is one of many. The fleet's own drift is not seen here: the floors of the table see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from airyard.core.plain import is_number

GEMM, STORAGE = "compute.gemm", "storage.speed"
CHECKS = (GEMM, STORAGE)
LEAST = 5
"""Machines, beside the node's own, that have to have told: of fewer two bad ones would be the median."""
LASTS_MS = 30 * 24 * 3_600_000
_AGAINST = frozenset({"FAIL", "UNKNOWN"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The newest value of a node."""

    node: str
    machine: str
    value: float
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """A median, and of how many other machines it is."""

    median: float
    nodes: int


def measured(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return what a round of checks measured that others are compared with; nothing unless it was passed.

    ``rows``: ``check, status, value`` of each result. A check that warns does not count; of several devices the
    least does.
    """
    seen = list(rows)
    if any(row.get("status") in _AGAINST for row in seen):
        return {}
    odd = {row.get("check") for row in seen if row.get("status") != "PASS"}
    values: dict[str, float] = {}
    for row in seen:
        name = row.get("check")
        value = _positive(row.get("value"))
        if name in CHECKS and name not in odd and value is not None:
            values[str(name)] = min(value, values.get(str(name), value))
    return values


def usual_among(told: Iterable[Told], machine: str, now_ms: int) -> Usual | None:
    """Return what is usual among other machines than ``machine``; None where too few have told lately.

    Of nodes that share a machine the newest value counts: they share its disk, too.
    """
    newest: dict[str, Told] = {}
    for one in told:
        if one.machine == machine or one.at_ms < now_ms - LASTS_MS:
            continue
        before = newest.get(one.machine)
        if before is None or before.at_ms <= one.at_ms:
            newest[one.machine] = one
    if len(newest) < LEAST:
        return None
    return Usual(median=median(one.value for one in newest.values()), nodes=len(newest))


def values_from_json(data: Any) -> dict[str, float]:
    """Return the values by check that a node told; what is no such value is left out."""
    if not isinstance(data, Mapping):
        return {}
    read = {name: _positive(data.get(name)) for name in CHECKS}
    return {name: value for name, value in read.items() if value is not None}


def usual_to_json(usual: Mapping[str, Usual]) -> dict[str, dict[str, float]]:
    """Return medians by check, as a node is told them."""
    return {name: {"median": one.median, "nodes": one.nodes} for name, one in usual.items()}


def usual_from_json(data: Any) -> dict[str, Usual]:
    """Rebuild from ``usual_to_json``; what is no median is left out: without it a check is as it was."""
    if not isinstance(data, Mapping):
        return {}
    read: dict[str, Usual] = {}
    for name in CHECKS:
        one = data.get(name)
        if not isinstance(one, Mapping):
            continue
        middle, nodes = _positive(one.get("median")), _positive(one.get("nodes"))
        if middle is not None and nodes is not None:
            read[name] = Usual(median=middle, nodes=int(nodes))
    return read


def _positive(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not is_number(value):
        return None
    return float(value) if value > 0 else None
