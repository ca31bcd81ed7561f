"""What is counted while a fleet breaks and is mended, and the figures that come of it.

Owns: counts and percentiles. Must not know: what counts as what.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

STRIKES_TOGETHER_S = 14 * 86_400.0
"""A node that stops the run again within this has done so repeatedly."""


@dataclass(slots=True, kw_only=True)
class Tally:
    """Everything of one simulation. Times are seconds."""

    faults: int = 0
    """Of hardware, on nodes that were in service."""
    interruptions: int = 0
    """Of the run at work, by whatever."""
    failed_starts: int = 0
    user_errors: int = 0
    recoveries_s: list[float] = field(default_factory=list)
    """Each: the run stands still, to its first new step."""
    recovered_alone: int = 0
    """Of interruptions by hardware: nobody had to do anything for the run."""
    recovered_helped: int = 0
    asked_to_leave: int = 0
    cordons: int = 0
    false_cordons: int = 0
    kernel_to_cordon_s: list[float] = field(default_factory=list)
    """Each: a critical fault that the kernel tells of, to the node's cordon."""
    polled_to_cordon_s: list[float] = field(default_factory=list)
    """The same of what is polled, and of hosts that are away."""
    found_at_start: int = 0
    """Nodes taken out for a fault of which the checks before a start knew first, or alone: its monitor missed some."""
    returned_alone: int = 0
    """Nodes that were taken out with a fault and work again, nobody having touched them."""
    returned_helped: int = 0
    visits: int = 0
    """Of persons, to nodes."""
    breakers: int = 0
    given_up: int = 0
    """The run's retries were used up; its owner resumed it."""
    silent: int = 0
    short_s: float = 0.0
    """The run waited because too few nodes worked."""
    out_s: float = 0.0
    """Node-seconds out of service."""
    kills: dict[str, list[float]] = field(default_factory=dict)

    def repeated_kills(self) -> int:
        """Return how often a node stopped the run that had done so in the two weeks before."""
        return sum(
            later - sooner <= STRIKES_TOGETHER_S
            for times in self.kills.values()
            for sooner, later in pairwise(times)
        )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that the share of values does not exceed; NaN of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(math.ceil(share * len(ordered)), len(ordered)) - 1]
