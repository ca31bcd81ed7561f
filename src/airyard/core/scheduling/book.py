"""The planner's book: nodes, queue, running attempts and shares, kept up to date run by run.

Owns: the consistency of the indexes. Must not know: how a plan is made, the journal.
A book that took in changes one by one equals one made from the whole snapshot (``picture``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from airyard.core.policy import Policy, PoolOrder, PoolPolicy, Reservation, Slicing
from airyard.core.scheduling.nodes import NodeIndex
from airyard.core.scheduling.plan import GroupKey, NodeView, Running, Shape, Snapshot, Used, Waiting
from airyard.core.scheduling.queue import QueueIndex
from airyard.core.scheduling.shares import Shares


class Book:
    """Everything a plan looks at. Not thread-safe: one thread calls everything."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.seq = 0
        self.policy = policy or Policy()
        self.running: dict[int, Running] = {}
        self.nodes = NodeIndex()
        self.shares = Shares(self.policy, self._capacity)
        self.queue = QueueIndex(self._group_of, self._rules_of)
        self.claims: dict[int, dict[int, int]] = {}
        """Run → those that were evicted for it, and when."""
        self._left_for: dict[int, int] = {}
        self.barred: dict[str, tuple[Reservation, ...]] = {}
        """Node → reservations of it, by their begin."""
        self.spent: frozenset[str] = frozenset()
        self._pools: dict[str, PoolPolicy] = {}
        self._capacities: dict[str, int] = {}

    @classmethod
    def of(cls, snapshot: Snapshot, now_ms: int) -> Book:
        """Make a book from a whole snapshot."""
        book = cls(snapshot.policy)
        book.seq = snapshot.seq
        for view in snapshot.nodes:
            book.put_node(view)
        for running in snapshot.running:
            book.put_running(running)
        for want in snapshot.waiting:
            book.put_waiting(want, now_ms)
        book.reserve(snapshot.reservations)
        book.account(snapshot.usage, snapshot.spent)
        return book

    # What changes it.

    def put_node(self, view: NodeView) -> None:
        """Add a node or replace what is known of it."""
        kinds = set(self.nodes.names)
        self._put_node(view)
        self._nodes_changed(kinds)

    def _put_node(self, view: NodeView) -> None:
        """Put a node in. On one that was away attempts may stand: a restarted agent tells of its nodes anew."""
        known = view.name in self.nodes.slots
        self.nodes.put(view, self.pool(view.pool).share)
        if known:
            return
        for running in self.running.values():
            if any(seat.node == view.name for seat in running.seats):
                self.nodes.seat(running)

    def drop_node(self, name: str) -> None:
        """Forget a node that the yard has no more."""
        if name in self.nodes.slots:
            kinds = set(self.nodes.names)
            self.nodes.drop(name)
            self._nodes_changed(kinds)

    def put_running(self, running: Running) -> None:
        """Add an attempt or replace what is known of it; its run waits no more."""
        old = self.running.get(running.run_id)
        if old == running:
            return
        self.drop(running.run_id)
        self.running[running.run_id] = running
        self._claim(running.run_id, running.leaving_for, running.evicted_ms)
        self.nodes.seat(running)
        self.shares.add(running)

    def put_waiting(self, want: Waiting, now_ms: int) -> None:
        """Add a waiting run or replace what is known of it; it runs no more."""
        if want.run_id in self.running:
            self.drop(want.run_id)
        self._claim(want.run_id, want.left_for, want.evicted_ms)
        self.queue.put(want, now_ms)

    def drop(self, run_id: int) -> None:
        """Forget a run, waiting or running; one that is not here is no matter."""
        self._claim(run_id, None, None)
        self.queue.drop(run_id)
        running = self.running.pop(run_id, None)
        if running is not None:
            self.nodes.unseat(running)
            self.shares.remove(running)

    def declare(self, policy: Policy, views: Iterable[NodeView], now_ms: int) -> None:
        """Take a new policy in, with the nodes as it sorts them into pools."""
        self.policy = policy
        self._pools.clear()
        self.shares.declare(policy)
        kept = set()
        for view in views:
            kept.add(view.name)
            self._put_node(view)
        for name in [name for name in self.nodes.slots if name not in kept]:
            self.nodes.drop(name)
        self._capacities.clear()
        self.shares.nodes_changed()
        self._requeue(now_ms)

    def reserve(self, reservations: Iterable[Reservation]) -> None:
        """Replace the reservations of nodes."""
        barred: dict[str, list[Reservation]] = {}
        for reservation in sorted(reservations, key=lambda one: (one.from_ms, one.reservation_id)):
            for node in reservation.nodes:
                barred.setdefault(node, []).append(reservation)
        self.barred = {node: tuple(of_node) for node, of_node in barred.items()}

    def account(self, usage: Iterable[Used], spent: frozenset[str]) -> None:
        """Replace the decayed usage, and the projects whose budget is spent."""
        self.shares.used_so_far(usage)
        self.spent = spent

    def _nodes_changed(self, kinds: set[Any]) -> None:
        self._capacities.clear()
        self.shares.nodes_changed()
        if set(self.nodes.names) != kinds:
            self._requeue(0)

    def _requeue(self, now_ms: int) -> None:
        """Sort all waiting runs into groups again: which pool serves a shape first may have changed."""
        old = self.queue
        self.queue = QueueIndex(self._group_of, self._rules_of)
        for want in old.runs.values():
            woken = want.run_id not in old.parked
            self.queue.put(want, max(now_ms, want.not_before_ms, want.begin_ms) if woken else now_ms)

    def _claim(self, victim: int, for_run: int | None, at_ms: int | None) -> None:
        """Note for whom a run was evicted last, and when; None for nobody."""
        before = self._left_for.pop(victim, None)
        if before is not None:
            victims = self.claims[before]
            del victims[victim]
            if not victims:
                del self.claims[before]
        if for_run is not None:
            self._left_for[victim] = for_run
            self.claims.setdefault(for_run, {})[victim] = at_ms or 0
        for claimant in (before, for_run):
            if claimant is not None:
                self.queue.sort_again(claimant)

    def _may_claim(self, want: Waiting) -> bool:
        """True when somebody was evicted for the run and it has not been placed since."""
        victims = self.claims.get(want.run_id)
        return victims is not None and max(victims.values()) > (want.placed_ms or -1)

    # What it is asked.

    def barred_now(self, node: str, project: str, now_ms: int) -> bool:
        """True when a reservation for others is on."""
        return any(one.bars(node, project, now_ms, now_ms + 1) for one in self.barred.get(node, ()))

    def pool(self, name: str) -> PoolPolicy:
        """Return a pool's rules."""
        found = self._pools.get(name)
        if found is None:
            found = self._pools[name] = self.policy.pool(name)
        return found

    def primary(self, shape: Shape) -> str:
        """Return the pool that serves a shape first; empty when none can."""
        return next(iter(self.nodes.fitting(shape)), "")

    def slicing(self, pool: str, project: str) -> Slicing | None:
        """Return how a project's runs are sliced in a pool; None when they are not."""
        declared = self.shares.projects.get(project)
        if declared is not None and declared.slicing is not None:
            return (self.pool(pool).slicing or Slicing()) if declared.slicing else None
        return self.pool(pool).slicing

    def sliced(self, want: Waiting, pool: str) -> bool:
        """True when the run has had its first slice by the rules of a pool."""
        if not want.acknowledges:
            return False
        slicing = self.slicing(pool, want.project)
        return slicing is not None and want.served_ms >= slicing.first_slice_ms

    def group_of(self, want: Waiting) -> GroupKey:
        """Return the group of a waiting run."""
        return self._group_of(want)

    def _group_of(self, want: Waiting) -> GroupKey:
        shape = want.shape
        declared = self.shares.projects.get(want.project)
        limits = declared.per_user if declared is not None else None
        limited = limits is not None and not (limits.running is None and limits.devices is None)
        return GroupKey(
            shape,
            want.rank,
            want.project,
            want.owner if limited else "",
            self.sliced(want, self.primary(shape)),
            want.avoid_nodes,
            bool(self.claims) and self._may_claim(want),
        )

    def _rules_of(self, key: GroupKey) -> tuple[str, PoolOrder, int]:
        pool = self.pool(self.primary(key.shape))
        return pool.name, pool.order, pool.ageing_ms

    def _capacity(self, pool: str) -> int:
        found = self._capacities.get(pool)
        if found is None:
            found = self._capacities[pool] = self.nodes.capacity(pool)
        return found

    def picture(self) -> dict[str, Any]:
        """Return all that the indexes hold, for comparison with a rebuild."""
        return {
            "slots": {
                name: (slot.view, slot.free, slot.leaving, slot.residents, slot.shared)
                for name, slot in self.nodes.slots.items()
            },
            "shelves": {
                kind: (shelf.counts, {fabric: rows for fabric, rows in shelf.by_free.items() if any(rows)})
                for kind, shelf in self.nodes.shelves.items()
                if any(shelf.counts)
            },
            "groups": {key: (group.entries, group.by_age) for key, group in self.queue.groups.items()},
            "parked": self.queue.parked,
            "waiting": self.queue.runs,
            "running": self.running,
            "shares": (
                self.shares.held,
                self.shares.firm,
                self.shares.going,
                self.shares.of_rank,
                self.shares.users,
            ),
            "barred": self.barred,
            "claims": self.claims,
        }
