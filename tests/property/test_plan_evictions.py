"""Eviction is for placing a run at once, and for nothing else: it places, it costs no more than it must, it does not
come back on itself.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.scheduling.plan import Plan, Snapshot
from airyard.core.scheduling.planner import plan_snapshot
from planner_seeds import MINUTE_MS, NOW_MS, snapshot_of
from planner_truth import carried_out

SEEDS = st.integers(0, 2**48)
EXAMPLES = settings(max_examples=500, deadline=None)


def quiet(seed: int) -> Snapshot:
    """Return a yard on which nobody is leaving yet: who was evicted earlier may come back and have its own rights."""
    snapshot = snapshot_of(seed)
    staying = tuple(replace(one, stopping=False, evicted=False, leaving_for=None) for one in snapshot.running)
    return replace(snapshot, running=staying)


def evicting(seed: int) -> tuple[Snapshot, Plan, int] | None:
    """Return a yard, its plan and the one run for which others leave."""
    snapshot = quiet(seed)
    made = plan_snapshot(snapshot, NOW_MS)
    guests = {eviction.for_run for eviction in made.evictions}
    return (snapshot, made, guests.pop()) if len(guests) == 1 else None


@EXAMPLES
@given(SEEDS)
def test_an_eviction_places(seed: int) -> None:
    """Once the victims have left, the run for which they left starts, although they are queued again in their place.

    Runs of a higher class are left out: what is freed may be theirs, by a limit that the victims' leaving relieves.
    """
    found = evicting(seed)
    if found is None:
        return
    snapshot, made, guest = found
    rank = next(want.rank for want in snapshot.waiting if want.run_id == guest)
    after = carried_out(snapshot, made)
    after = replace(after, waiting=tuple(want for want in after.waiting if want.rank >= rank))
    assert guest in {start.run_id for start in plan_snapshot(after, NOW_MS).starts}


@EXAMPLES
@given(SEEDS)
def test_every_victim_is_needed(seed: int) -> None:
    """Where a wish or a promise is in the way of a node that is freed, more may be needed than the nodes say."""
    found = evicting(seed)
    if found is None:
        return
    snapshot, made, guest = found
    if made.holds or any(want.avoid_nodes for want in snapshot.waiting if want.run_id == guest):
        return
    for spared in made.evictions:
        fewer = replace(made, evictions=tuple(one for one in made.evictions if one is not spared))
        assert guest not in {
            start.run_id for start in plan_snapshot(carried_out(snapshot, fewer), NOW_MS).starts
        }


@EXAMPLES
@given(SEEDS)
def test_nobody_evicts_for_whom_it_left(seed: int) -> None:
    """No thrashing: not even when its first minute is over may a victim evict the run that came in its place."""
    found = evicting(seed)
    if found is None:
        return
    snapshot, made, guest = found
    victims = {eviction.run_id for eviction in made.evictions}
    after = carried_out(snapshot, made)
    second = plan_snapshot(after, NOW_MS)
    later_ms = NOW_MS + 5 * MINUTE_MS
    third = plan_snapshot(carried_out(after, second), later_ms)
    assert not [one for one in third.evictions if one.run_id == guest and one.for_run in victims]
