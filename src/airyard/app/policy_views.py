"""The documents about what is declared and what is used of it: pools, projects, quotas, the policy's history.

Owns: PoolDoc, ProjectDoc, QuotaDoc, HistoryDoc (``docs/internals.md``, "Pools and projects").
Pure; must not know: HTTP, stores, clocks.
"""

from __future__ import annotations

from collections.abc import Sequence

from airyard.app.views import Document, rfc3339
from airyard.core import quota
from airyard.core.cluster import Node
from airyard.core.events import PolicyDeclared, Recorded
from airyard.core.policy import DEFAULT_PROJECT, EVERYBODY, HOUR_MS, Policy, ProjectPolicy
from airyard.core.policy_diff import changes
from airyard.core.policy_json import pool_to_json, project_to_json
from airyard.core.quota import Holding
from airyard.core.run import RunState
from airyard.core.state import ClusterState

_NOTHING = Holding()
_TOO_LITTLE_MS = 60_000.0
"""Decayed device time under a minute is as good as forgotten: it makes no row of its own."""


def pool_documents(state: ClusterState) -> list[Document]:
    """Return the PoolDocs, declared ones first in their order. A device is free only on a node that is up and open."""
    policy, booked = state.policy, state.bookings()
    nodes: dict[str, list[Node]] = {pool.name: [] for pool in policy.pools}
    for name in sorted({policy.pool_of(node) for node in state.nodes.values()} - nodes.keys()):
        nodes[name] = []
    for node in state.nodes.values():
        nodes[policy.pool_of(node)].append(node)
    held = quota.holdings(state)
    open_devices = quota.capacity(state)
    declared = {pool.name for pool in policy.pools}
    rows = _rows(state, None, 0)
    guaranteed = quota.guaranteed_totals(policy)
    out = []
    for name, members in nodes.items():
        free = [_free(state, node, booked.get(node.name, {})) for node in members]
        rules = pool_to_json(policy.pool(name))
        accelerator = rules.pop("accelerator")
        del rules["name"]
        out.append(
            {
                "name": name,
                "accelerator": accelerator,
                "declared": name in declared,
                "nodes": len(members),
                "devices": sum(len(node.devices) for node in members),
                "open_devices": open_devices.get(name, 0),
                "free_devices": sum(free),
                "whole_free_nodes": sum(
                    count == len(node.devices) and count > 0
                    for node, count in zip(members, free, strict=True)
                ),
                "guaranteed": guaranteed.get(name, 0),
                "guaranteed_now": sum(row["guarantee_now"] for row in rows if row["pool"] == name),
                "used": sum(holding.devices for (_, pool, _), holding in held.items() if pool == name),
                "borrowed": sum(row["borrowed"] for row in rows if row["pool"] == name),
                "rules": rules,
            }
        )
    return out


def _free(state: ClusterState, node: Node, booked: dict[int, int]) -> int:
    machine = state.machines.get(node.machine)
    if machine is None or not machine.alive or node.cordoned:
        return 0
    return sum(device.owner is None and device.index not in booked for device in node.devices)


def project_documents(state: ClusterState, caller: str, now_ms: int) -> list[Document]:
    """Return the ProjectDocs: the declared ones, then others that have live runs, and ``default``."""
    policy = state.policy
    counts: dict[str, list[int]] = {}
    for run in state.runs.values():
        if run.state is not RunState.ENDED:
            counts.setdefault(run.project, [0, 0])[run.state is RunState.ACTIVE] += 1
    users: dict[str, list[str]] = {}
    for user in policy.users:
        users.setdefault(user.default_project, []).append(user.name)
    spent = quota.spent_by_project(state, now_ms)
    names = {project.name for project in policy.projects}
    # Where nobody declared a project, everybody has every right in all.
    critical = () if names else (EVERYBODY,)
    others = sorted({*counts, DEFAULT_PROJECT} - names)
    return [
        {
            **project_to_json(project),
            "declared": project.name in names,
            # Of projects that nobody declared only ``default`` is open, once any is declared.
            "mine": project.admits(caller)
            if project.name in names or not names
            else project.name == DEFAULT_PROJECT,
            "default_for": users.get(project.name, []),
            "gpu_hours_this_month": round(spent.get(project.name, 0.0), 3),
            "month_ends_at": rfc3339(quota.month_end_ms(now_ms)),
            "queued": counts.get(project.name, [0, 0])[0],
            "active": counts.get(project.name, [0, 0])[1],
        }
        for project in (*policy.projects, *(ProjectPolicy(name=name, critical=critical) for name in others))
    ]


