"""What is true of a yard and a plan, found by counting: slow, simple, and nothing of the planner's own indexes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from airyard.core.policy import Policy
from airyard.core.scheduling.feasible import fits_pool, fits_size
from airyard.core.scheduling.plan import NodeView, Plan, Running, Snapshot, Start, Waiting
from planner_seeds import NOW_MS


def parked(want: Waiting, now_ms: int = NOW_MS) -> bool:
    """True when a run may not be considered yet."""
    return want.held or max(want.not_before_ms, want.begin_ms) > now_ms


def could_start(
    snapshot: Snapshot,
    made: Plan,
    want: Waiting,
    *,
    beside: Callable[[int], bool] = lambda rank: True,
    promises: bool = True,
    reservations: bool = True,
) -> bool:
    """True when the run could have started beside what the plan did for runs of the classes that ``beside`` names.

    With ``promises`` it keeps away from every node that is promised to one of them before it would be over: more than
    it has to.
    """
    wants = {one.run_id: one for one in snapshot.waiting}
    starts = [one for one in made.starts if beside(wants[one.run_id].rank)]
    kept = [one for one in made.kept if beside(wants[one.run_id].rank)]
    due = {
        name
        for hold in made.holds
        if promises and beside(wants[hold.run_id].rank) and hold.from_ms < NOW_MS + want.bound_ms
        for name in hold.nodes
    }
    if (want.project in snapshot.spent and want.model is not None) or over_limit(
        snapshot, [*starts, *kept], want
    ):
        return False
    blocks: dict[tuple[str, str], int] = {}
    for node in snapshot.nodes:
        if node.name in due or not _may_be_on(snapshot, node, want, reservations=reservations):
            continue
        if over_ceiling(snapshot, [*starts, *kept], want, node.pool):
            continue
        asked = sum(one.devices_per_node for one in kept if node.name in one.nodes)
        if free_on(snapshot, node, starts, asked) >= want.devices_per_node:
            block = node.pool, node.fabric if want.same_fabric else ""
            blocks[block] = blocks.get(block, 0) + 1
    return max(blocks.values(), default=0) >= want.nodes


def free_on(snapshot: Snapshot, node: NodeView, starts: list[Start], kept: int) -> int:
    """Return the devices of a node that a member could have now; what is kept takes those first that are being left."""
    seats = [(one, seat) for one in snapshot.running for seat in one.seats if seat.node == node.name]
    given = [seat for start in starts for seat in start.seats if seat.node == node.name]
    taken = {device for _, seat in seats for device in seat.devices}
    taken |= {device for seat in given for device in seat.devices}
    free = len(set(node.devices) - taken)
    if not snapshot.policy.pool(node.pool).share:
        return free if not (seats or given or kept) else 0
    leaving = sum(len(seat.devices) for one, seat in seats if one.stopping)
    return free - max(kept - leaving, 0)


def _may_be_on(snapshot: Snapshot, node: NodeView, want: Waiting, *, reservations: bool) -> bool:
    if not (node.alive and not node.cordoned and fits_pool(node, want) and fits_size(node, want)):
        return False
    to_ms = NOW_MS + want.bound_ms
    return not reservations or not any(
        one.bars(node.name, want.project, NOW_MS, to_ms) for one in snapshot.reservations
    )


def over_ceiling(snapshot: Snapshot, served: list[object], want: Waiting, pool: str) -> bool:
    """True when the run would take its project over the ceiling of a pool."""
    project = snapshot.policy.project(want.project)
    ceiling = project.share_of(pool).ceiling if project is not None else None
    if ceiling is None:
        return False
    held = sum(one.devices for one in snapshot.running if (one.project, one.pool) == (want.project, pool))
    for other, of_pool in _served(snapshot, served):
        if (other.project, of_pool) == (want.project, pool):
            held += other.devices
    return held + want.devices > ceiling


def over_limit(snapshot: Snapshot, served: list[object], want: Waiting) -> bool:
    """True when the run would take its user over what the project allows one."""
    project = snapshot.policy.project(want.project)
    if project is None:
        return False
    own = [one.devices for one in snapshot.running if (one.project, one.owner) == (want.project, want.owner)]
    for other, _ in _served(snapshot, served):
        if (other.project, other.owner) == (want.project, want.owner):
            own.append(other.devices)
    limits = project.per_user
    return (limits.running is not None and len(own) + 1 > limits.running) or (
        limits.devices is not None and sum(own) + want.devices > limits.devices
    )


def _served(snapshot: Snapshot, served: list[object]) -> list[tuple[Waiting, str]]:
    wants = {one.run_id: one for one in snapshot.waiting}
    pools = {node.name: node.pool for node in snapshot.nodes}
    found = []
    for one in served:
        node = one.seats[0].node if isinstance(one, Start) else one.nodes[0]  # type: ignore[attr-defined]  # it is a Hold then
        found.append((wants[one.run_id], pools[node]))  # type: ignore[attr-defined]  # both have it
    return found


def able_pools(snapshot: Snapshot, want: Waiting) -> list[str]:
    """Return the pools that could hold the run if they were empty and whole."""
    blocks: dict[tuple[str, str], int] = {}
    for node in snapshot.nodes:
        if fits_pool(node, want) and fits_size(node, want):
            block = node.pool, node.fabric if want.same_fabric else ""
            blocks[block] = blocks.get(block, 0) + 1
    return sorted({pool for (pool, _), count in blocks.items() if count >= want.nodes})


def idle(snapshot: Snapshot, want: Waiting) -> Snapshot:
    """Return the same yard where nothing is wrong, nobody limited, nothing reserved, and the run alone."""
    return replace(
        snapshot,
        nodes=tuple(
            replace(node, alive=True, cordoned=False, devices=tuple(range(node.total)))
            for node in snapshot.nodes
        ),
        running=(),
        waiting=(replace(want, held=False, not_before_ms=0, begin_ms=0),),
        policy=Policy(pools=snapshot.policy.pools),
        reservations=(),
        spent=frozenset(),
    )


def carried_out(snapshot: Snapshot, made: Plan, now_ms: int = NOW_MS) -> Snapshot:
    """Return the yard once the plan is carried out and everybody has left who is leaving: evicted runs wait again."""
    nodes = {node.name: node for node in snapshot.nodes}
    wants = {want.run_id: want for want in snapshot.waiting}
    left_for = {one.run_id: one.leaving_for for one in snapshot.running if one.stopping and one.evicted}
    left_for |= {eviction.run_id: eviction.for_run for eviction in made.evictions}
    started = {start.run_id for start in made.starts}
    waiting = [want for want in snapshot.waiting if want.run_id not in started]
    running = []
    for one in snapshot.running:
        if one.run_id in left_for:
            waiting.append(_again(one, nodes[one.seats[0].node], left_for[one.run_id], now_ms))
        elif not one.stopping:
            running.append(one)
    for start in made.starts:
        want = wants[start.run_id]
        running.append(
            Running(
                run_id=want.run_id,
                attempt=0,
                rank=want.rank,
                placed_ms=NOW_MS,
                seats=start.seats,
                stopping=False,
                project=want.project,
                owner=want.owner,
                pool=nodes[start.seats[0].node].pool,
                end_ms=NOW_MS + min(want.expected_ms, want.bound_ms),
                late_end_ms=NOW_MS + want.bound_ms,
                safe_ms=NOW_MS,
                acknowledges=want.acknowledges,
                served_ms=want.served_ms,
            )
        )
    return replace(snapshot, seq=2, waiting=tuple(waiting), running=tuple(running))


def _again(one: Running, node: NodeView, left_for: int | None, now_ms: int) -> Waiting:
    """Return the run of an attempt that was evicted, queued again with its place kept."""
    return Waiting(
        run_id=one.run_id,
        rank=one.rank,
        queued_ms=one.placed_ms,
        accelerator=node.accelerator,
        model=node.model,
        devices_per_node=len(one.seats[0].devices),
        nodes=len(one.seats),
        project=one.project,
        owner=one.owner,
        served_ms=one.served_ms + now_ms - one.placed_ms,
        acknowledges=one.acknowledges,
        evicted_ms=now_ms,
        left_for=left_for,
        placed_ms=one.placed_ms,
        expected_ms=max(one.end_ms - now_ms, 60_000),
        likely_ms=max(one.late_end_ms - now_ms, 60_000),
    )
