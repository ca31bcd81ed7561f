"""The expected starts are those of plans made one after the other, when every end comes as it is expected.

With as many plans as there are ends that is so by making; with fewer the rest of the look ahead has to keep up.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.policy import Policy, PoolPolicy, ProjectPolicy, Share, UserLimits
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.eta import etas
from airyard.core.scheduling.plan import NodeView, Running, Snapshot, Start, Waiting
from airyard.core.scheduling.planner import plan
from explain_yard import MINUTE_MS, NOW_MS, at, node, reserved, waits

SEEDS = st.integers(min_value=0, max_value=1 << 32)


def snapshot_of(seed: int) -> Snapshot:
    """Make a yard of one class whose runs last exactly as long as expected."""
    chance = random.Random(seed)
    two_kinds, fabrics = chance.random() < 0.4, chance.choice((1, 1, 2))
    pools = (
        PoolPolicy(
            name="h100",
            accelerator="GPU_8xH100",
            reservations=chance.choice((0, 1, 8)),
            share=chance.random() < 0.8,
            ageing_ms=1 << 50,
        ),
        PoolPolicy(name="small", accelerator="GPU_4xH100", reservations=2, ageing_ms=1 << 50),
    )
    nodes = [_node(chance, index, two_kinds, fabrics) for index in range(chance.randint(1, 6))]
    return Snapshot(
        seq=1,
        nodes=tuple(nodes),
        waiting=tuple(_waiting(chance, number, fabrics) for number in range(1, chance.randint(2, 25))),
        running=(),
        policy=Policy(pools=pools, projects=_projects(chance)),
        reservations=tuple(
            reserved(number, chance.sample([one.name for one in nodes], 1), begin, begin + 50, project="p1")
            for number, begin in enumerate((-20, 30, 90), start=1)
            if chance.random() < 0.2
        ),
    )


def _node(chance: random.Random, index: int, two_kinds: bool, fabrics: int) -> NodeView:
    small = two_kinds and index % 2 == 1
    return node(
        f"n{index}",
        4 if small else 8,
        pool="small" if small else "h100",
        fabric=f"f{index % fabrics}",
        alive=chance.random() < 0.95,
    )


def _waiting(chance: random.Random, number: int, fabrics: int) -> Waiting:
    devices = chance.choice((1, 2, 4, 8, 8))
    return waits(
        number,
        devices,
        chance.choice((1, 1, 2, 3)) if devices >= 4 else 1,
        lasts=chance.randint(1, 120),
        queued=-chance.randint(1, 100),
        project=f"p{chance.randrange(3)}",
        owner=chance.choice("ab"),
        same_fabric=fabrics > 1 and chance.random() < 0.3,
        begin_ms=at(chance.randint(1, 60)) if chance.random() < 0.1 else 0,
    )


def _projects(chance: random.Random) -> tuple[ProjectPolicy, ...]:
    if chance.random() < 0.5:
        return ()
    return tuple(
        ProjectPolicy(
            name=f"p{index}",
            shares=(Share(pool="h100", ceiling=chance.choice((None, 8, 16))),),
            per_user=UserLimits(running=chance.choice((None, None, 2))),
        )
        for index in range(3)
    )


def starts_of_plans(snapshot: Snapshot) -> dict[int, int]:
    """Plan again and again, and let every attempt end when it is expected to; return when each run starts."""
    book, now_ms, starts = Book.of(snapshot, NOW_MS), NOW_MS, {}
    turns = {at_ms for one in snapshot.reservations for at_ms in (one.from_ms, one.to_ms)}
    while True:
        for start in plan(book, now_ms).starts:
            starts[start.run_id] = now_ms
            book.put_running(_begun(book, start, now_ms))
        waking = [at_ms for at_ms in book.queue.parked.values() if at_ms > now_ms]
        ends = [running.end_ms for running in book.running.values()]
        times = [*ends, *waking, *(at_ms for at_ms in turns if at_ms > now_ms)]
        if not times:
            return starts
        now_ms = min(times)
        for running in list(book.running.values()):
            if running.end_ms <= now_ms:
                book.drop(running.run_id)


def _begun(book: Book, start: Start, now_ms: int) -> Running:
    want = book.queue.runs[start.run_id]
    return Running(
        run_id=start.run_id,
        attempt=0,
        rank=want.rank,
        placed_ms=now_ms,
        seats=start.seats,
        stopping=False,
        project=want.project,
        owner=want.owner,
        pool=book.nodes.slots[start.seats[0].node].view.pool,
        end_ms=now_ms + want.expected_ms,
        late_end_ms=now_ms + want.expected_ms,
    )


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_expected_starts_are_those_of_plans(seed: int) -> None:
    snapshot = snapshot_of(seed)
    found = etas(Book.of(snapshot, NOW_MS), NOW_MS, plans=10_000)
    assert {run_id: eta.p50_ms for run_id, eta in found.items()} == starts_of_plans(snapshot)
    assert all(eta.p90_ms == eta.p50_ms for eta in found.values())


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_looking_ahead_without_plans_every_run_still_starts(seed: int) -> None:
    """A start may differ then, but not who starts at all."""
    snapshot = snapshot_of(seed)
    found = etas(Book.of(snapshot, NOW_MS), NOW_MS, plans=1)
    assert found.keys() == starts_of_plans(snapshot).keys()
    assert all(NOW_MS <= eta.p50_ms <= NOW_MS + 10_000 * MINUTE_MS for eta in found.values())


@settings(max_examples=150, deadline=None)
@given(seed=SEEDS)
def test_input_order_is_irrelevant(seed: int) -> None:
    snapshot = snapshot_of(seed)
    turned = replace(snapshot, nodes=snapshot.nodes[::-1], waiting=snapshot.waiting[::-1])
    assert etas(Book.of(turned, NOW_MS), NOW_MS) == etas(Book.of(snapshot, NOW_MS), NOW_MS)
