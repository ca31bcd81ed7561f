"""A big gang starts within its pool's ageing bound and the longest run, whatever small runs keep coming.

A closed world: runs last as long as was expected, and small ones are submitted faster than they can be served.
"""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.policy import Policy, PoolOrder, PoolPolicy
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.invariants import violations
from airyard.core.scheduling.plan import Running, Waiting
from airyard.core.scheduling.planner import plan
from planner_seeds import HOUR_MS, MINUTE_MS, NOW_MS, plain_node

GANG = 1
POOL = "GPU_4xH100"
AGEING_MS = 4 * HOUR_MS
LONGEST_MS = 2 * HOUR_MS
STEP_MS = 10 * MINUTE_MS


def waits_until_the_gang_starts(seed: int, order: PoolOrder, nodes: int, reservations: int) -> int:
    """Run the world until the gang, which asks for all of the pool, starts; return how long it waited, in ms.

    It comes when the pool is full and nobody waits: runs that were there before it would rightly go first.
    """
    chance = random.Random(seed)
    pool = PoolPolicy(
        name=POOL, accelerator=POOL, order=order, ageing_ms=AGEING_MS, reservations=reservations
    )
    book = Book(Policy(pools=(pool,)))
    for index in range(nodes):
        book.put_node(plain_node(f"n{index}", POOL))
    ends: dict[int, int] = {}
    now_ms, next_id = NOW_MS, GANG + 1
    begins_ms = NOW_MS + HOUR_MS
    while now_ms < begins_ms + 4 * (AGEING_MS + LONGEST_MS):
        if now_ms == begins_ms:
            for run_id in list(book.queue.runs):
                book.drop(run_id)
            book.put_waiting(_want(GANG, now_ms, 4, nodes, 24 * HOUR_MS), now_ms)
        for run_id in [run_id for run_id, end_ms in ends.items() if end_ms <= now_ms]:
            del ends[run_id]
            book.drop(run_id)
        while len(book.queue.runs) < 25:
            lasts_ms = chance.randint(1, LONGEST_MS // STEP_MS) * STEP_MS
            book.put_waiting(_want(next_id, now_ms, chance.choice((1, 1, 2, 4)), 1, lasts_ms), now_ms)
            next_id += 1
        made = plan(book, now_ms)
        assert violations(book, made, now_ms) == []
        for start in made.starts:
            if start.run_id == GANG:
                return now_ms - begins_ms
            want = book.queue.runs[start.run_id]
            ends[want.run_id] = now_ms + want.expected_ms
            book.put_running(_placed(want, start.seats, now_ms))
        now_ms += STEP_MS
    return now_ms - begins_ms


def _want(run_id: int, now_ms: int, devices: int, nodes: int, lasts_ms: int) -> Waiting:
    return Waiting(
        run_id=run_id,
        rank=1,
        queued_ms=now_ms,
        accelerator=f"GPU_{devices}xH100",
        model="H100",
        devices_per_node=devices,
        nodes=nodes,
        expected_ms=lasts_ms,
        likely_ms=lasts_ms,
    )


def _placed(want: Waiting, seats: tuple[object, ...], now_ms: int) -> Running:
    one = Running(
        run_id=want.run_id, attempt=0, rank=1, placed_ms=now_ms, seats=(), stopping=False, pool=POOL
    )
    return replace(one, seats=seats, end_ms=now_ms + want.expected_ms, late_end_ms=now_ms + want.expected_ms)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(PoolOrder), st.integers(1, 5), st.sampled_from((1, 8)))
def test_a_gang_of_the_whole_pool_starts_in_time(
    seed: int, order: PoolOrder, nodes: int, reservations: int
) -> None:
    assert waits_until_the_gang_starts(seed, order, nodes, reservations) <= AGEING_MS + LONGEST_MS + STEP_MS


def test_without_promises_it_would_starve() -> None:
    """What the promises are for: the same world without them."""
    assert waits_until_the_gang_starts(7, PoolOrder.PREDICTED, 4, 0) > AGEING_MS + LONGEST_MS + STEP_MS
