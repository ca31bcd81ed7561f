"""What projects hold, have used and may still use, against what was declared.

Owns: the questions that submit, planner snapshot and pages ask about quotas.
Must not know: the queue's order, the wire.
"""

from __future__ import annotations

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
    return spent_by_project(state, now_ms).get(project, 0.0)


def spent_by_project(state: ClusterState, now_ms: int) -> dict[str, float]:
    """Return the same for every project that has used any. Cost: one pass over the ledger."""
    month, half_life_ms = month_of(now_ms), state.policy.half_life_ms
    pools = {pool for _, pool in state.usage}
    free = {pool for pool in pools if not counts_for_budgets(state.policy, pool)}
    used_ms: dict[str, int] = {}
    for (project, pool), used in state.usage.items():
        settled = used.settled(now_ms, half_life_ms)
        if settled.month == month and pool not in free:
            used_ms[project] = used_ms.get(project, 0) + settled.month_used
    return {project: amount_ms / HOUR_MS for project, amount_ms in used_ms.items()}


def paused(state: ClusterState, now_ms: int) -> frozenset[str]:
    """Return the projects whose runs wait because the budget of this month is used up."""
    budgets = {
        project.name: project.budget.gpu_hours
        for project in state.policy.projects
        if project.budget is not None and project.budget.over is OverBudget.PAUSE
    }
    if not budgets:
        return frozenset()
    used = spent_by_project(state, now_ms)
    return frozenset(name for name, hours in budgets.items() if used.get(name, 0.0) >= hours)


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


def guaranteed_totals(policy: Policy) -> dict[str, int]:
    """Return the sum of the declared guarantees of each pool."""
    totals: dict[str, int] = {}
    for project in policy.projects:
        for share in project.shares:
            totals[share.pool] = totals.get(share.pool, 0) + share.guarantee
    return totals


def scaled_guarantee(declared: int, total: int, devices: int) -> int:
    """Return what a guarantee is worth where a pool of ``devices`` no longer covers ``total``; rounded down."""
    return declared if devices >= total else declared * devices // total
