"""Says why a waiting run is not placed: the reason, in words, with its figures.

Owns: the text of refusals. Must not know: how they are found.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from airyard.core.cluster import Cordon
from airyard.core.scheduling.feasible import shape_in_words
from airyard.core.scheduling.nodes import Kind, NodeIndex, Slot
from airyard.core.scheduling.plan import Hold, NodeView, Reason, Refusal, Running, Waiting

HOLDERS_FROM = 64
"""Of how many nodes the holders are named."""


def parked(want: Waiting, now_ms: int) -> Refusal | None:
    """Return why a run is not even considered; None when it is."""
    if want.held:
        return Refusal(
            run_id=want.run_id,
            reason=Reason.PAUSED,
            message=f"it is held; `airyard release {want.run_id}` lets it go",
        )
    if want.begin_ms > now_ms and want.begin_ms >= want.not_before_ms:
        seconds = (want.begin_ms - now_ms + 999) // 1000
        return Refusal(
            run_id=want.run_id,
            reason=Reason.NOT_YET,
            message=f"it is to begin in {in_words(seconds)}",
            evidence={"begin_ms": want.begin_ms},
        )
    if want.not_before_ms > now_ms:
        seconds = (want.not_before_ms - now_ms + 999) // 1000
        return Refusal(
            run_id=want.run_id,
            reason=Reason.BACKOFF,
            message=f"the next attempt waits {seconds} s after the last one failed",
            evidence={"not_before_ms": want.not_before_ms},
        )
    return None


def in_words(seconds: int) -> str:
    """Write a duration as people say it: two units at most."""
    for unit, size, below, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= size:
            rest = seconds % size // part
            return f"{seconds // size} {unit} {rest} {below}" if rest else f"{seconds // size} {unit}"
    return f"{seconds} s"


def ceiling(want: Waiting, pool: str, held: int, limit: int) -> Refusal:
    """Its project has all it may have of the pool."""
    return Refusal(
        run_id=want.run_id,
        reason=Reason.PROJECT_CEILING,
        message=f"project {want.project} holds {held} of at most {limit} devices in pool {pool}; "
        f"it asks {want.devices}",
        evidence={
            "project": want.project,
            "pool": pool,
            "held": held,
            "ceiling": limit,
            "asked": want.devices,
        },
    )


def user_limit(want: Waiting, what: str, used: int, limit: int) -> Refusal:
    """Its user has all that one user may have in the project."""
    asked = want.devices if what == "devices" else 1
    return Refusal(
        run_id=want.run_id,
        reason=Reason.PROJECT_CEILING,
        message=f"{want.owner} has {used} of at most {limit} {what} at a time in project {want.project}; "
        f"it asks {asked}",
        evidence={"project": want.project, "user": want.owner, "what": what, "used": used, "limit": limit},
    )


def budget(want: Waiting) -> Refusal:
    """Its project has spent this month's GPU-hours."""
    return Refusal(
        run_id=want.run_id,
        reason=Reason.BUDGET,
        message=f"project {want.project} has used up this month's GPU-hours; it goes on next month, or when the "
        "budget is raised",
        evidence={"project": want.project},
    )


def preempting(want: Waiting, leaving: Sequence[Running]) -> Refusal:
    """Others are leaving to make room."""
    runs = sorted(one.run_id for one in leaving)
    return Refusal(
        run_id=want.run_id,
        reason=Reason.PREEMPTING,
        message=f"{_runs(runs)} {'are' if len(runs) != 1 else 'is'} leaving to make room",
        evidence={"runs": runs},
    )


def ending(want: Waiting, leaving: Sequence[Running]) -> Refusal:
    """Others are ending by themselves, and their devices are kept for it."""
    runs = sorted(one.run_id for one in leaving)
    return Refusal(
        run_id=want.run_id,
        reason=Reason.NO_FREE_NODES,
        message=f"{_runs(runs)} {'are' if len(runs) != 1 else 'is'} stopping; their devices are kept for it",
        evidence={"runs": runs},
    )


