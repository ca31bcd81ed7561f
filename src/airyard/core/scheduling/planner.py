"""The planner: queue and nodes in, placements, evictions and reasons out. Pure, total, deterministic.

Owns: the order of the queue and the cycle over it. Must not know: clocks (``now_ms`` is given), the journal, who asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from airyard.core.placement import Seat
from airyard.core.scheduling.feasible import candidates, impossible, place, shape
from airyard.core.scheduling.plan import (
    Eviction,
    NodeView,
    Plan,
    Reason,
    Refusal,
    Running,
    Snapshot,
    Start,
    Waiting,
)
from airyard.core.scheduling.preempt import choose_victims


def order_key(want: Waiting) -> tuple[int, int, int]:
    """Class first, then submit order, then id. A preempted run keeps its place by keeping its time."""
    return want.rank, want.queued_ms, want.run_id


@dataclass(slots=True, kw_only=True)
class _Board:
    """What is left to give away while one plan is made."""

    free: dict[str, tuple[int, ...]]
    running: list[Running]

    def take(self, seats: Sequence[Seat]) -> None:
        for seat in seats:
            self.free[seat.node] = tuple(d for d in self.free[seat.node] if d not in seat.devices)

    def hold(self, seats: Sequence[Seat]) -> None:
        """Promise devices that others are leaving: nobody later in the queue may count on them."""
        self.take(seats)
        promised = {(seat.node, device) for seat in seats for device in seat.devices}
        self.running = [_without(other, promised) for other in self.running]

    def with_released(self, running: Sequence[Running]) -> dict[str, tuple[int, ...]]:
        out = dict(self.free)
        for other in running:
            for seat in other.seats:
                if seat.node in out:
                    out[seat.node] = tuple(sorted({*out[seat.node], *seat.devices}))
        return out


def _without(running: Running, promised: set[tuple[str, int]]) -> Running:
    """Return the attempt as if it did not hold the promised devices."""
    if not _touches(running, promised):
        return running
    seats = tuple(
        replace(seat, devices=tuple(d for d in seat.devices if (seat.node, d) not in promised))
        for seat in running.seats
    )
    return replace(running, seats=seats)


def _touches(running: Running, devices: set[tuple[str, int]]) -> bool:
    return any((seat.node, device) in devices for seat in running.seats for device in seat.devices)


def plan(snapshot: Snapshot, now_ms: int) -> Plan:
    """Give every waiting run its seats or its reason. Cost: about nodes x waiting shapes."""
    board = _Board(free={node.name: node.free for node in snapshot.nodes}, running=list(snapshot.running))
    starts: list[Start] = []
    evictions: list[Eviction] = []
    refusals: list[Refusal] = []
    for position, want in enumerate(sorted(snapshot.waiting, key=order_key), start=1):
        start, evicted, refusal = _serve(want, snapshot.nodes, board, now_ms)
        if start is not None:
            starts.append(start)
        evictions.extend(evicted)
        if refusal is not None:
            refusals.append(replace(refusal, position=position))
    return Plan(seq=snapshot.seq, starts=tuple(starts), evictions=tuple(evictions), refusals=tuple(refusals))


def _serve(
    want: Waiting, nodes: Sequence[NodeView], board: _Board, now_ms: int
) -> tuple[Start | None, list[Eviction], Refusal | None]:
    if want.not_before_ms > now_ms:
        return None, [], _backoff(want, now_ms)
    never = impossible(nodes, want)
    if never is not None:
        return None, [], never
    fitting = candidates(nodes, want)
    seats = place(fitting, board.free, want)
    if seats is not None:
        board.take(seats)
        return Start(run_id=want.run_id, seats=seats), [], None
    return _make_room(want, fitting, board)


def _make_room(
    want: Waiting, fitting: Sequence[NodeView], board: _Board
) -> tuple[Start | None, list[Eviction], Refusal | None]:
    leaving = [r for r in board.running if r.stopping and r.rank > want.rank]
    soon = place(fitting, board.with_released(leaving), want) if leaving else None
    if soon is not None:
        # Held, so that nobody of a lower class slips into what was freed for this run.
        promised = {(seat.node, device) for seat in soon for device in seat.devices}
        refusal = _preempting(want, [r for r in leaving if _touches(r, promised)])
        board.hold(soon)
        return None, [], refusal
    victims = choose_victims(want, fitting, board.free, board.running, leaving)
    if not victims:
        return None, [], _no_room(want, fitting, board)
    board.hold(place(fitting, board.with_released([*leaving, *victims]), want) or ())
    gone = {victim.run_id for victim in victims}
    board.running = [replace(r, stopping=True) if r.run_id in gone else r for r in board.running]
    evictions = [Eviction(run_id=v.run_id, attempt=v.attempt, for_run=want.run_id) for v in victims]
    return None, evictions, _preempting(want, victims)


def _backoff(want: Waiting, now_ms: int) -> Refusal:
    seconds = (want.not_before_ms - now_ms + 999) // 1000
    return Refusal(
        run_id=want.run_id,
        reason=Reason.BACKOFF,
        message=f"the next attempt waits {seconds} s after the last one failed",
        evidence={"not_before_ms": want.not_before_ms},
    )


def _preempting(want: Waiting, leaving: Sequence[Running]) -> Refusal:
    runs = sorted(r.run_id for r in leaving)
    names = ", ".join(str(run) for run in runs)
    return Refusal(
        run_id=want.run_id,
        reason=Reason.PREEMPTING,
        message=f"run{'s' if len(runs) != 1 else ''} {names} of a lower class {'are' if len(runs) != 1 else 'is'} "
        "leaving to make room",
        evidence={"runs": runs},
    )


def _holding(runs: Sequence[int]) -> str:
    """Name at most five holders: ``run 9 holds``, ``runs 8, 9 hold``."""
    if len(runs) == 1:
        return f"run {runs[0]} holds"
    more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
    return f"runs {', '.join(map(str, runs[:5]))}{more} hold"


def _no_room(want: Waiting, fitting: Sequence[NodeView], board: _Board) -> Refusal:
    up = [node for node in fitting if node.alive and not node.cordoned]
    if len(up) < want.nodes:
        out = sorted(node.name for node in fitting if node not in up)
        return Refusal(
            run_id=want.run_id,
            reason=Reason.NODES_UNHEALTHY,
            message=f"it asks {shape(want)}; {len(up)} of {len(fitting)} are up and open (out: {', '.join(out)})",
            evidence={"nodes_up": len(up), "nodes_out": out},
        )
    ready = sum(len(board.free[node.name]) >= want.devices_per_node for node in up)
    names = {node.name for node in up}
    holders = sorted({r.run_id for r in board.running for seat in r.seats if seat.node in names})
    held = f"; {_holding(holders)} devices there" if holders else ""
    return Refusal(
        run_id=want.run_id,
        reason=Reason.NO_FREE_NODES,
        message=f"it asks {shape(want)}; {ready} of {len(up)} have {want.devices_per_node} free now{held}",
        evidence={
            "nodes_asked": want.nodes,
            "nodes_free": ready,
            "nodes_up": len(up),
            "holders": holders[:50],
        },
    )
