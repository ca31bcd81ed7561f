"""Takes from the state what the planner may see.

Owns: the projection of nodes, queue and live attempts. Must not know: how placements are chosen, how durations are
predicted (a ``Forecast`` is given).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from airyard.core.cluster import Cordon, Node
from airyard.core.health.states import IN_DOUBT
from airyard.core.placement import Seat
from airyard.core.policy import Policy, Reservation
from airyard.core.run import Attempt, Run, RunState, StopReason
from airyard.core.scheduling.plan import NodeView, Running, Snapshot, Used, Waiting
from airyard.core.state import ClusterState
from airyard.core.usage import Usage

UNKNOWN_MS = 3_600_000
"""How long a run is taken to last of which nothing is known: no earlier run, no limit."""

DEFAULT_GRACE_MS = 120_000

LEAVING_MS = 120_000
"""How long an attempt that is stopping is taken to need at most."""


class Forecast(Protocol):
    """How long runs last."""

    def remaining(self, run: Run, elapsed_ms: int) -> tuple[int, int]:
        """Return how much longer a run lasts (p50, p90 in ms) that has had ``elapsed_ms`` of service."""
        ...


class LimitForecast:
    """What is known without a history: the time limit, else an hour."""

    def remaining(self, run: Run, elapsed_ms: int) -> tuple[int, int]:
        """Return the rest of the limit."""
        limit_s = run.workload.attempt_timeout_s
        total_ms = limit_s * 1000 if limit_s is not None else UNKNOWN_MS
        rest_ms = max(total_ms - elapsed_ms, elapsed_ms // 2, 1000)
        return rest_ms, rest_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What changed since the planner looked last. None leaves a part as it was; ``fresh`` begins anew.

    ``runs`` are changed runs that are queued or active, ``gone`` those that are neither any more.
    """

    seq: int
    fresh: bool = False
    runs: tuple[Run, ...] = ()
    gone: tuple[int, ...] = ()
    ended: tuple[Run, ...] = ()
    """Runs that ended, for the forecast."""
    nodes: tuple[NodeView, ...] | None = None
    policy: Policy | None = None
    reservations: tuple[Reservation, ...] | None = None
    usage: tuple[tuple[tuple[str, str], Usage], ...] = ()
    half_life_ms: int = 1
    spent: frozenset[str] = frozenset()


def take_snapshot(state: ClusterState, now_ms: int = 0, forecast: Forecast | None = None) -> Snapshot:
    """Project the whole state. Cost: proportional to nodes, devices and runs in memory."""
    forecast = forecast or LimitForecast()
    return Snapshot(
        seq=state.seq,
        nodes=node_views(state),
        waiting=tuple(
            waiting_of(run, forecast) for run in state.runs.values() if run.state is RunState.QUEUED
        ),
        running=tuple(
            running_of(run, attempt, forecast) for run, attempt in state.live_attempts() if not attempt.gone
        ),
        policy=state.policy,
        reservations=tuple(state.reservations.values()),
        usage=used_of(state.usage.items(), now_ms, state.policy.half_life_ms),
    )


def used_of(
    usage: Iterable[tuple[tuple[str, str], Usage]], now_ms: int, half_life_ms: int
) -> tuple[Used, ...]:
    """Return the decayed usage of each project and pool as of now."""
    return tuple(
        Used(project=project, pool=pool, decayed=used.decayed_at(max(now_ms, used.at_ms), half_life_ms))
        for (project, pool), used in usage
    )


def node_views(state: ClusterState) -> tuple[NodeView, ...]:
    """Project all nodes."""
    doubted = nodes_in_doubt(state)
    alive = {name for name, machine in state.machines.items() if machine.alive}
    return tuple(
        node_view(
            state.policy,
            node,
            node.machine in alive,
            state.cordons.get(node.name),
            in_doubt=node.name in doubted,
        )
        for node in state.nodes.values()
    )


def offers_of(state: ClusterState) -> list[tuple[NodeView, int]]:
    """Project one node of each kind and fabric that the yard has, with their number.

    Cost: kinds; nodes after they changed.
    """
    if state.offers is None:
        found: dict[tuple[object, ...], tuple[Node, int]] = {}
        for node in state.nodes.values():
            pool = state.policy.pool_of(node)
            fabric = (node.labels or {}).get("fabric", "")
            size = len(node.devices), node.cpus, node.memory_bytes
            key = pool, fabric, node.accelerator, node.model, size, node.run_as
            first, count = found.get(key, (node, 0))
            found[key] = first, count + 1
        state.offers = tuple(found.values())
    return [(node_view(state.policy, node, True), count) for node, count in state.offers]


def nodes_in_doubt(state: ClusterState) -> frozenset[str]:
    """Return the nodes that gangs keep away from where they can. Cost: nodes that were ever ill."""
    return frozenset(name for name, health in state.health.items() if health.state in IN_DOUBT)


def node_view(
    policy: Policy, node: Node, alive: bool, cordon: Cordon | None = None, *, in_doubt: bool = False
) -> NodeView:
    """Project a node with the devices that no stranger holds."""
    labels = node.labels or {}
    return NodeView(
        name=node.name,
        machine=node.machine,
        accelerator=node.accelerator,
        model=node.model,
        pool=policy.pool_of(node),
        total=len(node.devices),
        devices=tuple(d.index for d in node.devices if d.owner is None),
        cpus=node.cpus,
        memory_bytes=node.memory_bytes,
        alive=alive,
        cordoned=node.cordoned,
        cordon=cordon,
        simulated=node.simulated,
        fabric=labels.get("fabric", ""),
        rack=labels.get("rack", ""),
        run_as=node.run_as,
        in_doubt=in_doubt,
    )


