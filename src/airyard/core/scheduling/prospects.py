"""Whom a waiting run may have evicted later, when a right comes to be that it does not have yet.

Owns: the search for that time. Must not know: how victims are chosen, who asks.
"""

from __future__ import annotations

from dataclasses import dataclass

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.plan import Eviction, Waiting
from airyard.core.scheduling.planner import plan
from airyard.core.scheduling.preempt import Evictions
from airyard.core.scheduling.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """That runs may be evicted for a waiting one from a time on, unless there is room for it before.

    ``rules`` are the rights that this takes: ``priority``, ``reclaim``, ``slice``.
    """

    from_ms: int
    runs: tuple[int, ...]
    rules: tuple[str, ...]


def prospect(book: Book, want: Waiting, now_ms: int, until_ms: int | None = None) -> Prospect | None:
    """Return what a plan of later would do for a run for which nobody is evicted yet: all else as it is now.

    A victim's first minute passes, or its slice is over. Looked for until ``until_ms``, the run's expected start.
    The book is played with and is afterwards what it was. Cost: running attempts, and some plans where there are
    rights to come.
    """
    times = _rights_to_come(book, want, now_ms, until_ms)
    if not times:
        return None
    found = _evictions_at(book, want, now_ms, times[-1])
    low, high = 0, len(times) - 1
    while found and low < high:
        middle = (low + high) // 2
        earlier = _evictions_at(book, want, now_ms, times[middle])
        if earlier:
            found, high = earlier, middle
        else:
            low = middle + 1
    if not found:
        return None
    return Prospect(
        from_ms=times[high],
        runs=tuple(sorted(one.run_id for one in found)),
        rules=tuple(sorted({one.rule for one in found})),
    )


def _rights_to_come(book: Book, want: Waiting, now_ms: int, until_ms: int | None) -> list[int]:
    """Return when the run comes to have rights against attempts in its pools that it does not have yet."""
    evictions = Evictions(book, now_ms)
    sliced = {pool: book.sliced(want, pool) for pool in book.nodes.fitting(want.shape)}
    times = set()
    for running in book.running.values():
        if running.pool in sliced:
            due = evictions.due(want, running, sliced=sliced[running.pool])
            if due is not None and due[0] > now_ms and (until_ms is None or due[0] <= until_ms):
                times.add(due[0])
    return sorted(times)


def _evictions_at(book: Book, want: Waiting, now_ms: int, at_ms: int) -> list[Eviction]:
    with Sandbox(book, now_ms):
        made = plan(book, at_ms)
    return [one for one in made.evictions if one.for_run == want.run_id]
