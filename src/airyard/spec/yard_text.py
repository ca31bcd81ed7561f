"""A policy written as yard.yaml: what `airyard apply -f` would read as the same policy.

Owns: that text. Must not know: where it goes.
"""

from __future__ import annotations

from typing import Any

import yaml

from airyard.core.policy import EVERYBODY, NodeCommand, Policy, PoolPolicy, ProjectPolicy, Share, Slicing
from airyard.core.policy_diff import duration_text
from airyard.core.policy_json import limits_to_json

_EMPTY = "# Nothing is declared: one pool for each accelerator type, any project, every class open to everybody.\n{}\n"


def yard_text(policy: Policy) -> str:
    """Return the file, without what is default."""
    plain = Policy()
    out: dict[str, Any] = {}
    if policy.pools:
        out["pools"] = {pool.name: _pool(pool) for pool in policy.pools}
    if policy.projects:
        out["projects"] = {project.name: _project(project) for project in policy.projects}
    if policy.users:
        out["users"] = {user.name: {"project": user.default_project} for user in policy.users}
    if policy.half_life_ms != plain.half_life_ms:
        out["half_life"] = _duration(policy.half_life_ms)
    return yaml.safe_dump(out, sort_keys=False, allow_unicode=True, width=110) if out else _EMPTY


def _pool(pool: PoolPolicy) -> dict[str, Any]:
    plain = PoolPolicy(name=pool.name, accelerator=pool.accelerator)
    out: dict[str, Any] = {"accelerator": pool.accelerator}
    if pool.labels:
        out["labels"] = dict(pool.labels)
    if pool.nodes:
        out["nodes"] = list(pool.nodes)
    if pool.order is not plain.order:
        out["order"] = pool.order.value
    if not pool.share:
        out["share"] = False
    if pool.slicing is not None:
        out["slicing"] = True if pool.slicing == Slicing() else _slicing(pool.slicing)
    if pool.ageing_ms != plain.ageing_ms:
        out["ageing"] = _duration(pool.ageing_ms)
    if pool.reservations != plain.reservations:
        out["reservations"] = pool.reservations
    for name, command in (("prolog", pool.prolog), ("epilog", pool.epilog)):
        if command is not None:
            out[name] = _node_command(command)
    if pool.preflight is not plain.preflight:
        out["preflight"] = pool.preflight.value
    if pool.thresholds:
        out["thresholds"] = {
            table: {name: _number(value) for name, value in values.items()}
            for table, values in limits_to_json(pool.thresholds).items()
        }
    if pool.storage:
        out["storage"] = list(pool.storage)
    return out


def _node_command(command: NodeCommand) -> dict[str, str]:
    out = {"command": command.command}
    if command.timeout_ms != NodeCommand(command="").timeout_ms:
        out["timeout"] = _duration(command.timeout_ms)
    return out


def _slicing(slicing: Slicing) -> dict[str, str]:
    return {"first_slice": _duration(slicing.first_slice_ms), "apart": _duration(slicing.apart_ms)}


def _project(project: ProjectPolicy) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if project.shares:
        out["pools"] = {share.pool: _share(share) for share in project.shares}
    if project.budget is not None:
        budget = project.budget
        out["budget"] = {"gpu_hours": _number(budget.gpu_hours), "over": budget.over.value}
    limits = project.per_user
    named = {"waiting": limits.waiting, "running": limits.running, "devices": limits.devices}
    if given := {name: value for name, value in named.items() if value is not None}:
        out["per_user"] = given
    if project.members != (EVERYBODY,):
        out["members"] = list(project.members)
    if project.critical:
        out["critical"] = list(project.critical)
    if project.slicing is not None:
        out["slicing"] = project.slicing
    return out


def _share(share: Share) -> dict[str, Any]:
    out: dict[str, Any] = {"guarantee": share.guarantee} if share.guarantee else {}
    if share.ceiling is not None:
        out["ceiling"] = share.ceiling
    if share.weight != 1:
        out["weight"] = _number(share.weight)
    return out


def _duration(value_ms: int) -> str:
    return duration_text(value_ms // 1000)


def _number(value: float) -> int | float:
    return int(value) if value.is_integer() else value
