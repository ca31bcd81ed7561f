"""What projects hold, have used and may still use, against what was declared.

Owns: the questions that submit, planner snapshot and pages ask about quotas.
Must not know: the queue's order, the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airyard.core.policy import HOUR_MS, OverBudget, Policy
from airyard.core.state import ClusterState
from airyard.core.usage import month_begin_ms, month_of, next_month
from airyard.core.workload import CPU, Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Devices that live attempts have not given back; ``best_effort`` of them are of BEST_EFFORT runs."""

    devices: int = 0
    best_effort: int = 0

    def borrowed(self, guarantee: int) -> int:
        """Return how many stand on others' guarantees: all of BEST_EFFORT, and what goes beyond the own one."""
        return self.best_effort + max(self.devices - self.best_effort - guarantee, 0)


def holdings(state: ClusterState) -> dict[tuple[str, str, str], Holding]:
    """Return what each (project, pool, user) holds now. Cost: live members."""
    out: dict[tuple[str, str, str], Holding] = {}
    for run, attempt in state.live_attempts():
        devices = sum(len(member.devices) for member in attempt.members if not member.released)
        if not devices:
            continue
        key = run.project, attempt.pool or run.workload.compute.accelerator, run.owner
        had = out.get(key, Holding())
        lent = devices if run.workload.compute.priority is Priority.BEST_EFFORT else 0
        out[key] = Holding(devices=had.devices + devices, best_effort=had.best_effort + lent)
    return out


def counts_for_budgets(policy: Policy, pool: str) -> bool:
    """True for pools of accelerators: CPU slots cost no GPU-hours."""
    return policy.pool(pool).accelerator != CPU


def spent(state: ClusterState, project: str, now_ms: int) -> float:
    """Return the GPU-hours that a project has used in this calendar month (UTC), what it holds now included."""
    month = month_of(now_ms)
    used_ms = 0
    for (name, pool), used in state.usage.items():
        if name == project and counts_for_budgets(state.policy, pool):
            settled = used.settled(now_ms, state.policy.half_life_ms)
            used_ms += settled.month_used if settled.month == month else 0
    return used_ms / HOUR_MS


def paused(state: ClusterState, now_ms: int) -> frozenset[str]:
    """Return the projects whose runs wait because the budget of this month is used up."""
    return frozenset(
        project.name
        for project in state.policy.projects
        if project.budget is not None
        and project.budget.over is OverBudget.PAUSE
        and spent(state, project.name, now_ms) >= project.budget.gpu_hours
    )


def month_end_ms(now_ms: int) -> int:
    """Return when the month ends, and every budget is whole again."""
    return month_begin_ms(next_month(month_of(now_ms)))


def decayed(state: ClusterState, now_ms: int) -> dict[tuple[str, str], float]:
    """Return the decayed device-milliseconds of each (project, pool)."""
    half_life_ms = state.policy.half_life_ms
    return {key: used.decayed_at(now_ms, half_life_ms) for key, used in state.usage.items()}


def capacity(state: ClusterState) -> dict[str, int]:
    """Return the devices of each pool's open nodes: machine up, not cordoned."""
    out: dict[str, int] = {}
    for node in state.nodes.values():
        machine = state.machines.get(node.machine)
        up = machine is not None and machine.alive and not node.cordoned
        pool = state.policy.pool_of(node)
        out[pool] = out.get(pool, 0) + (len(node.devices) if up else 0)
    return out


def guaranteed(policy: Policy, pool: str) -> Mapping[str, int]:
    """Return the declared guarantees of a pool by project, those of 0 left out."""
    found = {project.name: project.share_of(pool).guarantee for project in policy.projects}
    return {name: count for name, count in found.items() if count > 0}


def scaled_guarantee(declared: int, total: int, devices: int) -> int:
    """Return what a guarantee is worth where a pool of ``devices`` no longer covers ``total``; rounded down."""
    return declared if devices >= total else declared * devices // total
