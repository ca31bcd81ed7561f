"""Every reason for which a run waits is true: what it says holds, and once that is changed the run starts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from airyard.core.scheduling.plan import Plan, Reason, Refusal, Snapshot, Waiting
from airyard.core.scheduling.planner import plan_snapshot
from airyard.core.scheduling.waits import refusal_of
from planner_seeds import NOW_MS, snapshot_of
from planner_truth import able_pools, could_start, idle, over_ceiling, over_limit, parked

SEEDS = st.integers(0, 2**48)
EXAMPLES = settings(max_examples=300, deadline=None)
NEVER = (Reason.NO_SUCH_ACCELERATOR, Reason.EXCEEDS_POOL)
PARKED = (Reason.BACKOFF, Reason.NOT_YET, Reason.PAUSED)


def waits_of(snapshot: Snapshot, made: Plan) -> list[tuple[Waiting, Refusal | None]]:
    """Return every run that does not start, with its reason."""
    started = {start.run_id for start in made.starts}
    waits = [want for want in snapshot.waiting if want.run_id not in started]
    return [(want, refusal_of(made, want, NOW_MS)) for want in waits]


@EXAMPLES
@given(SEEDS)
def test_every_run_that_waits_has_a_reason_of_its_own_kind(seed: int) -> None:
    snapshot = snapshot_of(seed)
    made = plan_snapshot(snapshot, NOW_MS)
    kept = {hold.run_id for hold in made.kept}
    for want, found in waits_of(snapshot, made):
        assert found is not None
        assert found.message
        assert (found.reason in PARKED) == parked(want)
        assert found.reason is not Reason.PREEMPTING or want.run_id in kept


@EXAMPLES
@given(SEEDS)
def test_what_never_fits_does_not_start_on_an_idle_yard_and_everything_else_does(seed: int) -> None:
    """The counterfactual of all reasons at once: everybody gone, quotas lifted, nodes mended, holds released."""
    snapshot = snapshot_of(seed)
    for want, found in waits_of(snapshot, plan_snapshot(snapshot, NOW_MS)):
        assert found is not None
        starts = bool(plan_snapshot(idle(snapshot, want), NOW_MS).starts)
        if found.reason in NEVER:
            assert not starts
        elif found.reason not in PARKED:
            assert starts


@EXAMPLES
@given(SEEDS)
def test_no_room_means_no_room(seed: int) -> None:
    """Not even if nothing were promised, kept or reserved."""
    snapshot = snapshot_of(seed)
    made = replace(plan_snapshot(snapshot, NOW_MS), kept=())
    for want, found in _first_refused(snapshot, made):
        if found.reason in (Reason.NO_FREE_NODES, Reason.NO_FABRIC_BLOCK, Reason.NODES_UNHEALTHY):
            assert not could_start(snapshot, made, want, promises=False, reservations=False)


@EXAMPLES
@given(SEEDS)
def test_what_is_held_is_there(seed: int) -> None:
    """A run that waits because its place is promised or reserved had one when the plan began."""
    snapshot = snapshot_of(seed)
    made = plan_snapshot(snapshot, NOW_MS)
    nothing = replace(made, starts=(), kept=())
    for want, found in _first_refused(snapshot, made):
        if found.reason is Reason.HELD_FOR_RESERVATION:
            assert could_start(snapshot, nothing, want, promises=False, reservations=False)
            assert found.evidence.get("runs") or found.evidence.get("nodes_reserved")


@EXAMPLES
@given(SEEDS)
def test_a_quota_that_is_given_as_the_reason_is_used_up(seed: int) -> None:
    snapshot = snapshot_of(seed)
    made = plan_snapshot(snapshot, NOW_MS)
    served = [*made.starts, *made.kept]
    for want, found in _first_refused(snapshot, made):
        if found.reason is Reason.BUDGET:
            assert want.project in snapshot.spent
        elif found.reason is Reason.PROJECT_CEILING and "user" in found.evidence:
            assert over_limit(snapshot, served, want)
        elif found.reason is Reason.PROJECT_CEILING:
            assert all(over_ceiling(snapshot, served, want, pool) for pool in able_pools(snapshot, want))


@EXAMPLES
@given(SEEDS)
def test_a_run_starts_once_its_quota_is_lifted(seed: int) -> None:
    """Where a quota alone is in the way: on a yard without others, and with its own running attempts gone."""
    snapshot = snapshot_of(seed)
    for want, found in _first_refused(snapshot, plan_snapshot(snapshot, NOW_MS)):
        if found.reason in (Reason.PROJECT_CEILING, Reason.BUDGET):
            alone = replace(idle(snapshot, want), policy=snapshot.policy, spent=snapshot.spent)
            still = refusal_of(plan_snapshot(alone, NOW_MS), want, NOW_MS)
            # Alone it starts, or it asks more than its quota holds altogether: then lifting that is what helps.
            assert still is None or still.reason is found.reason
            assert plan_snapshot(
                replace(alone, policy=idle(snapshot, want).policy, spent=frozenset()), NOW_MS
            ).starts


@EXAMPLES
@given(SEEDS)
def test_who_is_parked_is_considered_once_the_time_has_come_or_it_is_released(seed: int) -> None:
    snapshot = snapshot_of(seed)
    for want, found in waits_of(snapshot, plan_snapshot(snapshot, NOW_MS)):
        assert found is not None
        if found.reason in PARKED:
            now_ms = max(NOW_MS, want.not_before_ms, want.begin_ms)
            free = replace(want, held=False)
            later = plan_snapshot(replace(idle(snapshot, want), waiting=(free,)), now_ms)
            then = refusal_of(later, free, now_ms)
            assert later.starts or (then is not None and then.reason in NEVER)
            if not want.held:
                assert not plan_snapshot(replace(idle(snapshot, want), waiting=(free,)), now_ms - 1).starts


def _first_refused(snapshot: Snapshot, made: Plan) -> list[tuple[Waiting, Refusal]]:
    """Return the runs that a reason was found for; others of their group share it."""
    wants = {want.run_id: want for want in snapshot.waiting}
    started = {start.run_id for start in made.starts}
    found = [(wants[refusal.run_id], refusal) for refusal in made.refusals.values()]
    return [(want, refusal) for want, refusal in found if want.run_id not in started]
