"""What a seed decides before anything happens: failures, flaps, false alarms; the same with health and without.

Owns: the draw. Must not know: what becomes of any of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from random import Random

from airyard.sim.reliability.assumptions import Assumptions, Kind

DAY_S = 86_400.0


class Noise(Enum):
    """Signals without a fault behind them."""

    WARNING = "warning"
    HIGH = "high"
    HIGH_REMEDY = "high_remedy"
    CRITICAL = "critical"
    FLAP = "flaps"
    JOB_TEXT = "job_text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A failure that comes. ``cure`` and ``sight`` are draws from 0 to 1 that decide what cures it and who sees it."""

    number: int
    at_s: float
    node: str
    kind: Kind
    cure: float
    sight: float
    lemon: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A signal that means nothing. ``rule`` is a number: two alarms of one node are of the same rule now and then."""

    at_s: float
    node: str
    noise: Noise
    rule: int


def draw_faults(
    known: Assumptions, nodes: Sequence[str], *, per_1000_node_days: float, days: float, seed: int
) -> tuple[Fault, ...]:
    """Return all failures in order of time. Lemons have their share of them, and one kind each."""
    chance = Random(f"{seed}/faults")
    lemons = chance.sample(list(nodes), max(1, round(known.fleet["lemon_share"] * len(nodes))))
    nodes_kinds = [kind for kind in known.kinds if not kind.user]
    lasting = [kind for kind in nodes_kinds if kind.lasting and kind.channel == "kernel"] or nodes_kinds
    ailment = {lemon: chance.choice(lasting) for lemon in lemons}
    others = [node for node in nodes if node not in ailment]
    total = per_1000_node_days / 1000 * len(nodes)
    share = known.fleet["lemon_faults"]
    counted = sum(kind.count for kind in nodes_kinds)
    user = total * sum(kind.count for kind in known.kinds if kind.user) / counted
    found: list[tuple[float, str, Kind, bool]] = []
    for at_s in _times(chance, total * share, days):
        lemon = chance.choice(lemons)
        found.append((at_s, lemon, ailment[lemon], True))
    for at_s in _times(chance, total * (1 - share), days):
        kind = chance.choices(nodes_kinds, [kind.count for kind in nodes_kinds])[0]
        found.append((at_s, chance.choice(others), kind, False))
    users = [kind for kind in known.kinds if kind.user]
    for at_s in _times(chance, user, days):
        found.append((at_s, chance.choice(others), chance.choice(users), False))
    found.sort(key=lambda row: row[0])
    return tuple(
        Fault(
            number=number,
            at_s=at_s,
            node=node,
            kind=kind,
            cure=1.0 if lemon else chance.random(),
            sight=chance.random(),
            lemon=lemon,
        )
        for number, (at_s, node, kind, lemon) in enumerate(found)
    )


def draw_alarms(known: Assumptions, nodes: Sequence[str], *, days: float, seed: int) -> tuple[Alarm, ...]:
    """Return all signals that mean nothing, in order of time."""
    chance = Random(f"{seed}/alarms")
    found = []
    for noise in Noise:
        per_1000 = known.noise[noise.value]
        if noise not in (Noise.FLAP, Noise.JOB_TEXT):
            per_1000 *= known.noise["alarms"]
        for at_s in _times(chance, per_1000 / 1000 * len(nodes), days):
            found.append(
                Alarm(at_s=at_s, node=chance.choice(list(nodes)), noise=noise, rule=chance.randrange(8))
            )
    found.sort(key=lambda alarm: (alarm.at_s, alarm.node))
    return tuple(found)


def _times(chance: Random, per_day: float, days: float) -> Iterator[float]:
    """Yield the seconds at which something happens that happens at a constant rate."""
    at_s = 0.0
    while per_day > 0:
        at_s += -math.log(1.0 - chance.random()) / per_day * DAY_S
        if at_s >= days * DAY_S:
            return
        yield at_s
