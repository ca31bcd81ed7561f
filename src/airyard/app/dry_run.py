"""What would become of a workload if it were submitted now: the real rules on a copy of the state.

Owns: the DryRunDoc. Pure; must not know: HTTP, threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airyard.core.commands import SubmitRun
from airyard.core.decide import Submitted, decide
from airyard.core.events import Recorded
from airyard.core.quota import paused
from airyard.core.run import RunState
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.listing import in_order
from airyard.core.scheduling.planner import plan
from airyard.core.scheduling.snapshot import take_snapshot, waiting_of
from airyard.core.scheduling.waits import refusal_of
from airyard.core.state import ClusterState


def dry_run_document(
    state: ClusterState,
    command: SubmitRun,
    now_ms: int,
    warnings: Sequence[str],
    *,
    environment_cached: bool | None,
) -> dict[str, Any]:
    """Decide and plan on ``state``, which is used up. Raises: what the submit would raise. Cost: one plan.

    ``environment_cached``: whether the environment is built already; None when that cannot be known.
    """
    decision = decide(state, command, now_ms)
    assert isinstance(decision.reply, Submitted)
    run_id = decision.reply.run_id
    compute, environment = command.workload.compute, command.workload.environment
    for event in decision.events:
        state.apply(Recorded(seq=state.seq + 1, at_ms=now_ms, epoch=state.epoch, event=event))
    snapshot = replace(take_snapshot(state, now_ms), spent=paused(state, now_ms))
    book = Book.of(snapshot, now_ms)
    found = plan(book, now_ms)
    start = next((each for each in found.starts if each.run_id == run_id), None)
    run = state.runs[run_id]
    waits = start is None and run.state is RunState.QUEUED
    refusal = refusal_of(found, waiting_of(run), now_ms) if waits else None
    pool = compute.pool or (
        state.policy.pool_of(state.nodes[start.seats[0].node]) if start else compute.accelerator
    )
    if decision.reply.existing:
        message = f"this idempotency key has made run {run_id} already; submitting returns that run"
    elif start is not None:
        message = "it would start now"
    else:
        message = refusal.message if refusal else "it would wait"
    return {
        "would_start_now": start is not None,
        "nodes": [seat.node for seat in start.seats] if start else [],
        "accelerator": compute.accelerator,
        "devices": compute.num_accelerators,
        "pool": pool,
        "environment": {
            "version": environment.version,
            "dependencies": len(environment.dependencies),
            "cached": environment_cached,
        },
        "gpu_hours_at_limit": gpu_hours_at_limit(command),
        "reason": refusal.reason.value if refusal else None,
        "message": message,
        "position": in_order(book, now_ms).index(run_id) + 1 if refusal else None,
        "evidence": dict(refusal.evidence) if refusal else {},
        "warnings": list(warnings),
    }


def gpu_hours_at_limit(command: SubmitRun) -> float | None:
    """Return the GPU-hours of one attempt that runs into its time limit; None without GPUs or limit."""
    compute, limit_s = command.workload.compute, command.workload.attempt_timeout_s
    if compute.is_cpu or limit_s is None:
        return None
    return round(compute.num_accelerators * limit_s / 3600, 3)
