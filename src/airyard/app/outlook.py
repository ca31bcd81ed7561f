"""What one plan says of the waiting runs: their order, expected starts and explanations, found out when asked.

Owns: what was found out so far, until the book changes. Must not know: threads, documents, who asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import structlog

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.counterfactual import Lasting
from airyard.core.scheduling.eta import Eta, etas
from airyard.core.scheduling.explain import Explanation, Seen, WaysOut, explain, ways_out
from airyard.core.scheduling.overtakes import Begun
from airyard.core.scheduling.places import Place, places
from airyard.core.scheduling.plan import Plan, Refusal, Waiting
from airyard.core.scheduling.waits import refusal_of

_log = structlog.get_logger("airyard.outlook")

FRESH_MS = 30_000
"""Expected starts are found out again after this time, even when the plan is the same."""
LONG_QUEUE = 2_000
"""In a longer one the expected starts behind the first ``FRONT`` runs may be as old as ``STALE_MS``."""
FRONT = 100
STALE_MS = 20_000


class Outlook:
    """The waiting runs of a book as it is now. Whoever changes the book makes a new one."""

    def __init__(
        self, book: Book, plan: Plan | None, begun: Iterable[Begun], before: Outlook | None = None
    ) -> None:
        self._book = book
        self._plan = plan
        self._begun = begun
        self._order: list[Place] | None = None
        self._positions: dict[int, int] = {}
        self._found: dict[int, tuple[int, Eta | None]] = {}
        """Run → when its expected start was found out, and what it is; None when it is not in sight."""
        known = {**before._older, **before._found} if before is not None else {}
        self._older: dict[int, tuple[int, Eta | None]] = {
            run_id: found for run_id, found in known.items() if run_id in book.queue.runs
        }
        """The same as of earlier plans."""
        self._explained: dict[int, Explanation] = {}

    def order(self, now_ms: int) -> Sequence[Place]:
        """Return the places of the runs that are considered, in order."""
        if self._order is None:
            self._order = places(self._book, now_ms)
            self._positions = {place.run_id: at for at, place in enumerate(self._order, start=1)}
        return self._order

    def position(self, run_id: int, now_ms: int) -> int | None:
        """Return the place of a run in the queue from 1; None for one that is parked."""
        self.order(now_ms)
        return self._positions.get(run_id)

    def queue(self, now_ms: int) -> list[int]:
        """Return the ids of all waiting runs: in order, then the parked ones by when they wake."""
        parked = self._book.queue.parked
        sleeping = sorted(parked, key=lambda run_id: (parked[run_id] or 1 << 62, run_id))
        return [place.run_id for place in self.order(now_ms)] + sleeping

    def refusal(self, run_id: int, now_ms: int) -> Refusal | None:
        """Return why a run waits; None when no plan has come to it yet."""
        want = self._book.queue.runs.get(run_id)
        return refusal_of(self._plan, want, now_ms) if want is not None else None

    def etas(self, now_ms: int, wanted: Iterable[int] | None = None) -> dict[int, Eta]:
        """Return the expected starts of the runs that are wanted, of all when None; those not in sight are missing.

        Cost: as ``core.scheduling.eta.etas`` says; nothing for what was found out before.
        """
        waiting = self._book.queue.runs.keys()
        ids = set(waiting) if wanted is None else set(wanted) & waiting
        missing = {run_id for run_id in ids if not self._knows(run_id, now_ms)}
        if missing:
            found = etas(self._book, now_ms, wanted=None if len(missing) == len(waiting) else missing)
            self._found.update((run_id, (now_ms, found.get(run_id))) for run_id in missing)
            # What was found on the way is as good.
            self._found.update((run_id, (now_ms, eta)) for run_id, eta in found.items())
        return self.known_etas(ids)

    def _knows(self, run_id: int, now_ms: int) -> bool:
        found = self._found.get(run_id)
        if found is not None:
            return now_ms - found[0] <= FRESH_MS
        older = self._older.get(run_id)
        if older is None or len(self._book.queue.runs) <= LONG_QUEUE or now_ms - older[0] > STALE_MS:
            return False
        position = self.position(run_id, now_ms)
        if position is None or position <= FRONT:
            return False
        self._found[run_id] = older
        return True

    def known_etas(self, wanted: Iterable[int]) -> dict[int, Eta]:
        """Return the expected starts that were found out already. Cost: nothing."""
        found = {run_id: self._found.get(run_id) for run_id in wanted}
        return {run_id: one[1] for run_id, one in found.items() if one is not None and one[1] is not None}

    def recent_etas(self, wanted: Iterable[int], now_ms: int) -> dict[int, Eta]:
        """Return the expected starts that were found out lately, for this plan or an earlier one. Cost: nothing."""
        found = {}
        for run_id in wanted:
            at_ms, eta = self._found.get(run_id) or self._older.get(run_id) or (0, None)
            if eta is not None and now_ms - at_ms <= FRESH_MS:
                found[run_id] = eta
        return found

    def explain(self, run_id: int, now_ms: int, lasting: Lasting | None = None) -> Explanation | None:
        """Explain a waiting run; None when it does not wait. Once a plan for each run; cost: dozens of plans.

        ``lasting`` predicts the run in another shape or pool.
        """
        want = self._book.queue.runs.get(run_id)
        if want is None:
            return None
        eta = self.etas(now_ms, [run_id]).get(run_id)
        found = self._explained.get(run_id)
        if found is None or found.eta != eta:
            seen = Seen(order=self.order(now_ms), begun=self._begun)
            ways = find_ways_out(self._book, self._plan, want, eta, now_ms, lasting)
            found = self._explained[run_id] = explain(self._book, self._plan, want, seen, eta, now_ms, ways)
        return found


def find_ways_out(
    book: Book, plan: Plan | None, want: Waiting, eta: Eta | None, now_ms: int, lasting: Lasting | None
) -> WaysOut:
    """Return what would help a waiting run; a fault in the search is logged, and said in the answer.

    It tries very many things; reason, position and expected start are good without it.
    """
    try:
        return ways_out(book, plan, want, eta, now_ms, lasting)
    except Exception:  # whatever it is, it must not take the rest of the explanation with it
        _log.exception("ways_out_failed", run_id=want.run_id)
        return WaysOut(failed=True)
