"""Who may submit what where: projects, members, rights, limits of users, budgets.

Owns: the refusals that the declared policy asks for at submit. Must not know: nodes, the queue's order, the wire.
"""

from __future__ import annotations

from datetime import UTC, datetime

from airyard.core.errors import Denied, Fix, Unavailable, UserError
from airyard.core.policy import DEFAULT_PROJECT, EVERYBODY, OverBudget, Policy
from airyard.core.policy_rules import listed, near
from airyard.core.quota import month_end_ms, paused, spent
from airyard.core.scheduling.snapshot import offers_of
from airyard.core.state import ClusterState
from airyard.core.wording import hours
from airyard.core.workload import Priority, Workload

WAITING_RETRY_MS = 60_000


def admit(state: ClusterState, owner: str, workload: Workload, now_ms: int) -> str:
    """Return the project that a new run is charged to: the workload's, else its owner's.

    Raises: what the checks below raise.
    """
    project = workload.project or state.policy.project_for(owner)
    check(state, owner, project, workload, now_ms)
    return project


def cautions(state: ClusterState, owner: str, workload: Workload, now_ms: int) -> list[str]:
    """Return why a run that is admitted will not start as things are declared: a spent budget, a ceiling below it.

    Neither is a refusal, because both may be raised while it waits.
    """
    name = workload.project or state.policy.project_for(owner)
    found, compute = state.policy.project(name), workload.compute
    if found is None:
        return []
    told = []
    if name in paused(state, now_ms) and not compute.is_cpu:
        told.append(
            f"project {name} has used up this month's GPU-hours: the run waits until the month ends or the budget "
            "is raised (`airyard quota`)"
        )
    asked = compute.local_world_size * compute.nodes
    ceilings = {
        view.pool: found.share_of(view.pool).ceiling
        for view, count in offers_of(state)
        if view.model == compute.model
        and (compute.model is not None or view.accelerator == compute.accelerator)
        and view.total >= compute.local_world_size
        and count >= compute.nodes
        and compute.pool in (None, view.pool)
    }
    if ceilings and all(ceiling is not None and ceiling < asked for ceiling in ceilings.values()):
        most = ", ".join(f"{ceiling} of pool {pool}" for pool, ceiling in sorted(ceilings.items()))
        told.append(
            f"the run asks {asked} devices at once, and project {name} may have at most {most}: it waits until it "
            "asks for less or the ceiling is raised (`airyard quota`)"
        )
    return told


def check(state: ClusterState, owner: str, project: str, workload: Workload, now_ms: int) -> None:
    """Refuse what the policy does not allow.

    Raises: UserError (``UNKNOWN_PROJECT``, ``BUDGET_SPENT``), Denied (``NOT_A_MEMBER``, ``CRITICAL_NOT_ALLOWED``),
    Unavailable (``TOO_MANY_WAITING``).
    """
    check_project(state.policy, owner, project)
    check_class(state.policy, owner, project, workload.compute.priority)
    _check_waiting(state, owner, project)
    if not workload.compute.is_cpu:
        _check_budget(state, project, now_ms)


def check_project(policy: Policy, owner: str, project: str) -> None:
    """Refuse a project that nobody declared, or whose members the user is not among."""
    if not policy.projects:
        return
    found = policy.project(project)
    if found is None and project != DEFAULT_PROJECT:
        names = [each.name for each in policy.projects]
        raise UserError(
            f"there is no project {project!r}{near(project, names)}; this yard has "
            f"{listed([*names, DEFAULT_PROJECT])}",
            code="UNKNOWN_PROJECT",
            details={"project": project, "projects": sorted(names)},
            fix=Fix(
                text="name one of them with `project`, or leave it out; `airyard projects` shows yours",
                command="airyard projects",
            ),
        )
    if found is not None and not found.admits(owner):
        yours = [each.name for each in policy.projects if each.admits(owner)]
        raise Denied(
            f"{owner} is no member of project {project}; it has {listed(found.members) or 'none'}",
            code="NOT_A_MEMBER",
            details={"project": project, "members": list(found.members), "yours": yours},
            fix=f"submit to {listed([*yours, DEFAULT_PROJECT])}, or ask an operator of this yard to add {owner} to "
            f"projects.{project}.members",
        )


def check_class(policy: Policy, owner: str, project: str, priority: Priority) -> None:
    """Refuse CRITICAL to a user who has no right to it, and say who gives it."""
    if priority is not Priority.CRITICAL or policy.may_be_critical(owner, project):
        return
    found = policy.project(project)
    holders = [name for name in found.critical if name != EVERYBODY] if found is not None else []
    have = f"it is for {listed(holders)}" if holders else "nobody has the right to it there"
    place = f"projects.{project}.critical" if found is not None else "`critical` of a declared project"
    raise Denied(
        f"{owner} may not use CRITICAL in project {project}; {have}",
        code="CRITICAL_NOT_ALLOWED",
        details={"project": project, "user": owner, "critical": holders},
        fix=f"submit it as NORMAL; an operator of this yard grants CRITICAL by adding {owner} to {place} "
        "(`airyard apply`)",
    )


def _check_waiting(state: ClusterState, owner: str, project: str) -> None:
    found = state.policy.project(project)
    limit = found.per_user.waiting if found is not None else None
    if limit is None:
        return
    waiting = state.queued.get((owner, project), 0)
    if waiting >= limit:
        raise Unavailable(
            f"{owner} has {waiting} runs waiting in project {project}, which allows each user {limit}",
            code="TOO_MANY_WAITING",
            details={"project": project, "waiting": waiting, "limit": limit},
            retry_after_ms=WAITING_RETRY_MS,
            fix="submit it again once one of them has started, or cancel one that is not needed",
        )


def _check_budget(state: ClusterState, project: str, now_ms: int) -> None:
    """Refuse a run of a project whose month is used up, unless its runs are to wait then (the planner's matter)."""
    found = state.policy.project(project)
    budget = found.budget if found is not None else None
    if budget is None or budget.over is not OverBudget.REFUSE:
        return
    used = spent(state, project, now_ms)
    if used < budget.gpu_hours:
        return
    end = f"{datetime.fromtimestamp(month_end_ms(now_ms) // 1000, UTC):%Y-%m-%d %H:%M} UTC"
    raise UserError(
        f"project {project} has used {hours(used)} of its {budget.gpu_hours:g} GPU-hours of this month, which ends "
        f"{end}",
        code="BUDGET_SPENT",
        details={
            "project": project,
            "used_gpu_hours": round(used, 3),
            "budget_gpu_hours": budget.gpu_hours,
            "month_ends_ms": month_end_ms(now_ms),
        },
        fix=f"submit it after {end}, to another project, or with accelerator_type CPU; an operator of this yard "
        f"raises projects.{project}.budget",
    )
