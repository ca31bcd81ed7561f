"""Whether a policy fits the yard as it is: its nodes, and the runs that stand or wait in pools and projects.

Owns: the rules between a policy, nodes and live runs. Must not know: the rest of the state, YAML, who asked.
Nodes may go later: then guarantees are scaled (``quota.scaled_guarantees``), nothing is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from airyard.core.cluster import Node
from airyard.core.policy import DEFAULT_PROJECT, Policy, PoolPolicy
from airyard.core.policy_rules import Problem, Rule, counted, inner_problems, listed, near


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A queued or active run: where it stands (``pool`` of its attempt and the nodes it holds) or asks to stand."""

    run_id: int
    project: str
    pool: str | None
    nodes: tuple[str, ...] = ()

    @property
    def waits(self) -> bool:
        """True when it holds nothing yet."""
        return not self.nodes


def problems(
    policy: Policy, *, before: Policy, nodes: Collection[Node], runs: Collection[LiveRun]
) -> tuple[Problem, ...]:
    """Return everything wrong or doubtful about replacing ``before`` by ``policy`` now; none stops at the first.

    Cost: nodes x pools + runs.
    """
    found = list(inner_problems(policy))
    fit = _Fit(policy, before, nodes)
    for pool in policy.pools:
        found += _nodes_of(pool, fit)
    for project in policy.projects:
        for share in project.shares:
            if share.pool not in fit.known:
                found.append(_unknown_pool(project.name, share.pool, fit))
    found += _guarantees(fit)
    found += _pools_in_use(fit, runs)
    found += _projects_in_use(fit, runs)
    return tuple(found)


class _Fit:
    """The nodes of each pool, now and under the new policy."""

    def __init__(self, policy: Policy, before: Policy, nodes: Collection[Node]) -> None:
        self.policy, self.before = policy, before
        self.nodes = {node.name: node for node in nodes}
        self.pool_of = {node.name: policy.pool_of(node) for node in nodes}
        self.members: dict[str, list[Node]] = {}
        for node in nodes:
            self.members.setdefault(self.pool_of[node.name], []).append(node)
        self.known = {pool.name for pool in policy.pools} | set(self.members)

    def devices(self, pool: str) -> int:
        return sum(len(node.devices) for node in self.members.get(pool, ()))


def _nodes_of(pool: PoolPolicy, fit: _Fit) -> Iterator[Problem]:
    """Warn of labels and names that match nothing, and of nodes that an earlier pool has already."""
    here = ("pools", pool.name)
    for name in pool.nodes:
        node = fit.nodes.get(name)
        if node is None:
            message = f"pool {pool.name} names node {name!r}, which is not there{near(name, fit.nodes)}"
        elif not pool.takes(node):
            why = (
                f"is {node.accelerator}, not {pool.accelerator}"
                if node.accelerator != pool.accelerator
                else f"does not carry {_labels(pool)}"
            )
            message = f"pool {pool.name} names node {name}, which {why}"
        else:
            continue
        yield _warning(
            Rule.UNKNOWN_NODE,
            (*here, "nodes"),
            message,
            "`airyard nodes` shows names, types and labels; a node that comes later is taken in then",
        )
    claimed = [node for node in fit.nodes.values() if pool.takes(node)]
    lost = [node for node in claimed if fit.pool_of[node.name] != pool.name]
    if len(lost) == len(claimed):
        yield _no_nodes(pool, lost, fit)
    elif lost and (pool.labels or pool.nodes):
        # A pool without labels and names after others is the usual way to say "all the rest".
        owners = listed({fit.pool_of[node.name] for node in lost})
        yield _warning(
            Rule.NODES_CLAIMED_TWICE,
            here,
            f"{counted(len(lost), 'node')} of pool {pool.name} ({listed(node.name for node in lost)}) "
            f"{'is' if len(lost) == 1 else 'are'} claimed by an earlier pool too, which has "
            f"{'it' if len(lost) == 1 else 'them'}: {owners}",
            f"put {pool.name} before it, or tell the two apart by labels or names",
        )


def _no_nodes(pool: PoolPolicy, lost: Sequence[Node], fit: _Fit) -> Problem:
    if lost:
        owners = listed({fit.pool_of[node.name] for node in lost})
        message = f"pool {pool.name} has no nodes: {owners} before it has all that it would take"
        fix = f"put {pool.name} before it, or tell the two apart by labels or names"
    else:
        asked = f" with {_labels(pool)}" if pool.labels else ""
        types = listed({node.accelerator for node in fit.nodes.values()}) or "no nodes yet"
        message = f"pool {pool.name} has no nodes: none is {pool.accelerator}{asked}; this yard has {types}"
        fix = "it begins to work when such a node comes; `airyard nodes` shows types and labels"
    return _warning(Rule.POOL_WITHOUT_NODES, ("pools", pool.name), message, fix)


