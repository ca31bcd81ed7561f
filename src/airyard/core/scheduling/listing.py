"""The whole queue in the order in which a plan considers it.

Owns: positions. Must not know: whether anybody fits.
"""

from __future__ import annotations

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.order import CLAIM_BAND, FIRST_BAND, SLICED_BAND, band
from airyard.core.scheduling.queue import Group


def band_of(book: Book, group: Group) -> float:
    """Return the band of a group's runs that have not waited too long."""
    key, shares = group.key, book.shares
    if key.claims:
        return CLAIM_BAND
    shape = key.shape
    base = band(
        group.order,
        guaranteed=shares.guaranteed(key.project, group.pool, key.rank, shape.devices * shape.nodes),
        over_served=shares.over_served(key.project, group.pool, group.order),
    )
    return base + SLICED_BAND if key.sliced else base


def in_order(book: Book, now_ms: int) -> list[int]:
    """Return the ids of all waiting runs: those that are considered, in order, then those that are parked.

    Guarantees are counted as of now: as runs start, later ones of their project fall back.
    Cost: sorts the queue.
    """
    rows: list[tuple[int, float, float, int, int]] = []
    for group in book.queue.groups.values():
        usual = band_of(book, group)
        aged = {run_id for since_ms, run_id in group.by_age if since_ms + group.ageing_ms <= now_ms}
        for standing, queued_ms, run_id in group.entries:
            if run_id in aged and not group.key.claims:
                rows.append((group.key.rank, FIRST_BAND, queued_ms, queued_ms, run_id))
            else:
                rows.append((group.key.rank, usual, standing, queued_ms, run_id))
    rows.sort()
    parked = sorted(book.queue.parked, key=lambda run_id: (book.queue.parked[run_id] or 1 << 62, run_id))
    return [row[-1] for row in rows] + parked