def held_for(
    want: Waiting,
    ready: int,
    promised: int,
    ahead: Sequence[Hold],
    barred: Sequence[str],
    reserved_now: Sequence[str],
) -> Refusal:
    """There is room, but it is promised to runs that come first, or set aside by a reservation.

    ``barred`` are nodes with room that are reserved too soon or now, ``reserved_now`` those that are now.
    """
    runs = sorted({hold.run_id for hold in ahead})
    if runs:
        first = min(hold.from_ms for hold in ahead)
        message = (
            f"{promised} of {ready} nodes with room {'are' if promised != 1 else 'is'} promised to {_runs(runs)}, "
            f"which come{'s' if len(runs) == 1 else ''} first; it may still be running then"
        )
        evidence = {"runs": runs, "nodes_ready": ready, "nodes_promised": promised, "from_ms": first}
        if barred:
            evidence["nodes_reserved"] = list(barred)
    else:
        all_now = " now" if len(reserved_now) == len(barred) else ""
        message = (
            f"{len(barred)} of {ready} nodes with room {'are' if len(barred) != 1 else 'is'} reserved{all_now} "
            f"({', '.join(barred[:5])})"
        )
        if not all_now:
            some = f", {len(reserved_now)} of them now" if reserved_now else ""
            message += (
                f"{some}; it may still be running when it would have to leave, its grace before the begin"
            )
        evidence = {"nodes_reserved": list(barred), "nodes_ready": ready}
    return Refusal(run_id=want.run_id, reason=Reason.HELD_FOR_RESERVATION, message=message, evidence=evidence)


def no_room(want: Waiting, index: NodeIndex, kinds: Sequence[Kind], ready: int) -> Refusal:
    """Too few nodes have enough devices free: closed ones, busy ones, or ready ones spread over fabrics."""
    up = index.ready(kinds, 0)
    asks = f"it asks {shape_in_words(want)}"
    if up < want.nodes:
        slots = sorted(index.of_kinds(kinds), key=lambda slot: slot.key)
        out = [slot.view for slot in slots if not slot.open]
        more = f" and {len(out) - 5} more" if len(out) > 5 else ""
        named = ", ".join(closed_in_words(view) for view in out[:5])
        return Refusal(
            run_id=want.run_id,
            reason=Reason.NODES_UNHEALTHY,
            message=f"{asks}; {up} of {len(slots)} are up and open (out: {named}{more})",
            evidence={
                "nodes_up": up,
                "nodes_out": [view.name for view in out[:50]],
                "cordons": [_cordon(view.name, view.cordon) for view in out[:50] if view.cordon is not None],
            },
        )
    if want.same_fabric and ready >= want.nodes:
        return _no_block(want, list(index.open_ones(kinds)))
    looked_at = islice(index.open_ones(kinds), HOLDERS_FROM)
    holders = sorted({run_id for slot in looked_at for run_id in slot.residents})
    held = f"; {_holding(holders)} devices there" if holders else ""
    return Refusal(
        run_id=want.run_id,
        reason=Reason.NO_FREE_NODES,
        message=f"{asks}; {ready} of {up} have {want.devices_per_node} free now{held}",
        evidence={
            "nodes_asked": want.nodes,
            "nodes_free": ready,
            "nodes_up": up,
            "holders": holders[:50],
        },
    )


def closed_in_words(view: NodeView) -> str:
    """Name a node that takes nobody, and who closed it why: ``n1 (cordoned by op: fan)``."""
    cordon = view.cordon
    if cordon is None or not cordon.by:
        return view.name
    word = "cordoned" if cordon.drain is None else "drained"
    return f"{view.name} ({word} by {cordon.by}{f': {cordon.reason}' if cordon.reason else ''})"


def _cordon(node: str, cordon: Cordon) -> dict[str, str | int]:
    return {"node": node, "by": cordon.by, "at_ms": cordon.at_ms, "reason": cordon.reason}


def _no_block(want: Waiting, up: Sequence[Slot]) -> Refusal:
    blocks: dict[str, int] = {}
    for slot in up:
        if slot.ready >= want.devices_per_node:
            blocks[slot.view.fabric] = blocks.get(slot.view.fabric, 0) + 1
    fabric, largest = max(sorted(blocks.items()), key=lambda item: item[1])
    return Refusal(
        run_id=want.run_id,
        reason=Reason.NO_FABRIC_BLOCK,
        message=f"it asks {shape_in_words(want)} on one fabric; the largest free block is {largest} "
        f"(fabric {fabric or 'without a label'})",
        evidence={"nodes_asked": want.nodes, "largest_block": largest, "blocks": blocks},
    )


def _runs(runs: Sequence[int]) -> str:
    if len(runs) == 1:
        return f"run {runs[0]}"
    more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
    return f"runs {', '.join(map(str, runs[:5]))}{more}"


def _holding(runs: Sequence[int]) -> str:
    """Name at most five holders: ``run 9 holds``, ``runs 8, 9 hold``."""
    return f"{_runs(runs)} hold{'s' if len(runs) == 1 else ''}"
