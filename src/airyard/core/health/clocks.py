"""How far clocks are apart, as bounds that the way between them cannot break. Pure.

Owns: the estimate out of questions and answers, who of a gang is off. Must not know: who asks whom, what follows.

An answer was given at some moment between question and receipt, so that the middle is off by half the round trip at
most. Whoever might be right is never called off: limits are compared with what is certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from airyard.core.health.gangs import Facts, Odd

CHECK = "net.clock"
OFFSET, ERROR = "clock_ms", "clock_error_ms"
"""The facts that a member tells: its clock less the server's, and by how much that may be wrong."""
_STEP = "let chrony or systemd-timesyncd keep the clock"
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A clock less another one: within ``error_ms`` of ``offset_ms``."""

    offset_ms: float
    error_ms: float

    def facts(self) -> dict[str, str]:
        """Return what a member tells."""
        return {OFFSET: f"{self.offset_ms:.3f}", ERROR: f"{self.error_ms:.3f}"}


def estimate(asked: Iterable[tuple[int, int, int]]) -> Reading | None:
    """Return the best reading of questions, each (sent, theirs, received) in ns; None without one that holds.

    The quickest answer has the narrowest bounds. A clock that was set between sending and receipt is left out.
    """
    best: Reading | None = None
    for sent_ns, theirs_ns, received_ns in asked:
        error_ms = (received_ns - sent_ns) / 2e6
        if error_ms >= 0 and (best is None or error_ms < best.error_ms):
            best = Reading(offset_ms=((sent_ns + received_ns) / 2 - theirs_ns) / 1e6, error_ms=error_ms)
    return best


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """What the clocks of a gang are. ``odd``: those surely off by more than the limit; ``spread_ms``: the most seen."""

    odd: Odd | None
    spread_ms: float


def clocks_off(facts: Mapping[int, Facts], most_ms: float, whose: str = "") -> Off | None:
    """Return which members' clocks are more than ``most_ms`` from the median of members and server; None: too few tell.

    The server counts as one more, so that of two members that differ the odd one has a name. With an even number the
    two in the middle are both the median: nobody is off from one of them alone. ``whose``: who set the limit.
    """
    read = {member: one for member, said in sorted(facts.items()) if (one := _reading(said)) is not None}
    if len(read) < 2:
        return None
    lows = sorted([0.0, *(one.offset_ms - one.error_ms for one in read.values())])
    highs = sorted([0.0, *(one.offset_ms + one.error_ms for one in read.values())])
    least, most = lows[(len(lows) - 1) // 2], highs[len(highs) // 2]
    off: dict[int, float] = {}
    for member, one in read.items():
        surely = max(one.offset_ms - one.error_ms - most, least - one.offset_ms - one.error_ms)
        if surely > most_ms:
            off[member] = surely
    offsets = [one.offset_ms for one in read.values()]
    return Off(
        odd=_odd(facts, read, off, f"{most_ms:g} ms are allowed{f' ({whose})' if whose else ''}"),
        spread_ms=max(offsets) - min(offsets),
    )


def _odd(
    facts: Mapping[int, Facts], read: Mapping[int, Reading], off: Mapping[int, float], allowed: str
) -> Odd | None:
    if not off:
        return None
    worst = max(off, key=lambda member: off[member])
    others = f" (nodes {', '.join(_node(facts, member) for member in off)})" if len(off) > 1 else ""
    message = (
        f"the clock of node {_node(facts, worst)} is {off[worst]:.0f} ms or more from the median of the run's nodes, "
        f"{allowed}{others}; measured {read[worst].offset_ms:+.1f} ms against the server, "
        f"give or take {read[worst].error_ms:.1f} ms"
    )
    return Odd(fact=OFFSET, check=CHECK, members=frozenset(off), tied=False, message=message, next_step=_STEP)


def _node(facts: Mapping[int, Facts], member: int) -> str:
    return facts[member].get("node", str(member))


def _reading(said: Facts) -> Reading | None:
    """Read what a member tells; None for one that tells nothing, or nothing that a clock could be."""
    try:
        offset_ms, error_ms = float(said[OFFSET]), float(said[ERROR])
    except (KeyError, ValueError):
        return None
    sane = abs(offset_ms) <= 36_500 * _DAY_MS and 0 <= error_ms <= _DAY_MS
    return Reading(offset_ms=offset_ms, error_ms=error_ms) if sane else None
