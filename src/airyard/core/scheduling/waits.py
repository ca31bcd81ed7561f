"""Finds the reason that a plan has for one waiting run.

Owns: which of a plan's reasons is whose. Must not know: nodes, how the plan was made.
"""

from __future__ import annotations

from itertools import product

from airyard.core.scheduling import reasons
from airyard.core.scheduling.plan import GroupKey, Plan, Refusal, Waiting


def refusal_of(plan: Plan | None, want: Waiting, now_ms: int) -> Refusal | None:
    """Return why a run waits; None when no plan has come to it yet, or when it is about to start."""
    parked = reasons.parked(want, now_ms)
    if parked is not None or plan is None:
        return parked
    if want.run_id in plan.of_runs:
        return plan.of_runs[want.run_id]
    shape, avoid = want.shape, want.avoid_nodes
    for sliced, owner, claims in product((False, True), ("", want.owner), (False, True)):
        found = plan.refusals.get(GroupKey(shape, want.rank, want.project, owner, sliced, avoid, claims))
        if found is not None:
            return found
    return plan.of_shapes.get(want.shape)
