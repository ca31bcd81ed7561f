"""Chooses whom to evict so that a CRITICAL run can be placed at once.

Owns: the minimal rule of this stage: the youngest lower-class attempts, no more than needed, and only if the run
then fits. Must not know: grace periods or checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

from airyard.core.scheduling.feasible import Free, place
from airyard.core.scheduling.plan import NodeView, Running, Waiting

CRITICAL_RANK = 0


def choose_victims(
    want: Waiting,
    fitting: Sequence[NodeView],
    free: Free,
    running: Sequence[Running],
    leaving: Sequence[Running],
) -> list[Running]:
    """Return the attempts to evict, or none when evicting could not place the run.

    Lowest class first, then youngest. A victim whose devices turn out not to be needed is spared.
    """
    if want.rank != CRITICAL_RANK:
        return []
    names = {node.name for node in fitting}
    eligible = [
        r for r in running if not r.stopping and r.rank > want.rank and any(s.node in names for s in r.seats)
    ]
    eligible.sort(key=lambda r: (-r.rank, -r.placed_ms, -r.run_id))
    victims: list[Running] = []
    for candidate in eligible:
        victims.append(candidate)
        if _fits(want, fitting, free, [*leaving, *victims]):
            break
    else:
        return []
    for victim in list(victims):
        others = [other for other in victims if other is not victim]
        if _fits(want, fitting, free, [*leaving, *others]):
            victims = others
    return victims


def _fits(want: Waiting, fitting: Sequence[NodeView], free: Free, gone: Sequence[Running]) -> bool:
    after = dict(free)
    for running in gone:
        for seat in running.seats:
            if seat.node in after:
                after[seat.node] = tuple(sorted({*after[seat.node], *seat.devices}))
    return place(fitting, after, want) is not None
