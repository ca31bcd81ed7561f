"""Who goes first among the runs that could go.

Owns: the keys of the queue. Must not know: nodes, quotas other than as the band it is given.
A key never depends on the present time, so that a queue stays sorted while time passes: what ages is the place
in the queue, not the number.
"""

from __future__ import annotations

import math

from airyard.core.policy import DAY_MS, HOUR_MS, PoolOrder
from airyard.core.scheduling.plan import Waiting

AGEING_FACTOR = 256.0
"""A run goes ahead of those that were queued later by less than this many times the difference of their durations."""

OPENING_MS = 3 * DAY_MS
"""A run of part of a node may open a node that is free as a whole in its turn once it has waited this long.

Before that it is looked at again after everybody else of its class: a node that is opened for one device is lost to
gangs until its last small run has ended. Where no gang wants the node nothing is delayed: the same plan comes to the
small run in the end.
"""

LAST_TURN = 1e17
"""Added to the standing of such a run."""

CLAIM_BAND = -2.0
"""The band of runs for which others were evicted: nobody of their class takes what was freed for them."""

FIRST_BAND = -1.0
"""The band of runs that have waited longer than their pool's ageing bound."""
SLICED_BAND = 1e12
"""Added to the band of runs that have had their first slice where slices are cut: more than any band without it."""

GUARANTEED_BAND = 0.0
"""The band of runs within their project's guarantee."""


def standing(want: Waiting, order: PoolOrder) -> tuple[float, int, int]:
    """Return the place of a run within its band: lower goes first. Submit time and id break ties."""
    if order is PoolOrder.PREDICTED:
        return AGEING_FACTOR * want.expected_ms + want.queued_ms, want.queued_ms, want.run_id
    return float(want.queued_ms), want.queued_ms, want.run_id


def band(order: PoolOrder, *, guaranteed: bool, over_served: float) -> float:
    """Return the band of a project in a pool: lower goes first.

    ``over_served`` is its decayed usage per weight over the mean of the projects that are declared; 1 is its share.
    Under ``PREDICTED`` a project moves back one band each time its ratio doubles, so that short runs go first among
    projects that are served about alike; under ``FAIR`` every difference counts; ``FIFO`` looks at none.
    """
    if order is PoolOrder.FIFO:
        return GUARANTEED_BAND
    if guaranteed:
        return GUARANTEED_BAND
    if order is PoolOrder.FAIR:
        return 1.0 + over_served / HOUR_MS
    return 1.0 + max(math.floor(math.log2(over_served)), 0) if over_served > 1 else 1.0