def quota_document(state: ClusterState, caller: str, now_ms: int, project: str | None = None) -> Document:
    """Return the QuotaDoc of one project or of all: a row for each project and pool that has a share or a use."""
    rows = [row for row in _rows(state, caller, now_ms) if project in (None, row["project"])]
    spent = quota.spent_by_project(state, now_ms)
    budgets = [
        {
            "project": each.name,
            "used_gpu_hours": round(spent.get(each.name, 0.0), 3),
            "gpu_hours": each.budget.gpu_hours,
            "over": each.budget.over.value,
        }
        for each in state.policy.projects
        if each.budget is not None and project in (None, each.name)
    ]
    mine = [run for run in state.runs.values() if run.owner == caller and project in (None, run.project)]
    return {
        "user": caller,
        "at": rfc3339(now_ms),
        "half_life_s": state.policy.half_life_ms // 1000,
        "rows": rows,
        "budgets": budgets,
        "month_ends_at": rfc3339(quota.month_end_ms(now_ms)),
        "mine": {
            "projects": [name for name in _projects_of(state.policy, caller) if project in (None, name)],
            "default_project": state.policy.project_for(caller),
            "devices": sum(row["mine"] for row in rows),
            "queued": sum(run.state is RunState.QUEUED for run in mine),
            "active": sum(run.state is RunState.ACTIVE for run in mine),
        },
    }


def _projects_of(policy: Policy, user: str) -> list[str]:
    """Return the projects that a user may submit to by name; ``default`` comes last."""
    names = [project.name for project in policy.projects if project.admits(user)]
    declared = any(project.name == DEFAULT_PROJECT for project in policy.projects)
    return names if declared else [*names, DEFAULT_PROJECT]


def _rows(state: ClusterState, caller: str | None, now_ms: int) -> list[Document]:
    held, own = _held(state, caller)
    decayed = quota.decayed(state, now_ms)
    pools = {state.policy.pool_of(node) for node in state.nodes.values()}
    pools |= {pool.name for pool in state.policy.pools}
    keys = {(project.name, share.pool) for project in state.policy.projects for share in project.shares}
    keys |= {key for key in held if held[key].devices}
    keys |= {key for key, amount in decayed.items() if amount >= _TOO_LITTLE_MS and key[1] in pools}
    totals = _totals(decayed)
    guaranteed = quota.guaranteed_totals(state.policy)
    declared = {project.name: project for project in state.policy.projects}
    open_devices = quota.capacity(state)
    return [
        _row(
            declared.get(key[0]) or ProjectPolicy(name=key[0]),
            key[1],
            held=held.get(key, _NOTHING),
            own=own.get(key, 0),
            decayed_ms=decayed.get(key, 0.0),
            total_ms=totals.get(key[1], 0.0),
            guaranteed=guaranteed.get(key[1], 0),
            devices=open_devices.get(key[1], 0),
        )
        for key in sorted(keys)
    ]


def _row(
    project: ProjectPolicy,
    pool: str,
    *,
    held: Holding,
    own: int,
    decayed_ms: float,
    total_ms: float,
    guaranteed: int,
    devices: int,
) -> Document:
    share = project.share_of(pool)
    guarantee = quota.scaled_guarantee(share.guarantee, guaranteed, devices)
    part = decayed_ms / total_ms if total_ms > 0 else 0.0
    return {
        "project": project.name,
        "pool": pool,
        "guarantee": share.guarantee,
        "guarantee_now": guarantee,
        "ceiling": share.ceiling,
        "weight": share.weight,
        "used": held.devices,
        "best_effort": held.best_effort,
        "borrowed": held.borrowed(guarantee),
        "mine": own,
        "decayed_device_hours": round(decayed_ms / HOUR_MS, 3),
        "decayed_share": round(part, 4),
        "decayed_share_per_weight": round(part / share.weight, 4),
    }


def _held(
    state: ClusterState, caller: str | None
) -> tuple[dict[tuple[str, str], Holding], dict[tuple[str, str], int]]:
    """Return what each (project, pool) holds, and what of it is the caller's."""
    held: dict[tuple[str, str], Holding] = {}
    own: dict[tuple[str, str], int] = {}
    for (project, pool, user), holding in quota.holdings(state).items():
        had = held.get((project, pool), _NOTHING)
        held[project, pool] = Holding(
            devices=had.devices + holding.devices, best_effort=had.best_effort + holding.best_effort
        )
        if user == caller:
            own[project, pool] = own.get((project, pool), 0) + holding.devices
    return held, own


def _totals(decayed: dict[tuple[str, str], float]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for (_, pool), amount in decayed.items():
        totals[pool] = totals.get(pool, 0.0) + amount
    return totals


def declaration_document(recorded: Recorded) -> Document:
    """Return who declared a policy, when and whence."""
    event = recorded.event
    assert isinstance(event, PolicyDeclared)
    return {
        "seq": recorded.seq,
        "at": rfc3339(recorded.at_ms),
        "by": event.by,
        "source": event.source,
        "digest": event.digest or None,
    }


def history_documents(newest_first: Sequence[Recorded], limit: int) -> list[Document]:
    """Return the HistoryDocs, newest first, each with what it changed against the one before.

    The oldest that the journal still holds is compared with nothing declared.
    """
    declared = [each.event.policy for each in newest_first if isinstance(each.event, PolicyDeclared)]
    policies = [*declared, Policy()]
    return [
        {
            **declaration_document(recorded),
            "changes": [change.to_json() for change in changes(policies[index + 1], policies[index])],
        }
        for index, recorded in enumerate(newest_first[:limit])
    ]
