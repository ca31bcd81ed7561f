"""What would become of a workload if it were submitted now: the rules of a submit, then the planner's word.

Owns: the DryRunDoc. Pure; must not know: HTTP, threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airyard.app.explain_views import counterfactual_document
from airyard.app.explaining import Tried
from airyard.app.views import eta_document
from airyard.core.commands import SubmitRun
from airyard.core.decide import Submitted, decide
from airyard.core.events import Recorded
from airyard.core.run import Run, RunState
from airyard.core.state import ClusterState


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """The run that a submit would make, or the one that its key has made: then there is nothing to plan."""

    run: Run
    existing: bool

    @property
    def waits(self) -> bool:
        """True when the planner would have to find a place for it."""
        return not self.existing and self.run.state is RunState.QUEUED


def admitted(state: ClusterState, command: SubmitRun, now_ms: int) -> Admitted:
    """Decide on ``state``, which is used up. Raises: what the submit would raise."""
    decision = decide(state, command, now_ms)
    assert isinstance(decision.reply, Submitted)
    for event in decision.events:
        state.apply(Recorded(seq=state.seq + 1, at_ms=now_ms, epoch=state.epoch, event=event))
    return Admitted(run=state.runs[decision.reply.run_id], existing=decision.reply.existing)


def dry_run_document(
    command: SubmitRun,
    found: Admitted,
    tried: Tried | None,
    pools: dict[str, str],
    warnings: Sequence[str],
    *,
    environment_cached: bool | None,
) -> dict[str, Any]:
    """Say what would become of it. ``pools``: node that is large enough → its pool.

    ``environment_cached``: whether the environment is built already; None when that cannot be known.
    """
    compute, environment = command.workload.compute, command.workload.environment
    start = tried.start if tried is not None else None
    seen = tried.glance if tried is not None else None
    refusal = seen.refusal if seen is not None else None
    nodes = [seat.node for seat in start.seats] if start is not None else []
    return {
        "would_start_now": start is not None,
        "nodes": nodes,
        "accelerator": compute.accelerator,
        "devices": compute.num_accelerators,
        "pool": compute.pool or _pool(nodes, pools) or compute.accelerator,
        "environment": {
            "version": environment.version,
            "dependencies": len(environment.dependencies),
            "cached": environment_cached,
        },
        "gpu_hours_at_limit": gpu_hours_at_limit(command),
        "reason": refusal.reason.value if refusal else None,
        "message": _message(found, tried),
        "position": seen.position if seen is not None else None,
        "eta": eta_document(seen.eta if seen is not None else None),
        "counterfactuals": [
            counterfactual_document(one, None) for one in (tried.ways_out.counterfactuals if tried else ())
        ],
        "counterfactuals_failed": tried is not None and tried.ways_out.failed,
        "evidence": dict(refusal.evidence) if refusal else {},
        "warnings": list(warnings),
    }


def _pool(nodes: Sequence[str], pools: dict[str, str]) -> str | None:
    """Return where it would start; of one that waits, the only pool that could serve it."""
    if nodes:
        return pools[nodes[0]]
    able = set(pools.values())
    return able.pop() if len(able) == 1 else None


def _message(found: Admitted, tried: Tried | None) -> str:
    if found.existing:
        return f"this idempotency key has made run {found.run.run_id} already; submitting returns that run"
    if tried is not None and tried.start is not None:
        return "it would start now"
    refusal = tried.glance.refusal if tried is not None else None
    return refusal.message if refusal is not None else "it would wait"


def gpu_hours_at_limit(command: SubmitRun) -> float | None:
    """Return the GPU-hours of one attempt that runs into its time limit; None without GPUs or limit."""
    compute, limit_s = command.workload.compute, command.workload.attempt_timeout_s
    if compute.is_cpu or limit_s is None:
        return None
    return round(compute.num_accelerators * limit_s / 3600, 3)
