"""Who may evict a live attempt, from when on, and what it would lose now.

Owns: the rights seen from the victim's side. Must not know: whether anybody means to use them.
"""

from __future__ import annotations

from dataclasses import dataclass

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.overtakes import CLASSES
from airyard.core.scheduling.plan import Running
from airyard.core.scheduling.preempt import BEST_EFFORT_RANK, SAFE_MS, SPARED_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Who may evict a live attempt; nobody when it is ``leaving`` already.

    ``classes`` may always. Of its ``own_class`` may runs within the guarantee of ``owners``, of whom its project
    borrows, and where ``younger`` is true runs that have not had their first slice. ``from_ms`` and
    ``younger_from_ms``: from when on. ``spared_until_ms``: until then only when there is no other choice. ``lost_ms``
    are device-milliseconds since ``safe_ms``: its newest acknowledged checkpoint, else its start.
    """

    run_id: int
    classes: tuple[str, ...]
    own_class: str
    owners: tuple[str, ...]
    younger: bool
    from_ms: int
    younger_from_ms: int | None
    evicted_ms: int | None
    spared_until_ms: int | None
    safe_ms: int
    lost_ms: int
    devices: int
    end_ms: int
    late_end_ms: int
    leaving: bool = False


def exposure(book: Book, running: Running, now_ms: int) -> Exposure:
    """Say who may evict an attempt that the book knows. Cost: projects."""
    from_ms = running.placed_ms + SAFE_MS
    leaving = running.stopping
    acknowledges = running.acknowledges and not leaving
    slicing = book.slicing(running.pool, running.project) if acknowledges else None
    younger_from_ms = None
    if slicing is not None:
        younger_from_ms = running.placed_ms + max(slicing.first_slice_ms - running.served_ms, SAFE_MS)
        if running.evicted_ms is not None:
            younger_from_ms = max(younger_from_ms, running.evicted_ms + slicing.apart_ms)
    spared_ms = running.evicted_ms + SPARED_MS if running.evicted_ms is not None else None
    return Exposure(
        run_id=running.run_id,
        classes=tuple(name for rank, name in sorted(CLASSES.items()) if rank < running.rank and not leaving),
        own_class=CLASSES[running.rank],
        owners=_owners(book, running) if not leaving else (),
        younger=slicing is not None,
        from_ms=from_ms,
        younger_from_ms=younger_from_ms,
        evicted_ms=running.evicted_ms,
        spared_until_ms=spared_ms if spared_ms is not None and spared_ms > now_ms and not leaving else None,
        safe_ms=running.safe_ms,
        lost_ms=max(now_ms - running.safe_ms, 0) * running.devices,
        devices=running.devices,
        end_ms=running.end_ms,
        late_end_ms=running.late_end_ms,
        leaving=leaving,
    )


def _owners(book: Book, running: Running) -> tuple[str, ...]:
    """Return the projects that may ask back what the attempt's project has borrowed of them."""
    shares, pool = book.shares, running.pool
    if running.rank == BEST_EFFORT_RANK or shares.beyond(running.project, pool) <= 0:
        return ()
    return tuple(
        name
        for name in shares.projects
        if name != running.project and shares.guarantee(name, pool) > shares.firm.get((name, pool), 0)
    )
