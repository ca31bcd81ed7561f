"""How good predictions were, against what happened.

Owns: the count of a pool's hits and the size of its errors. Must not know: how predictions are made.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass

KEPT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Of the last runs: shares that ended before the p50 and the p90 named at their start, and the usual factor off."""

    runs: int
    before_p50: float
    before_p90: float
    median_factor: float
    """Half of the runs lasted within this factor of the p50, longer or shorter."""


class AccuracyRecord:
    """The last ``KEPT`` predictions of one pool that have come to their end."""

    def __init__(self) -> None:
        self._rows: deque[tuple[bool, bool, float]] = deque(maxlen=KEPT)

    def add(self, p50_ms: int, p90_ms: int, lasted_ms: int) -> None:
        """Compare a prediction with what happened."""
        factor = abs(math.log(max(lasted_ms, 1) / max(p50_ms, 1)))
        self._rows.append((lasted_ms <= p50_ms, lasted_ms <= p90_ms, factor))

    def summary(self) -> Accuracy | None:
        """Return the figures; None before the first run has ended."""
        if not self._rows:
            return None
        count = len(self._rows)
        return Accuracy(
            runs=count,
            before_p50=sum(row[0] for row in self._rows) / count,
            before_p90=sum(row[1] for row in self._rows) / count,
            median_factor=math.exp(statistics.median(row[2] for row in self._rows)),
        )
