"""The policies that a trace is replayed under, all of them through the production planner.

Owns: how strict FIFO, FIFO with fill and the shortest-first oracle are put to the planner, and what of a recorded yard
becomes a policy. Must not know: events, results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from airyard.core.errors import UserError
from airyard.core.policy import Policy, PoolOrder, PoolPolicy, ProjectPolicy, Share, Slicing, UserLimits
from airyard.core.scheduling.plan import NodeView
from airyard.sim.trace.durations import Durations, LearntDurations, TrueDurations
from airyard.sim.trace.engine import Rules
from airyard.sim.trace.records import TraceProject

NEVER_MS = 10**13
"""An ageing bound that no run reaches: 300 years."""

ONLY_DURATION = 1_000_000
"""Durations stretched so far in the queue's order that two months of waiting count as 5 seconds."""


class Contender(StrEnum):
    """The policies that can be compared."""

    FIFO = "fifo"
    FILL = "fill"
    ORACLE = "oracle"
    AIRYARD = "airyard"


TITLES = {
    Contender.FIFO: "strict FIFO",
    Contender.FILL: "FIFO with fill",
    Contender.ORACLE: "shortest first, true durations",
    Contender.AIRYARD: "Airyard",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What Airyard's pools are given beside the declared policy; None leaves a value as it is."""

    order: PoolOrder | None = None
    ageing_ms: int | None = None
    slicing: bool | None = None
    reservations: int | None = None
    known_durations: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One policy of a comparison; ``durations`` makes a fresh forecast."""

    contender: Contender
    title: str
    policy: Policy
    rules: Rules
    durations: Callable[[], Durations]


def entries(
    which: Iterable[Contender], nodes: Sequence[NodeView], policy: Policy, tuning: Tuning, rules: Rules
) -> list[Entry]:
    """Return the policies asked for. ``policy`` and ``tuning`` are Airyard's; the others know no projects and classes.

    Strict FIFO offers the planner one run a pool at a time. FIFO with fill is order ``fifo`` without promises.
    Shortest first is order ``predicted`` without promises and ageing, told the true durations.
    """
    accelerators = {node.pool: node.accelerator for node in nodes}
    bare = [
        PoolPolicy(
            name=pool,
            accelerator=accelerators[pool],
            order=PoolOrder.FIFO,
            share=policy.pool(pool).share,
            ageing_ms=NEVER_MS,
            reservations=0,
        )
        for pool in sorted(accelerators)
    ]
    fifo = Policy(pools=tuple(bare))
    shortest = Policy(pools=tuple(replace(pool, order=PoolOrder.PREDICTED) for pool in bare))
    plain = replace(rules, one_class=True)
    found: dict[Contender, tuple[Policy, Rules, Callable[[], Durations]]] = {
        Contender.FIFO: (fifo, replace(plain, head_only=True), TrueDurations),
        Contender.FILL: (fifo, plain, TrueDurations),
        Contender.ORACLE: (shortest, replace(plain, stretch=ONLY_DURATION), TrueDurations),
        Contender.AIRYARD: (
            tuned(policy, accelerators, tuning),
            rules,
            TrueDurations if tuning.known_durations else LearntDurations,
        ),
    }
    return [
        Entry(
            contender=one,
            title=TITLES[one],
            policy=found[one][0],
            rules=found[one][1],
            durations=found[one][2],
        )
        for one in dict.fromkeys(which)
    ]


def tuned(policy: Policy, accelerators: dict[str, str], tuning: Tuning) -> Policy:
    """Return a policy that declares every pool of the yard, with what the tuning sets. Projects stay.

    Raises: UserError for a pool in the policy that the yard has not.
    """
    if unknown := [pool.name for pool in policy.pools if pool.name not in accelerators]:
        raise UserError(
            f"The policy declares pool {', '.join(unknown)}; the replayed yard has {', '.join(sorted(accelerators))}.",
            code="UNKNOWN_POOL",
            fix="Name the pools in the policy as the replayed yard does.",
            details={"unknown": unknown, "pools": sorted(accelerators)},
        )
    pools = []
    for name in sorted(accelerators):
        pool = replace(policy.pool(name), accelerator=accelerators[name], labels=(), nodes=())
        slicing = pool.slicing
        if tuning.slicing is not None:
            slicing = (pool.slicing or Slicing()) if tuning.slicing else None
        pools.append(
            replace(
                pool,
                order=tuning.order or pool.order,
                ageing_ms=pool.ageing_ms if tuning.ageing_ms is None else tuning.ageing_ms,
                reservations=pool.reservations if tuning.reservations is None else tuning.reservations,
                slicing=slicing,
            )
        )
    return replace(policy, pools=tuple(pools))


def recorded_policy(projects: Sequence[TraceProject], pools: Sequence[str]) -> Policy:
    """Return a recorded yard's shares as a policy; a share over all pools together holds in each of them.

    Guarantees of a pool are not looked at against its size: the planner scales down what the pool does not cover.
    """
    by_name: dict[str, list[TraceProject]] = {}
    for project in projects:
        by_name.setdefault(project.name, []).append(project)
    declared = []
    for name, parts in by_name.items():
        shares = {
            pool: Share(pool=pool, guarantee=part.guarantee or 0, ceiling=part.ceiling, weight=part.weight)
            for part in sorted(parts, key=lambda one: one.pool is not None)
            for pool in (pools if part.pool is None else (part.pool,))
            if pool in pools
        }
        ceilings = [part.user_ceiling for part in parts if part.user_ceiling is not None]
        declared.append(
            ProjectPolicy(
                name=name,
                shares=tuple(shares[pool] for pool in sorted(shares)),
                per_user=UserLimits(devices=min(ceilings) if ceilings else None),
            )
        )
    return Policy(projects=tuple(declared))
