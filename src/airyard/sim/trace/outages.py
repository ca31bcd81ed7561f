"""When nodes fail in a replay, and when they are back: drawn once, the same for every policy.

Owns: the draw. Must not know: the planner, what stands on a node.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from airyard.core.scheduling.plan import NodeView

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """One node is away from ``from_ms`` to ``to_ms``."""

    node: str
    from_ms: int
    to_ms: int


def draw_outages(
    nodes: Sequence[NodeView], *, per_gpu_day: float, repair_ms: int, from_ms: int, to_ms: int, seed: int
) -> tuple[Outage, ...]:
    """Return the failures between two times: each device fails independently at a constant rate, its node with it.

    A device of a node that is away does not fail. Times grow; the same arguments give the same outages.
    """
    devices = [node.name for node in nodes for _ in node.devices]
    rate = per_gpu_day * len(devices) / DAY_MS
    if rate <= 0:
        return ()
    chance = random.Random(seed)
    back: dict[str, int] = {}
    found: list[Outage] = []
    at = float(from_ms)
    while True:
        at += -math.log(1.0 - chance.random()) / rate
        node = devices[int(chance.random() * len(devices))]
        if at >= to_ms:
            return tuple(found)
        at_ms = int(at)
        if back.get(node, from_ms) <= at_ms:
            back[node] = at_ms + max(repair_ms, 1)
            found.append(Outage(node=node, from_ms=at_ms, to_ms=back[node]))
