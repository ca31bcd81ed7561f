"""Numbers for people: samples of several ways that took turns, their medians, spreads and ratios.

Owns: taking turns, the text form. Must not know: what is measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

Way = Callable[[], float]
"""Does a thing once and says what it came to; raises when it failed."""


def take_turns(ways: Mapping[str, Way], rounds: int, *, warm_ups: int = 1) -> dict[str, list[float]]:
    """Call every way once a round, A B C A B C, so that what else the machine does falls on all of them."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(warm_ups + rounds):
        for name, way in ways.items():
            value = way()
            if number >= warm_ups:
                found[name].append(value)
    return found


def spread(values: Sequence[float], unit: str = "ms", digits: int = 0) -> str:
    """Return ``p50 120 ms (min 110, max 150, n 15)``."""
    middle, low, high = (
        f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))
    )
    return f"p50 {middle} {unit} (min {low}, max {high}, n {len(values)})"


def ratios(ours: Sequence[float], theirs: Sequence[float], digits: int = 2) -> str:
    """Return median, smallest and largest ratio of the pairs that were measured in the same round."""
    values = sorted(one / other for one, other in zip(ours, theirs, strict=True))
    middle = statistics.median(values)
    return f"{middle:.{digits}f} (min {values[0]:.{digits}f}, max {values[-1]:.{digits}f})"


def verdict(value: float, limit: float, unit: str, *, at_least: bool = False, digits: int = 2) -> str:
    """Return the value beside its limit and whether it keeps it."""
    kept = value >= limit if at_least else value <= limit
    sign = "at least" if at_least else "at most"
    words = "kept" if kept else "MISSED"
    return f"{value:.{digits}f}{unit}, limit {sign} {limit:g}{unit}: {words}"
