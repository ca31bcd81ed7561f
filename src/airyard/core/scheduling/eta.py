"""When each waiting run is expected to start: the book played forward, once with median and once with late ends.

Owns: what an expected start is, and what it leaves out. Must not know: how a plan is made, who asks.

First the planner itself plans again and again, and every end comes as it is expected: so the first of the queue are
exact as far as ends are, evictions included. Then a plainer look ahead goes on from there: runs are taken in order,
each where it fits; the first blocked ones of a pool hold promises, beside which shorter ones go ahead; reservations,
begins, retries, ceilings and limits of users are kept to.

Left out by the second part, and felt the more the deeper a run stands: evictions; guarantees, shares, ages and slices
as they change while the queue moves; the choice among nodes (packing, fabrics, nodes to avoid); promises that would be
made anew; all but the first few shorter runs of a shape beside a promise. Left out by both: runs not yet submitted. In
the late case all are late at once: for a run deep in the queue that is later than one time in ten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.forward import Forward
from airyard.core.scheduling.rehearsal import Rehearsal

MOST_PLANS = 100
FEWEST_PLANS = 4
PLANS_WEIGHT = 10_000
"""The more waiting runs and nodes, the fewer plans are made at first: in all they are to cost about as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Eta:
    """When a run is expected to start: in the median case, and when ends are as late as one time in ten."""

    p50_ms: int
    p90_ms: int


def etas(
    book: Book, now_ms: int, *, wanted: Iterable[int] | None = None, plans: int | None = None
) -> dict[int, Eta]:
    """Return the expected start of waiting runs, of those whose start is in sight; ``wanted`` names some of them.

    A run that is held, that never fits, whose project has spent its budget or whose nodes are away has none.
    ``plans``: how many real plans are made first; None leaves it to the size of the yard. The book is played with, and
    is afterwards what it was. Cost: ``plans`` plans, then in proportion to the starts; for the first runs alone only
    the starts until theirs.
    """
    ids = None if wanted is None else frozenset(wanted)
    waiting = frozenset(book.queue.runs)
    if plans is None:
        plans = min(MOST_PLANS, FEWEST_PLANS + PLANS_WEIGHT // (1 + len(waiting) + 5 * len(book.nodes.slots)))
    median = _starts(book, now_ms, ids, plans, late=False)
    late = _starts(book, now_ms, ids, plans, late=True)
    return {
        run_id: Eta(p50_ms=at_ms, p90_ms=max(at_ms, late[run_id]))
        for run_id, at_ms in median.items()
        if run_id in late and run_id in waiting
    }


def _starts(
    book: Book, now_ms: int, wanted: frozenset[int] | None, plans: int, *, late: bool
) -> dict[int, int]:
    left = None if wanted is None else set(wanted)
    with Rehearsal(book, now_ms, late=late) as rehearsal:
        rehearsal.play(plans, left)
        if left is None or left:
            then = Forward(book, rehearsal.now_ms, late=late).run(left)
            return {**then, **rehearsal.starts}
        return rehearsal.starts
