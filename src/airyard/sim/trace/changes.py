"""Changes of a yard in words, ``pool h100 +4 nodes``, and the yard and policy that they lead to.

Owns: that little language, what each change does, and the refusal of what cannot be. Must not know: replays, files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from airyard.core.errors import UserError
from airyard.core.policy import HOUR_MS, Policy, PoolOrder, PoolPolicy, ProjectPolicy, Share, Slicing
from airyard.core.policy_rules import inner_problems, listed, near
from airyard.core.scheduling.nodes import natural
from airyard.core.scheduling.plan import NodeView

FORMS = (
    "pool P +N nodes",
    "pool P -N nodes",
    "pool P order fifo|fair|predicted",
    "pool P slicing on|off",
    "pool P ageing 3d",
    "pool P reservations N",
    "project X guarantee N [in pool P]",
    "project X ceiling N|none [in pool P]",
    "project X weight W [in pool P]",
)
MOST_NODES = 100_000
_UNITS_MS = {"m": HOUR_MS // 60, "h": HOUR_MS, "d": 24 * HOUR_MS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """So many nodes more of a pool; fewer when ``count`` is negative."""

    text: str
    pool: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRule:
    """Another rule of a pool: ``apply`` makes the new one."""

    text: str
    pool: str
    apply: Callable[[PoolPolicy], PoolPolicy]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRule:
    """Another share of a project: in ``pool``, or, for None, in the only one that it can mean."""

    text: str
    project: str
    pool: str | None
    apply: Callable[[Share], Share]


Change = Nodes | PoolRule | ProjectRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Yard:
    """What changes are made to: nodes, the policy, and the projects that runs named, declared or not."""

    nodes: tuple[NodeView, ...]
    policy: Policy
    projects: frozenset[str] = frozenset()

    @property
    def pools(self) -> list[str]:
        """Names of pools that have nodes, in order."""
        return sorted({node.pool for node in self.nodes}, key=natural)


# Reading.


def parse_change(text: str) -> Change:
    """Read one change. Raises: UserError (``BAD_CHANGE``) that says what was not understood and what there is."""
    words = text.split()
    match [word.lower() for word in words]:
        case ["pool", _, count, "node" | "nodes"] if re.fullmatch(r"[+-]\d+", count):
            return Nodes(text=text, pool=words[1], count=_count(text, count))
        case ["pool", _, rule, value]:
            return PoolRule(text=text, pool=words[1], apply=_pool_rule(text, rule, value))
        case ["project", _, rule, value]:
            return ProjectRule(text=text, project=words[1], pool=None, apply=_share_rule(text, rule, value))
        case ["project", _, rule, value, "in", "pool", _]:
            return ProjectRule(
                text=text, project=words[1], pool=words[6], apply=_share_rule(text, rule, value)
            )
        case _:
            return _refuse(text, "is not a change that can be tried")


def _count(text: str, word: str) -> int:
    count = int(word) if len(word) < 12 else MOST_NODES + 1
    if not 0 < abs(count) <= MOST_NODES:
        _refuse(text, f"asks for {word} nodes; 1 to {MOST_NODES:,} can be added or taken away")
    return count


def _pool_rule(text: str, rule: str, value: str) -> Callable[[PoolPolicy], PoolPolicy]:
    if rule == "order":
        if value not in {order.value for order in PoolOrder}:
            _refuse(text, f"names order {value!r}; there are {', '.join(order.value for order in PoolOrder)}")
        return lambda pool: replace(pool, order=PoolOrder(value))
    if rule == "slicing":
        if value not in ("on", "off"):
            _refuse(text, f"sets slicing to {value!r}; it is on or off")
        return lambda pool: replace(pool, slicing=(pool.slicing or Slicing()) if value == "on" else None)
    if rule == "ageing":
        found = re.fullmatch(r"(\d{1,6})([mhd])", value)
        if found is None or not int(found[1]):
            _refuse(text, f"gives {value!r} as the ageing bound; write it as 12h or 3d")
        ageing_ms = int(found[1]) * _UNITS_MS[found[2]]
        return lambda pool: replace(pool, ageing_ms=ageing_ms)
    if rule == "reservations":
        count = _whole(text, rule, value)
        return lambda pool: replace(pool, reservations=count)
    return _refuse(text, f"knows no rule {rule!r} of a pool")


def _share_rule(text: str, rule: str, value: str) -> Callable[[Share], Share]:
    if rule == "guarantee":
        guarantee = _whole(text, rule, value)
        return lambda share: replace(share, guarantee=guarantee)
    if rule == "ceiling":
        ceiling = None if value == "none" else _whole(text, rule, value)
        return lambda share: replace(share, ceiling=ceiling)
    if rule == "weight":
        if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value) or not float(value):
            _refuse(text, f"gives {value!r} as a weight; it is a number over 0")
        weight = float(value)
        return lambda share: replace(share, weight=weight)
    return _refuse(text, f"knows no rule {rule!r} of a project")


def _whole(text: str, rule: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,9}", value):
        _refuse(text, f"gives {value!r} as {rule}; it is a whole number from 0")
    return int(value)


def _refuse(text: str, problem: str, fix: str | None = None) -> NoReturn:
    raise UserError(
        f"--change {text!r} {problem}.",
        code="BAD_CHANGE",
        fix=fix or f"Write one of: {'; '.join(FORMS)}.",
        details={"change": text, "forms": list(FORMS)},
    )


# Making them.


def changed(yard: Yard, changes: Sequence[Change]) -> Yard:
    """Return the yard after the changes, made in their order.

    Nodes that are added are like most of their pool; those taken away are the last by name.
    Raises: UserError (``BAD_CHANGE``) for what is not there, and for a policy that cannot be.
    """
    known = {problem.message for problem in inner_problems(yard.policy)}
    for change in changes:
        if isinstance(change, Nodes):
            yard = _with_nodes(yard, change)
        elif isinstance(change, PoolRule):
            yard = _with_pool_rule(yard, change)
        else:
            yard = _with_project_rule(yard, change)
        for problem in inner_problems(yard.policy):
            if not problem.warning and problem.message not in known:
                _refuse(change.text, f"cannot be: {problem.message}", problem.fix)
        if isinstance(change, ProjectRule):
            _check_guarantees(yard, change)
    return yard


def _pool_name(yard: Yard, text: str, name: str) -> str:
    found = next((pool for pool in yard.pools if pool.lower() == name.lower()), None)
    if found is None:
        _refuse(text, f"names pool {name!r}; {_there_are('pool', yard.pools, name)}", "Name one of them.")
    return found


def _there_are(what: str, names: Collection[str], asked: str) -> str:
    if not names:
        return f"there is no {what}"
    return f"there {'is' if len(names) == 1 else 'are'} {listed(names)}{near(asked, names)}".removesuffix("?")


def _with_nodes(yard: Yard, change: Nodes) -> Yard:
    pool = _pool_name(yard, change.text, change.pool)
    inside = sorted((node for node in yard.nodes if node.pool == pool), key=lambda node: natural(node.name))
    if change.count < 0:
        if -change.count >= len(inside):
            _refuse(
                change.text,
                f"leaves nothing of pool {pool}, which has {len(inside)} nodes",
                f"Take at most {len(inside) - 1} away." if len(inside) > 1 else "Take nodes of another pool.",
            )
        gone = {node.name for node in inside[change.count :]}
        return replace(yard, nodes=tuple(node for node in yard.nodes if node.name not in gone))
    usual = Counter((node.accelerator, node.total) for node in inside).most_common(1)[0][0]
    model = [node for node in inside if (node.accelerator, node.total) == usual][-1]
    taken = {node.name for node in yard.nodes}
    added: list[NodeView] = []
    number = 0
    while len(added) < change.count:
        number += 1
        name = f"{pool}-new-{number}"
        if name not in taken:
            added.append(
                replace(
                    model,
                    name=name,
                    machine=name,
                    devices=tuple(range(model.total)),
                    alive=True,
                    cordoned=False,
                )
            )
    return replace(yard, nodes=(*yard.nodes, *added))


def _with_pool_rule(yard: Yard, change: PoolRule) -> Yard:
    name = _pool_name(yard, change.text, change.pool)
    accelerator = next(node.accelerator for node in yard.nodes if node.pool == name)
    declared = {pool.name: pool for pool in yard.policy.pools}
    declared[name] = change.apply(declared.get(name) or PoolPolicy(name=name, accelerator=accelerator))
    return replace(yard, policy=replace(yard.policy, pools=tuple(declared.values())))


def _with_project_rule(yard: Yard, change: ProjectRule) -> Yard:
    declared = {project.name: project for project in yard.policy.projects}
    names = sorted(yard.projects | set(declared), key=natural)
    if change.project not in names:
        there = _there_are("project", names, change.project)
        _refuse(change.text, f"names project {change.project!r}; {there}", "Name one of them.")
    project = declared.get(change.project) or ProjectPolicy(name=change.project)
    pool = _pool_meant(yard, change, project)
    shares = {share.pool: share for share in project.shares}
    shares[pool] = change.apply(project.share_of(pool))
    declared[change.project] = replace(project, shares=tuple(shares.values()))
    return replace(yard, policy=replace(yard.policy, projects=tuple(declared.values())))


def _pool_meant(yard: Yard, change: ProjectRule, project: ProjectPolicy) -> str:
    if change.pool is not None:
        return _pool_name(yard, change.text, change.pool)
    candidates = [share.pool for share in project.shares if share.pool in yard.pools]
    if len(candidates) != 1:
        candidates = yard.pools
    if len(candidates) != 1:
        _refuse(
            change.text,
            f"does not say in which pool; {_there_are('pool', candidates, '')}",
            f"Add `in pool {candidates[0]}`." if candidates else "Give the yard nodes first.",
        )
    return candidates[0]


def _check_guarantees(yard: Yard, change: ProjectRule) -> None:
    for pool in yard.pools:
        devices = sum(len(node.devices) for node in yard.nodes if node.pool == pool)
        promised = sum(project.share_of(pool).guarantee for project in yard.policy.projects)
        if promised > devices:
            _refuse(
                change.text,
                f"makes the guarantees in pool {pool} {promised} devices; it has {devices}",
                "Lower a guarantee, or add nodes first.",
            )