def waiting_of(run: Run, forecast: Forecast | None = None) -> Waiting:
    """Project one queued run."""
    compute = run.workload.compute
    served_ms = served(run)
    expected_ms, likely_ms = (forecast or LimitForecast()).remaining(run, served_ms)
    if evicted(run) is not None:
        # It keeps its place: having run for long must not put it behind a younger run that is just like it.
        expected_ms = min(expected_ms, (forecast or LimitForecast()).remaining(run, 0)[0])
    limit_s, grace_s = run.workload.attempt_timeout_s, run.workload.preemption.grace_s
    return Waiting(
        run_id=run.run_id,
        rank=compute.priority.rank,
        queued_ms=run.queued_ms,
        accelerator=compute.accelerator,
        model=compute.model,
        devices_per_node=compute.local_world_size,
        nodes=compute.nodes,
        project=run.project,
        owner=run.owner,
        pool=compute.pool,
        same_fabric=compute.same_fabric,
        cpus=compute.cpus,
        memory_bytes=compute.memory_bytes,
        unix_user=run.unix_user,
        avoid_nodes=run.avoid_nodes,
        not_before_ms=run.not_before_ms,
        begin_ms=run.begin_ms,
        held=run.held,
        expected_ms=expected_ms,
        likely_ms=likely_ms,
        limit_ms=limit_s * 1000 if limit_s is not None else None,
        grace_ms=DEFAULT_GRACE_MS if grace_s is None else grace_s * 1000,
        served_ms=served_ms,
        acknowledges=run.checkpoint is not None,
        evicted_ms=evicted(run),
        left_for=_for_run(run.attempt),
        left_by=run.attempt.stop.rule if run.attempt is not None and run.attempt.stop is not None else "",
        placed_ms=run.attempt.placed_ms if run.attempt is not None else None,
        since_ms=max(
            run.queued_ms,
            (run.attempt.ended_ms or 0) if run.attempt is not None else 0,
            run.eligible_ms,
            run.begin_ms,
            run.not_before_ms,
        ),
    )


def _for_run(attempt: Attempt | None) -> int | None:
    return attempt.stop.for_run if attempt is not None and attempt.stop is not None else None


def running_of(run: Run, attempt: Attempt, forecast: Forecast) -> Running:
    """Project a live attempt with the seats that it still holds."""
    compute, since_ms = run.workload.compute, attempt.running_ms or attempt.placed_ms
    before_ms = served(run, but=attempt)
    expected_ms, likely_ms = forecast.remaining(run, before_ms)
    limit_s = run.workload.attempt_timeout_s
    limit_end_ms = since_ms + limit_s * 1000 if limit_s is not None else None
    checkpoint, stop = attempt.checkpoint, attempt.stop
    end_ms, late_end_ms = since_ms + expected_ms, since_ms + likely_ms
    if stop is not None:
        end_ms = late_end_ms = stop.at_ms + min(stop.grace_s * 1000, LEAVING_MS)
    elif limit_end_ms is not None:
        end_ms, late_end_ms = min(end_ms, limit_end_ms), min(late_end_ms, limit_end_ms)
    max_loss_s = run.workload.preemption.max_loss_s
    return Running(
        run_id=run.run_id,
        attempt=attempt.number,
        rank=compute.priority.rank,
        placed_ms=attempt.placed_ms,
        seats=tuple(
            Seat(node=member.node, machine=member.machine, devices=member.devices)
            for member in attempt.members
            if not member.released
        ),
        stopping=stop is not None,
        project=run.project,
        owner=run.owner,
        pool=attempt.pool or compute.accelerator,
        end_ms=end_ms,
        late_end_ms=late_end_ms,
        limit_end_ms=limit_end_ms,
        safe_ms=checkpoint.at_ms if checkpoint is not None else since_ms,
        acknowledges=run.checkpoint is not None,
        served_ms=before_ms,
        evicted_ms=evicted(run),
        max_loss_ms=max_loss_s * 1000 if max_loss_s is not None else None,
        evicted=stop is not None and stop.reason is StopReason.PREEMPTED,
        leaving_for=_for_run(attempt),
    )


def overdue(running: Running, run: Run, forecast: Forecast, now_ms: int) -> Running:
    """Return an attempt that outlived its expected end with a new one: it has lasted so long, and goes on."""
    since_ms = running.placed_ms
    elapsed_ms = max(now_ms - since_ms, 0) + running.served_ms
    expected_ms, likely_ms = forecast.remaining(run, elapsed_ms)
    end_ms = now_ms + max(expected_ms, elapsed_ms // 10, 60_000)
    late_end_ms = max(end_ms, now_ms + likely_ms)
    if running.limit_end_ms is not None:
        end_ms, late_end_ms = min(end_ms, running.limit_end_ms), min(late_end_ms, running.limit_end_ms)
    return replace(running, end_ms=end_ms, late_end_ms=late_end_ms)


def served(run: Run, *, but: Attempt | None = None) -> int:
    """Return how long earlier attempts ran, in ms: what counts of a run that was evicted or lost."""
    return sum(
        attempt.ended_ms - attempt.running_ms
        for attempt in run.attempts
        if attempt is not but and attempt.ended_ms is not None and attempt.running_ms is not None
    )


def evicted(run: Run) -> int | None:
    """Return when the run was asked to leave last to make room for others."""
    times = [
        attempt.stop.at_ms
        for attempt in run.attempts
        if attempt.stop is not None and attempt.stop.reason is StopReason.PREEMPTED
    ]
    return max(times, default=None)
