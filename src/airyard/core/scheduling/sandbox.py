"""A book to play with: what is changed in it inside the context is taken back at its end.

Owns: that the book is afterwards what it was before. Must not know: what is tried.
Cost: what was changed, twice.
"""

from __future__ import annotations

from types import TracebackType

from airyard.core.policy import Policy, Reservation
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.plan import NodeView, Running, Waiting


class Sandbox:
    """The context. Plans may be made inside, at any times from ``now_ms`` on."""

    def __init__(self, book: Book, now_ms: int) -> None:
        self.book = book
        self._now_ms = now_ms
        self._runs: dict[int, Running | Waiting | None] = {}
        self._parked: dict[int, tuple[int, Waiting]] = {}
        self._nodes: dict[str, NodeView] = {}

    def __enter__(self) -> Sandbox:
        """Note what a plan may change by itself: who is parked, and wakes."""
        book = self.book
        self._parked = {run_id: (at, book.queue.runs[run_id]) for run_id, at in book.queue.parked.items()}
        self._barred, self._spent = book.barred, book.spent
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put everything back."""
        book = self.book
        book.barred, book.spent = self._barred, self._spent
        if book.shares.policy is not book.policy:
            book.shares.declare(book.policy)
        for view in self._nodes.values():
            book.put_node(view)
        for run_id in (*self._runs, *self._parked):
            book.drop(run_id)
        for was in self._runs.values():
            if isinstance(was, Running):
                book.put_running(was)
            elif was is not None:
                self._put_back(was)
        # Dropped above, whether it was touched or has only woken.
        for run_id in self._parked.keys() - self._runs.keys():
            self._put_back(self._parked[run_id][1])

    def _put_back(self, want: Waiting) -> None:
        wakes_ms = self._parked[want.run_id][0] if want.run_id in self._parked else 0
        self.book.put_waiting(want, min(self._now_ms, wakes_ms - 1) if wakes_ms else self._now_ms)

    def put(self, record: Running | Waiting, now_ms: int) -> None:
        """Change what the book knows of a run, or add one."""
        self._remember(record.run_id)
        if isinstance(record, Running):
            self.book.put_running(record)
        else:
            self.book.put_waiting(record, now_ms)

    def drop(self, run_id: int) -> None:
        """Let a run be gone."""
        self._remember(run_id)
        self.book.drop(run_id)

    def _remember(self, run_id: int) -> None:
        if run_id not in self._runs:
            self._runs[run_id] = self.book.running.get(run_id) or self.book.queue.runs.get(run_id)

    def put_node(self, view: NodeView) -> None:
        """Change what the book knows of a node; its type and size stay."""
        self._nodes.setdefault(view.name, self.book.nodes.slots[view.name].view)
        self.book.put_node(view)

    def declare(self, policy: Policy) -> None:
        """Let other ceilings and limits of users hold; pools and who is limited at all stay."""
        self.book.shares.declare(policy)

    def lift(self, reservation: Reservation) -> None:
        """Let a reservation be over."""
        kept = {
            node: tuple(one for one in of_node if one != reservation)
            for node, of_node in self.book.barred.items()
        }
        self.book.barred = {node: of_node for node, of_node in kept.items() if of_node}

    def afford(self, project: str) -> None:
        """Let a project have budget left."""
        self.book.spent = self.book.spent - {project}
