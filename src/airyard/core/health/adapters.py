"""Network adapters of two machines that hang together: which are tested one by one, and which one is slow.

Owns: what corresponds, what is compared with what. Must not know: how a test is run, what a slow one leads to.
Two adapters correspond where each is its machine's only one in their subnet: what goes there takes that adapter.
"""

from __future__ import annotations

import ipaddress
import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST = 8
SHARE = 0.5
"""Of what the others of its kind have between the same two machines, at least. They are measured in one go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """One adapter. ``address`` with the length of its prefix; ``kind``: only adapters of one kind are compared."""

    name: str
    address: str
    kind: str

    def as_json(self) -> dict[str, str]:
        """Return the wire form."""
        return {"name": self.name, "address": self.address, "kind": self.kind}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Adapter:
        """Rebuild from ``as_json``. Raises: KeyError."""
        return cls(name=str(data["name"]), address=str(data["address"]), kind=str(data["kind"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Two adapters that correspond: ``source`` is the address here, ``host`` the one there, ``rail`` their subnet."""

    mine: str
    theirs: str
    kind: str
    source: str
    host: str
    rail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRead:
    """What two adapters had between them; ``a`` is the one of the node that served. ``problem``: nothing, and why.

    ``rail``: the subnet that both are in; empty from agents that do not tell it.
    """

    a: str
    b: str
    kind: str
    gb_s: float = 0.0
    problem: str = ""
    rail: str = ""


def lanes(mine: Sequence[Adapter], theirs: Sequence[Adapter]) -> tuple[Lane, ...]:
    """Return what corresponds, of kinds of which there are several: a single one has nothing to be compared with."""
    there = _alone(theirs)
    found = [
        Lane(
            mine=one.name,
            theirs=other.name,
            kind=one.kind,
            source=_bare(one.address),
            host=_bare(other.address),
            rail=subnet,
        )
        for subnet, one in _alone(mine).items()
        if (other := there.get(subnet)) is not None
        and other.kind == one.kind
        # Networks of containers have the same addresses everywhere.
        and _bare(other.address) != _bare(one.address)
    ]
    kinds = Counter(lane.kind for lane in found)
    return tuple(lane for lane in found if kinds[lane.kind] > 1)[:MOST]


def _alone(adapters: Sequence[Adapter]) -> dict[str, Adapter]:
    by_subnet: dict[str, list[Adapter]] = {}
    for each in adapters:
        by_subnet.setdefault(str(ipaddress.ip_interface(each.address).network), []).append(each)
    return {subnet: several[0] for subnet, several in by_subnet.items() if len(several) == 1}


def _bare(address: str) -> str:
    return address.partition("/")[0]


def usual(read: LaneRead, all_read: Sequence[LaneRead]) -> float | None:
    """Return what the others of its kind have; None where there is none that has anything."""
    others = [one.gb_s for one in all_read if one is not read and one.kind == read.kind and not one.problem]
    return statistics.median_high(others) if others else None


def is_slow(read: LaneRead, all_read: Sequence[LaneRead]) -> bool | None:
    """Return whether two adapters are slow or away while others of their kind are not; None: there are no others."""
    others = usual(read, all_read)
    return None if others is None else bool(read.problem) or read.gb_s < SHARE * others


def slow_lane(reads: Sequence[LaneRead], a: str, b: str, spared: Collection[str] = ()) -> str:
    """Say which adapter of two nodes is slow or away; empty: none is. What is in a ``spared`` rail is the rail's."""
    for read in reads:
        if (read.rail and read.rail in spared) or not is_slow(read, reads):
            continue
        where, others = f"adapter {read.a} of {a} with {read.b} of {b}", usual(read, reads) or 0.0
        if read.problem:
            return f"{where}: {read.problem}, others of its kind have {others:.3g} GB/s"
        return f"{where}: {read.gb_s:.3g} GB/s, others of its kind have {others:.3g}"
    return ""
