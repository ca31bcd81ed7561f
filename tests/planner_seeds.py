"""Makes yards, queues and policies for the planner's properties, each from one number.

Made from a number rather than drawn piece by piece: a hundred times faster, and small enough to read without shrinking.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from airyard.core.placement import Seat
from airyard.core.policy import (
    HOUR_MS,
    Policy,
    PoolOrder,
    PoolPolicy,
    ProjectPolicy,
    Reservation,
    Share,
    Slicing,
    UserLimits,
)
from airyard.core.scheduling.plan import NodeView, Running, Snapshot, Used, Waiting

NOW_MS = 10_000_000_000
MINUTE_MS = 60_000
DURATIONS_MS = (10 * MINUTE_MS, HOUR_MS, 2 * HOUR_MS, 10 * HOUR_MS)
OWNERS = ("ada", "bob")


@dataclass
class Draw:
    """One yard in the making. ``crowded``: few equal nodes, mostly taken, so that runs contend for them."""

    chance: random.Random
    crowded: bool
    pools: list[PoolPolicy] = field(default_factory=list)
    projects: list[str] = field(default_factory=list)
    nodes: list[NodeView] = field(default_factory=list)

    def maybe(self, probability: float) -> bool:
        return self.chance.random() < probability


def drawing(chance: random.Random) -> Draw:
    """Begin a yard with its pools."""
    draw = Draw(chance, crowded=chance.random() < 0.6)
    _make_pools(draw)
    return draw


def snapshot_of(seed: int) -> Snapshot:
    """Make a yard with live attempts that stand soundly, a policy, reservations and a queue."""
    chance = random.Random(seed)
    draw = drawing(chance)
    _make_nodes(draw)
    policy = Policy(pools=tuple(draw.pools), projects=projects_of(draw))
    draw.projects = [project.name for project in policy.projects] + ["default"]
    running = _running(draw)
    return Snapshot(
        seq=1,
        nodes=tuple(draw.nodes),
        waiting=tuple(waiting_of(draw, 100 + number) for number in range(chance.randint(1, 7))),
        running=running,
        policy=policy,
        reservations=reservations_of(draw),
        usage=tuple(
            Used(project=name, pool=pool.name, decayed=chance.choice((0.0, 1e6, 1e8, 1e11)))
            for name in draw.projects
            for pool in draw.pools
            if draw.maybe(0.6)
        ),
        spent=frozenset(name for name in draw.projects if draw.maybe(0.04)),
    )


def _make_pools(draw: Draw) -> None:
    total = draw.chance.choice((2, 4))
    for number in range(draw.chance.choice((1, 1, 2) if draw.crowded else (1, 2, 3))):
        draw.pools.append(
            pool_of(draw, f"p{number}", total if draw.crowded else draw.chance.choice((1, 2, 4)))
        )


def pool_of(draw: Draw, name: str, total: int) -> PoolPolicy:
    return PoolPolicy(
        name=name,
        accelerator=f"GPU_{total}xH100" if draw.crowded or draw.maybe(0.7) else "CPU",
        order=draw.chance.choice((PoolOrder.PREDICTED, PoolOrder.PREDICTED, PoolOrder.FAIR, PoolOrder.FIFO)),
        share=draw.maybe(0.8),
        slicing=Slicing(first_slice_ms=HOUR_MS, apart_ms=HOUR_MS) if draw.maybe(0.25) else None,
        ageing_ms=draw.chance.choice((7 * 24 * HOUR_MS, HOUR_MS)),
        reservations=draw.chance.choice((8, 8, 8, 1, 0)),
    )


def _make_nodes(draw: Draw) -> None:
    chance = draw.chance
    for index in range(chance.randint(2, 6) if draw.crowded else chance.randint(0, 7)):
        pool = chance.choice(draw.pools)
        draw.nodes.append(node_of(draw, f"n{index}", pool))


def node_of(draw: Draw, name: str, pool: PoolPolicy) -> NodeView:
    chance = draw.chance
    cpu = pool.accelerator == "CPU"
    total = 1 if cpu else int(pool.accelerator.split("_")[1].split("x")[0])
    return NodeView(
        name=name,
        machine=f"m-{name}",
        accelerator=pool.accelerator,
        model=None if cpu else "H100",
        pool=pool.name,
        total=total,
        devices=tuple(index for index in range(total) if not draw.maybe(0.03)),
        cpus=chance.choice((32.0, 32.0, 4.0)),
        memory_bytes=1 << 30,
        alive=not draw.maybe(0.06),
        cordoned=draw.maybe(0.06),
        simulated=False,
        fabric=chance.choice(("f0", "f1", "f0", "")),
        rack=chance.choice(("r0", "r1")),
    )


def projects_of(draw: Draw) -> tuple[ProjectPolicy, ...]:
    chance, made = draw.chance, []
    capacity = {
        pool.name: sum(node.total for node in draw.nodes if node.pool == pool.name) for pool in draw.pools
    }
    for name in ("nlp", "vision", "robots")[: chance.choice((0, 2, 2, 3))]:
        shares = []
        for pool in draw.pools:
            if draw.maybe(0.7):
                guarantee = chance.choice(
                    (0, capacity[pool.name] // 2, capacity[pool.name] // 2, capacity[pool.name])
                )
                ceiling = chance.choice((None, None, guarantee + chance.randint(0, 4)))
                weight = chance.choice((1.0, 3.0))
                shares.append(Share(pool=pool.name, guarantee=guarantee, ceiling=ceiling, weight=weight))
        made.append(
            ProjectPolicy(
                name=name,
                shares=tuple(shares),
                per_user=UserLimits(
                    running=chance.choice((None, None, None, 1, 2)),
                    devices=chance.choice((None, None, None, 4)),
                ),
                slicing=chance.choice((None, None, None, True, False)),
            )
        )
    return tuple(made)


def _running(draw: Draw) -> tuple[Running, ...]:
    made: list[Running] = []
    taken: set[tuple[str, int]] = set()

    def free(node: str, device: int) -> bool:
        return (node, device) not in taken

    for run_id in range(1, draw.chance.randint(1, 8)):
        one = running_on(draw, run_id, free)
        if one is not None:
            made.append(one)
            taken |= {(seat.node, device) for seat in one.seats for device in seat.devices}
            whole = {pool.name for pool in draw.pools if not pool.share}
            taken |= {(seat.node, device) for seat in one.seats for device in range(16) if one.pool in whole}
    return tuple(made)


def running_on(draw: Draw, run_id: int, free: Callable[[str, int], bool]) -> Running | None:
    """Make a live attempt on devices that are free, if there are any."""
    chance = draw.chance
    pool = chance.choice(draw.pools)
    left = {node.name: [device for device in node.devices if free(node.name, device)] for node in draw.nodes}
    of_pool = [node for node in draw.nodes if node.pool == pool.name and left[node.name]]
    if not of_pool:
        return None
    chosen = chance.sample(of_pool, min(len(of_pool), chance.choice((1, 1, 2, 3))))
    most = min(len(left[node.name]) for node in chosen)
    count = most if draw.crowded and draw.maybe(0.6) else chance.randint(1, most)
    seats = [
        Seat(node=node.name, machine=node.machine, devices=tuple(left[node.name][:count])) for node in chosen
    ]
    return running_of(draw, run_id, pool.name, tuple(seats))


def running_of(draw: Draw, run_id: int, pool: str, seats: tuple[Seat, ...]) -> Running:
    chance = draw.chance
    placed_ms = NOW_MS - chance.choice((10_000, 30 * MINUTE_MS, 3 * HOUR_MS, 30 * HOUR_MS))
    stopping = draw.maybe(0.2)
    evicted = stopping and draw.maybe(0.6)
    acknowledges = draw.maybe(0.5)
    end_ms = NOW_MS + chance.choice((-MINUTE_MS, *DURATIONS_MS)) if not stopping else NOW_MS + MINUTE_MS
    return Running(
        run_id=run_id,
        attempt=chance.randint(0, 2),
        rank=chance.choice((0, 1, 1, 1, 2, 2)),
        placed_ms=placed_ms,
        seats=seats,
        stopping=stopping,
        project=chance.choice(draw.projects),
        owner=chance.choice(OWNERS),
        pool=pool,
        end_ms=end_ms,
        late_end_ms=end_ms + chance.choice((0, HOUR_MS)),
        safe_ms=min(placed_ms + HOUR_MS, NOW_MS) if acknowledges else placed_ms,
        acknowledges=acknowledges,
        served_ms=chance.choice((0, 0, 2 * HOUR_MS)),
        evicted_ms=NOW_MS - 30_000
        if evicted
        else chance.choice((None, None, NOW_MS - 20 * MINUTE_MS, NOW_MS - 20 * HOUR_MS)),
        max_loss_ms=chance.choice((None, None, MINUTE_MS)),
        evicted=evicted,
        leaving_for=chance.choice((100, 101, 102, 999)) if evicted else None,
    )


def waiting_of(draw: Draw, run_id: int) -> Waiting:
    """Make a waiting run."""
    chance = draw.chance
    cpu = not draw.crowded and draw.maybe(0.3)
    most = max((node.total for node in draw.nodes), default=1)
    count = 1 if cpu else min(chance.choice((1, 2, 2, 4)), most if draw.maybe(0.95) else 8)
    expected_ms = chance.choice(DURATIONS_MS)
    return Waiting(
        run_id=run_id,
        rank=chance.choice((0, 1, 1, 1, 2)),
        queued_ms=NOW_MS - chance.choice((0, 10, 5 * MINUTE_MS, 3 * HOUR_MS, 100 * HOUR_MS)),
        accelerator="CPU" if cpu else f"GPU_{count}xH100",
        model=None if cpu else "H100",
        devices_per_node=count,
        nodes=chance.choice((1, 1, 1, 2, 2, 3)),
        project=chance.choice(draw.projects),
        owner=chance.choice(OWNERS),
        pool=chance.choice(
            (*(pool.name for pool in draw.pools), *[None] * 6, "P1" if draw.maybe(0.1) else None)
        ),
        same_fabric=draw.maybe(0.25),
        cpus=chance.choice((None, None, None, 8.0)),
        avoid_nodes=chance.choice(((), (), (), ("n0",))),
        not_before_ms=chance.choice((0, 0, 0, 0, 0, NOW_MS - 5_000, NOW_MS + 5_000)),
        begin_ms=chance.choice((0, 0, 0, 0, 0, NOW_MS - 1, NOW_MS + HOUR_MS)),
        held=draw.maybe(0.04),
        expected_ms=expected_ms,
        likely_ms=expected_ms * chance.choice((1, 1, 2)),
        limit_ms=chance.choice((None, None, 2 * expected_ms, HOUR_MS)),
        served_ms=chance.choice((0, 0, 0, 2 * HOUR_MS)),
        acknowledges=draw.maybe(0.3),
    )


def reservations_of(draw: Draw) -> tuple[Reservation, ...]:
    """Make reservations of some nodes: on, soon, or far away."""
    chance, made = draw.chance, []
    for number in range(chance.choice((0, 0, 0, 1, 2)) if draw.nodes else 0):
        from_ms = NOW_MS + chance.choice((-HOUR_MS, 30 * MINUTE_MS, 5 * HOUR_MS, 500 * HOUR_MS))
        maintenance = draw.maybe(0.5)
        made.append(
            Reservation(
                reservation_id=number + 1,
                nodes=tuple(n.name for n in chance.sample(draw.nodes, chance.randint(1, len(draw.nodes)))),
                from_ms=from_ms,
                to_ms=from_ms + chance.choice((90 * MINUTE_MS, 5 * HOUR_MS)),
                by="operator",
                maintenance=maintenance,
                project=None if maintenance else chance.choice(draw.projects),
            )
        )
    return tuple(made)


def plain_node(name: str, accelerator: str, *, fabric: str = "", rack: str = "") -> NodeView:
    """Return a node on which nothing is wrong."""
    total = int(accelerator.split("_")[1].split("x")[0])
    return NodeView(
        name=name,
        machine=name,
        accelerator=accelerator,
        model=accelerator.split("x", 1)[1],
        pool=accelerator,
        total=total,
        devices=tuple(range(total)),
        cpus=32.0,
        memory_bytes=1 << 38,
        alive=True,
        cordoned=False,
        simulated=False,
        fabric=fabric,
        rack=rack,
    )
