"""A policy as the JSON document that the API takes and gives, and back.

Owns: that form. Must not know: whether a policy makes sense, YAML. Durations are whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from airyard.core.health.limit_names import Limit
from airyard.core.policy import (
    DAY_MS,
    EVERYBODY,
    Budget,
    NodeCommand,
    OverBudget,
    Policy,
    PoolOrder,
    PoolPolicy,
    Preflight,
    ProjectPolicy,
    Share,
    Slicing,
    UserLimits,
    UserPolicy,
)

_WEEK_S = 7 * DAY_MS // 1000


def policy_to_json(policy: Policy) -> dict[str, Any]:
    """Return the document with every field, defaults included."""
    return {
        "pools": [pool_to_json(pool) for pool in policy.pools],
        "projects": [project_to_json(project) for project in policy.projects],
        "users": [{"name": user.name, "project": user.default_project} for user in policy.users],
        "half_life_s": policy.half_life_ms // 1000,
    }


def pool_to_json(pool: PoolPolicy) -> dict[str, Any]:
    """Return one pool."""
    slicing = pool.slicing
    return {
        "name": pool.name,
        "accelerator": pool.accelerator,
        "labels": dict(pool.labels),
        "nodes": list(pool.nodes),
        "order": pool.order.value,
        "share": pool.share,
        "slicing": {"first_slice_s": slicing.first_slice_ms // 1000, "apart_s": slicing.apart_ms // 1000}
        if slicing
        else None,
        "ageing_s": pool.ageing_ms // 1000,
        "reservations": pool.reservations,
        "prolog": _command_to_json(pool.prolog),
        "epilog": _command_to_json(pool.epilog),
        "preflight": pool.preflight.value,
        "thresholds": limits_to_json(pool.thresholds),
        "storage": list(pool.storage),
    }


def told_checks(pool: PoolPolicy) -> dict[str, Any]:
    """Return what checks of a node are told by its pool: limits, folders; nothing of what it has none of."""
    told: dict[str, Any] = {}
    if pool.thresholds:
        told["limits"] = {"pool": pool.name, "tables": limits_to_json(pool.thresholds)}
    if pool.storage:
        told["storage"] = list(pool.storage)
    return told


def limits_to_json(limits: Iterable[Limit]) -> dict[str, dict[str, float]]:
    """Return limits of checks as tables, the form of a file of limits."""
    tables: dict[str, dict[str, float]] = {}
    for table, name, value in limits:
        tables.setdefault(table, {})[name] = value
    return tables


def limits_from_json(tables: Mapping[str, Mapping[str, float]]) -> tuple[Limit, ...]:
    """Rebuild from ``limits_to_json``, sorted."""
    return tuple(
        sorted(
            (table, name, float(value)) for table, values in tables.items() for name, value in values.items()
        )
    )


def _command_to_json(command: NodeCommand | None) -> dict[str, Any] | None:
    if command is None:
        return None
    return {"command": command.command, "timeout_s": command.timeout_ms // 1000}


def project_to_json(project: ProjectPolicy) -> dict[str, Any]:
    """Return one project."""
    budget, limits = project.budget, project.per_user
    return {
        "name": project.name,
        "pools": [share_to_json(share) for share in project.shares],
        "budget": {"gpu_hours": budget.gpu_hours, "over": budget.over.value} if budget else None,
        "per_user": {"waiting": limits.waiting, "running": limits.running, "devices": limits.devices},
        "members": list(project.members),
        "critical": list(project.critical),
        "slicing": project.slicing,
    }


def share_to_json(share: Share) -> dict[str, Any]:
    """Return one project's part of one pool."""
    return {
        "pool": share.pool,
        "guarantee": share.guarantee,
        "ceiling": share.ceiling,
        "weight": share.weight,
    }


def policy_from_json(data: Mapping[str, Any]) -> Policy:
    """Rebuild from ``policy_to_json``; what is left out keeps its default. Raises: KeyError, ValueError, TypeError."""
    return Policy(
        pools=tuple(_pool(pool) for pool in data.get("pools", ())),
        projects=tuple(_project(project) for project in data.get("projects", ())),
        users=tuple(
            UserPolicy(name=user["name"], default_project=user["project"]) for user in data.get("users", ())
        ),
        half_life_ms=data.get("half_life_s", _WEEK_S) * 1000,
    )


def _pool(data: Mapping[str, Any]) -> PoolPolicy:
    slicing = data.get("slicing")
    return PoolPolicy(
        name=data["name"],
        accelerator=data["accelerator"],
        labels=tuple(sorted(data.get("labels", {}).items())),
        nodes=tuple(data.get("nodes", ())),
        order=PoolOrder(data.get("order", PoolOrder.PREDICTED.value)),
        share=data.get("share", True),
        slicing=_slicing(slicing) if slicing is not None else None,
        ageing_ms=data.get("ageing_s", PoolPolicy(name="", accelerator="").ageing_ms // 1000) * 1000,
        reservations=data.get("reservations", PoolPolicy(name="", accelerator="").reservations),
        prolog=_command(data.get("prolog")),
        epilog=_command(data.get("epilog")),
        preflight=Preflight(data.get("preflight", Preflight.AUTO.value)),
        thresholds=limits_from_json(data.get("thresholds", {})),
        storage=tuple(data.get("storage", ())),
    )


def _command(data: Mapping[str, Any] | None) -> NodeCommand | None:
    if data is None:
        return None
    plain = NodeCommand(command=data["command"])
    return replace(plain, timeout_ms=data.get("timeout_s", plain.timeout_ms // 1000) * 1000)


def _slicing(data: Mapping[str, Any]) -> Slicing:
    plain = Slicing()
    return Slicing(
        first_slice_ms=data.get("first_slice_s", plain.first_slice_ms // 1000) * 1000,
        apart_ms=data.get("apart_s", plain.apart_ms // 1000) * 1000,
    )


def _project(data: Mapping[str, Any]) -> ProjectPolicy:
    budget = data.get("budget")
    return ProjectPolicy(
        name=data["name"],
        shares=tuple(
            Share(
                pool=share["pool"],
                guarantee=share.get("guarantee", 0),
                ceiling=share.get("ceiling"),
                weight=float(share.get("weight", 1.0)),
            )
            for share in data.get("pools", ())
        ),
        budget=None
        if budget is None
        else Budget(gpu_hours=float(budget["gpu_hours"]), over=OverBudget(budget.get("over", "refuse"))),
        per_user=UserLimits(**data.get("per_user", {})),
        members=tuple(data.get("members", (EVERYBODY,))),
        critical=tuple(data.get("critical", ())),
        slicing=data.get("slicing"),
    )
