"""A book that takes in changes one by one equals one made from the whole, whatever the changes and their order.

And planning leaves it as it was: what a plan does becomes true only when it is committed.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from airyard.core.policy import Policy, Reservation
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.invariants import drift, violations
from airyard.core.scheduling.plan import NodeView, Running, Snapshot, Used, Waiting
from airyard.core.scheduling.planner import plan
from planner_seeds import (
    HOUR_MS,
    NOW_MS,
    Draw,
    drawing,
    node_of,
    projects_of,
    reservations_of,
    running_on,
    snapshot_of,
    waiting_of,
)

SEEDS = st.integers(0, 2**32)
NAMES = tuple(f"n{index}" for index in range(5))


class BookMachine(RuleBasedStateMachine):
    """The changes that a book may be told of, beside a plain record of what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOW_MS
        self.nodes: dict[str, NodeView] = {}
        self.gone: dict[str, NodeView | None] = {}
        self.running: dict[int, Running] = {}
        self.waiting: dict[int, Waiting] = {}
        self.policy = Policy()
        self.reservations: tuple[Reservation, ...] = ()
        self.usage: tuple[Used, ...] = ()
        self.spent: frozenset[str] = frozenset()
        self.book = Book(self.policy)

    @initialize(seed=SEEDS)
    def begin(self, seed: int) -> None:
        snapshot = snapshot_of(seed)
        self.nodes = {node.name: node for node in snapshot.nodes}
        self.running = {one.run_id: one for one in snapshot.running}
        self.waiting = {want.run_id: want for want in snapshot.waiting}
        self.policy, self.reservations = snapshot.policy, snapshot.reservations
        self.usage, self.spent = snapshot.usage, snapshot.spent
        self.book = Book.of(snapshot, self.now_ms)

    def _draw(self, seed: int) -> Draw:
        draw = drawing(random.Random(seed))
        draw.nodes = list(self.nodes.values())
        draw.projects = [project.name for project in self.policy.projects] + ["default"]
        return draw

    @rule(seed=SEEDS, name=st.sampled_from(NAMES))
    def a_node_comes_or_changes(self, seed: int, name: str) -> None:
        draw = self._draw(seed)
        self.nodes[name] = node_of(draw, name, draw.chance.choice(draw.pools))
        self.book.put_node(self.nodes[name])

    @rule(seed=SEEDS, name=st.sampled_from(NAMES))
    def a_node_is_cordoned(self, seed: int, name: str) -> None:
        if name in self.nodes:
            self.nodes[name] = replace(self.nodes[name], cordoned=seed % 2 == 0, alive=seed % 3 > 0)
            self.book.put_node(self.nodes[name])

    @rule(name=st.sampled_from(NAMES))
    def a_node_goes(self, name: str) -> None:
        self.gone[name] = self.nodes.pop(name, self.gone.get(name))
        self.book.drop_node(name)

    @rule(name=st.sampled_from(NAMES))
    def a_node_comes_back(self, name: str) -> None:
        view = self.gone.get(name)
        if view is not None and name not in self.nodes:
            self.nodes[name] = view
            self.book.put_node(view)

    @rule(seed=SEEDS, run_id=st.integers(1, 5))
    def a_run_is_placed(self, seed: int, run_id: int) -> None:
        draw = self._draw(seed)
        taken = {
            (seat.node, device)
            for one in self.running.values()
            if one.run_id != run_id
            for seat in one.seats
            for device in seat.devices
        }
        found = running_on(draw, run_id, lambda node, device: (node, device) not in taken)
        if found is not None:
            self.waiting.pop(run_id, None)
            self.running[run_id] = found
            self.book.put_running(found)

    @rule(run_id=st.integers(1, 5), stopping=st.booleans(), members=st.integers(1, 3))
    def an_attempt_changes(self, run_id: int, stopping: bool, members: int) -> None:
        if run_id in self.running:
            one = self.running[run_id]
            self.running[run_id] = replace(one, stopping=stopping, seats=one.seats[:members])
            self.book.put_running(self.running[run_id])

    @rule(seed=SEEDS, run_id=st.integers(1, 9))
    def a_run_waits(self, seed: int, run_id: int) -> None:
        self.running.pop(run_id, None)
        self.waiting[run_id] = waiting_of(self._draw(seed), run_id)
        self.book.put_waiting(self.waiting[run_id], self.now_ms)

    @rule(run_id=st.integers(1, 9))
    def a_run_goes(self, run_id: int) -> None:
        self.running.pop(run_id, None)
        self.waiting.pop(run_id, None)
        self.book.drop(run_id)

    @rule(seed=SEEDS)
    def a_policy_is_declared(self, seed: int) -> None:
        draw = self._draw(seed)
        names = [pool.name for pool in draw.pools]
        self.nodes = {
            name: replace(view, pool=draw.chance.choice([*names, view.pool]))
            for name, view in self.nodes.items()
        }
        self.policy = Policy(pools=tuple(draw.pools), projects=projects_of(draw))
        self.book.declare(self.policy, self.nodes.values(), self.now_ms)

    @rule(seed=SEEDS)
    def nodes_are_reserved(self, seed: int) -> None:
        self.reservations = reservations_of(self._draw(seed))
        self.book.reserve(self.reservations)

    @rule(step_ms=st.sampled_from((1, 5_000, HOUR_MS)))
    def time_passes(self, step_ms: int) -> None:
        self.now_ms += step_ms
        self.book.queue.wake(self.now_ms)

    @rule()
    def a_plan_is_made(self) -> None:
        made = plan(self.book, self.now_ms)
        assert violations(self.book, made, self.now_ms) == []
        assert plan(self._rebuilt(), self.now_ms) == replace(made, seq=1)

    @invariant()
    def it_equals_its_rebuild(self) -> None:
        assert drift(self.book, self._rebuilt(), self.now_ms) == []

    def _rebuilt(self) -> Book:
        snapshot = Snapshot(
            seq=1,
            nodes=tuple(self.nodes.values()),
            waiting=tuple(self.waiting.values()),
            running=tuple(self.running.values()),
            policy=self.policy,
            reservations=self.reservations,
            usage=self.usage,
            spent=self.spent,
        )
        return Book.of(snapshot, self.now_ms)


TestBook = BookMachine.TestCase
TestBook.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
