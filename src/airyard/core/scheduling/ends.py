"""When several runs have all ended: later than the median of each, because one of them is likely to be late.

Owns: the expected time at which so many of a node's runs are gone. Must not know: nodes, promises, the present time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import NormalDist
from typing import NamedTuple

MOST = 8
"""Beyond so many runs no further delay is added."""

_NORMAL = NormalDist()
_P90 = _NORMAL.inv_cdf(0.9)
LATENESS = (0.0, *(_NORMAL.inv_cdf(0.5 ** (1 / count)) / _P90 for count in range(1, MOST + 1)))
"""``LATENESS[n]``: where between the medians (0) and the p90s (1) of n runs all of them have ended half of the time.

Durations are taken to be log-normal and independent: n runs have all ended with probability one half when each has with
``0.5 ** (1 / n)``. One run: 0. Two: 0.43. Four: 0.78. Eight: 1.08.
"""


class Staying(NamedTuple):
    """A run that is to go on: its end at p50 and p90, its start (0: not known, then the end is exact), its devices."""

    end_ms: int
    late_end_ms: int
    since_ms: int
    devices: int


def releases(staying: Iterable[Staying]) -> Iterator[int]:
    """Yield for each device, the first that comes free first, when it is expected to be free with all before it.

    Cost: runs; at most ``MOST`` squared powers.
    """
    rows = sorted(staying)
    at_ms = 0
    for place, row in enumerate(rows, start=1):
        lateness = LATENESS[min(place, MOST)]
        # While lateness grows the earlier ones are later, too.
        for other in rows[:place] if place <= MOST else (row,):
            at_ms = max(at_ms, _late(other, lateness))
        yield from [at_ms] * row.devices


def _late(row: Staying, lateness: float) -> int:
    if row.late_end_ms <= row.end_ms or not row.since_ms or not lateness:
        return row.end_ms
    whole_ms = max(row.end_ms - row.since_ms, 1)
    factor = (row.late_end_ms - row.since_ms) / whole_ms
    return min(row.since_ms + int(whole_ms * factor**lateness), row.late_end_ms)