def _unknown_pool(project: str, pool: str, fit: _Fit) -> Problem:
    return Problem(
        rule=Rule.UNKNOWN_POOL,
        path=("projects", project, "pools", pool),
        message=f"project {project} has a share of pool {pool!r}, which is neither declared nor has nodes"
        f"{near(pool, fit.known)}",
        fix=f"declare the pool, or give one of {listed(fit.known)}" if fit.known else "declare the pool",
    )


def _guarantees(fit: _Fit) -> Iterator[Problem]:
    """Refuse guarantees that a pool could not keep if all were asked at once; one without nodes promises nothing."""
    for pool in sorted(fit.members):
        given = {
            project.name: share.guarantee
            for project in fit.policy.projects
            for share in project.shares
            if share.pool == pool and share.guarantee > 0
        }
        total, devices = sum(given.values()), fit.devices(pool)
        if total > devices:
            parts = ", ".join(f"{name} {count}" for name, count in sorted(given.items()))
            yield Problem(
                rule=Rule.GUARANTEES_EXCEED_POOL,
                path=("projects", max(given), "pools", pool, "guarantee"),
                message=f"pool {pool} has {counted(devices, 'device')} on {counted(len(fit.members[pool]), 'node')}; "
                f"its guarantees come to {total} ({parts})",
                fix=f"lower them by {total - devices} in all, or add nodes to the pool",
            )


def _pools_in_use(fit: _Fit, runs: Collection[LiveRun]) -> Iterator[Problem]:
    """Refuse that a pool goes while runs stand in it or ask for it."""
    offered = {pool.name.lower() for pool in fit.before.pools}
    offered |= {fit.before.pool_of(node).lower() for node in fit.nodes.values()}
    known = {name.lower() for name in fit.known}
    declared = {pool.name for pool in fit.before.pools}
    standing: dict[str, list[int]] = {}
    asking: dict[str, list[int]] = {}
    leaving: dict[str, list[int]] = {}
    for run in runs:
        pool = run.pool
        if pool is None:
            continue
        if run.waits:
            if pool.lower() in offered and pool.lower() not in known:
                asking.setdefault(pool, []).append(run.run_id)
        elif pool in declared and pool.lower() not in known:
            standing.setdefault(pool, []).append(run.run_id)
        elif pool in declared and any(fit.pool_of.get(name, pool) != pool for name in run.nodes):
            leaving.setdefault(pool, []).append(run.run_id)
    for pool in sorted({*standing, *asking}):
        parts = [_runs(standing[pool], "stand in it", "stands in it")] if pool in standing else []
        parts += [_runs(asking[pool], "wait for it", "waits for it")] if pool in asking else []
        yield Problem(
            rule=Rule.POOL_IN_USE,
            path=("pools", pool),
            message=f"pool {pool} would be gone, but {' and '.join(parts)}",
            fix=f"wait for these runs or `airyard cancel` them, or keep pool {pool} until they have ended",
        )
    for pool, ids in sorted(leaving.items()):
        yield _warning(
            Rule.NODES_LEAVE_POOL,
            ("pools", pool),
            f"{_runs(ids, 'stand', 'stands')} on nodes that leave pool {pool}",
            "nothing stops: they run on, and count where their nodes are now",
        )


def _projects_in_use(fit: _Fit, runs: Collection[LiveRun]) -> Iterator[Problem]:
    """Refuse that a project goes while runs are charged to it; warn of runs whose project nobody declared."""
    before = {project.name for project in fit.before.projects}
    after = {project.name for project in fit.policy.projects}
    live: dict[str, list[int]] = {}
    for run in runs:
        live.setdefault(run.project, []).append(run.run_id)
    for name, ids in sorted(live.items()):
        if name in after:
            continue
        if name in before:
            yield Problem(
                rule=Rule.PROJECT_IN_USE,
                path=("projects", name),
                message=f"project {name} would be gone, but {_runs(ids, 'are charged to it', 'is charged to it')}",
                fix="wait for these runs or `airyard cancel` them; queued ones can be moved: "
                "`airyard update ID --project NAME`",
            )
        elif after and name != DEFAULT_PROJECT:
            yield _warning(
                Rule.PROJECT_NOT_DECLARED,
                ("projects",),
                f"{_runs(ids, 'are', 'is')} of project {name}, which is not declared: it has no guarantee, and "
                "takes no further runs",
                f"declare {name} as well; queued ones can be moved: `airyard update ID --project NAME`",
            )


def _warning(rule: Rule, path: tuple[str, ...], message: str, fix: str) -> Problem:
    return Problem(rule=rule, path=path, message=message, fix=fix, warning=True)


def _labels(pool: PoolPolicy) -> str:
    return ", ".join(f"{key}={value}" for key, value in pool.labels)


def _runs(ids: Sequence[int], many: str, one: str) -> str:
    """``run 4 waits for it``, ``runs 4, 5 and 3 more wait for it``."""
    if len(ids) == 1:
        return f"run {ids[0]} {one}"
    shown = ", ".join(map(str, sorted(ids)[:8])) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
    return f"runs {shown} {many}"
