"""Takes from the state what the planner may see.

Owns: the projection of nodes, queue and live attempts. Must not know: how placements are chosen.
"""

from __future__ import annotations

from airyard.core.placement import Seat
from airyard.core.run import Attempt, Run, RunState
from airyard.core.scheduling.plan import NodeView, Running, Snapshot, Waiting
from airyard.core.state import ClusterState


def take_snapshot(state: ClusterState) -> Snapshot:
    """Project the state. Cost: proportional to nodes, devices and runs in memory."""
    return Snapshot(
        seq=state.seq,
        nodes=node_views(state),
        waiting=tuple(waiting_of(run) for run in state.runs.values() if run.state is RunState.QUEUED),
        running=tuple(_running(run, attempt) for run, attempt in state.live_attempts()),
    )


def node_views(state: ClusterState) -> tuple[NodeView, ...]:
    """Project the nodes with the devices that are neither booked nor held by a stranger."""
    booked = state.bookings()
    views = []
    for node in state.nodes.values():
        machine = state.machines.get(node.machine)
        taken = booked.get(node.name, {})
        views.append(
            NodeView(
                name=node.name,
                machine=node.machine,
                accelerator=node.accelerator,
                model=node.model,
                pool=node.pool,
                total=len(node.devices),
                free=tuple(d.index for d in node.devices if d.index not in taken and d.owner is None),
                cpus=node.cpus,
                memory_bytes=node.memory_bytes,
                alive=machine is not None and machine.alive,
                cordoned=node.cordoned,
                simulated=node.simulated,
            )
        )
    return tuple(views)


def waiting_of(run: Run) -> Waiting:
    """Project one queued run."""
    compute = run.workload.compute
    return Waiting(
        run_id=run.run_id,
        rank=compute.priority.rank,
        queued_ms=run.queued_ms,
        accelerator=compute.accelerator,
        model=compute.model,
        devices_per_node=compute.local_world_size,
        nodes=compute.nodes,
        pool=compute.pool,
        same_fabric=compute.same_fabric,
        cpus=compute.cpus,
        memory_bytes=compute.memory_bytes,
        avoid_nodes=run.avoid_nodes,
        not_before_ms=run.not_before_ms,
    )


def _running(run: Run, attempt: Attempt) -> Running:
    return Running(
        run_id=run.run_id,
        attempt=attempt.number,
        rank=run.workload.compute.priority.rank,
        placed_ms=attempt.placed_ms,
        seats=tuple(
            Seat(node=member.node, machine=member.machine, devices=member.devices)
            for member in attempt.members
            if not member.released
        ),
        stopping=attempt.stop is not None,
    )
