"""Where each waiting run stands in the queue, and by which rule one run is ahead of another.

Owns: places as they can be compared, and the rules' names. Must not know: nodes, whether anybody fits.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from airyard.core.policy import PoolOrder
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.listing import band_of
from airyard.core.scheduling.order import (
    CLAIM_BAND,
    FIRST_BAND,
    GUARANTEED_BAND,
    SLICED_BAND,
    band,
    standing,
)
from airyard.core.scheduling.plan import Waiting
from airyard.core.scheduling.queue import Group


class Rule(Enum):
    """Why one run is considered before another one."""

    CLASS = "class"
    CLAIM = "claim"
    """Others were evicted for it."""
    AGED = "aged"
    GUARANTEE = "guarantee"
    SLICE = "slice"
    SHARE = "share"
    SHORTER = "shorter"
    """It was queued later, and is predicted to last so much less that it makes up for that."""
    EARLIER = "earlier"
    """It was queued earlier, and is not so much longer as to lose that."""


class Place(NamedTuple):
    """A run's place: the lower goes first."""

    rank: int
    band: float
    standing: float
    queued_ms: int
    run_id: int


def places(book: Book, now_ms: int) -> list[Place]:
    """Return the places of all runs that are considered, first ones first. Cost: sorts the queue."""
    rows: list[Place] = []
    for group in book.queue.groups.values():
        usual, rank = band_of(book, group), group.key.rank
        bound_ms = now_ms - group.ageing_ms if usual != CLAIM_BAND else -1
        for stands, queued_ms, run_id in group.entries:
            if queued_ms <= bound_ms:
                rows.append(Place(rank, FIRST_BAND, queued_ms, queued_ms, run_id))
            else:
                rows.append(Place(rank, usual, stands, queued_ms, run_id))
    rows.sort()
    return rows


def all_places(book: Book, now_ms: int) -> list[Place]:
    """Return the places of all runs that will be considered some time, parked ones where they will stand."""
    found = places(book, now_ms)
    parked = [
        place_of(book, book.queue.runs[run_id], now_ms) for run_id, at in book.queue.parked.items() if at
    ]
    return sorted(found + parked) if parked else found


def place_of(book: Book, want: Waiting, now_ms: int) -> Place:
    """Return the place of any waiting run; of one that is parked the place it would have."""
    group = group_for(book, want)
    if want.queued_ms + group.ageing_ms <= now_ms and not group.key.claims:
        return Place(want.rank, FIRST_BAND, want.queued_ms, want.queued_ms, want.run_id)
    return Place(want.rank, band_of(book, group), *standing(want, group.order))


def group_for(book: Book, want: Waiting) -> Group:
    """Return the group of a waiting run; of one that is parked the group that it will be in."""
    key = book.group_of(want)
    pool = book.pool(book.primary(key.shape))
    return book.queue.groups.get(key) or Group(key, pool.name, pool.order, pool.ageing_ms)


def bands_of(book: Book, group: Group) -> tuple[float, float]:
    """Return the bands of a group: while its project is within its guarantee, and else."""
    key = group.key
    if key.claims:
        return CLAIM_BAND, CLAIM_BAND
    served = book.shares.over_served(key.project, group.pool, group.order)
    later = SLICED_BAND if key.sliced else 0.0
    within, beyond = (band(group.order, guaranteed=sure, over_served=served) for sure in (True, False))
    return within + later, beyond + later


def rule_between(first: Place, second: Place, order: PoolOrder) -> Rule:
    """Return why ``first``, which is ahead, goes before ``second``, whose pool has this order."""
    if first.rank != second.rank:
        return Rule.CLASS
    if first.band != second.band:
        if first.band in (CLAIM_BAND, FIRST_BAND):
            return Rule.CLAIM if first.band == CLAIM_BAND else Rule.AGED
        if (first.band >= SLICED_BAND) != (second.band >= SLICED_BAND):
            return Rule.SLICE
        return Rule.GUARANTEE if first.band % SLICED_BAND == GUARANTEED_BAND else Rule.SHARE
    later = (first.queued_ms, first.run_id) > (second.queued_ms, second.run_id)
    return Rule.SHORTER if later and order is PoolOrder.PREDICTED else Rule.EARLIER
