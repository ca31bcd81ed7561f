"""Whether a running gang has stopped making steps, and whose fault that looks like.

Owns: how long a step may take, the cases and their order, confidence. Must not know: how beats and stacks are got,
what is done about it. A stall blames nobody by itself: programs deadlock far more often than machines do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from airyard.core.health import collectives
from airyard.core.health.collectives import CollectiveCase, Place
from airyard.core.health.stacks import normal, of_program

SHORTEST_MS = 60_000
FACTOR = 5
WARM_UP_STEPS = 5
"""The first steps compile, allocate and fill caches: they say nothing of the others."""
WARM_UP_MS = FACTOR * SHORTEST_MS
"""So long at least none may follow one of them: the first collectives are where many a gang hangs."""


class StallCase(Enum):
    """What tells the ranks apart; that of ``CollectiveCase`` where torch's flight recorders say it."""

    GPU_LOST = "GPU_LOST"
    """A rank's GPU does not answer any more, as one that fell off the bus."""
    GONE = "GONE"
    """A rank's process has ended while others wait for it."""
    MISMATCH = "MISMATCH"
    DESYNC = "DESYNC"
    NOT_ENQUEUED = "NOT_ENQUEUED"
    NOT_STARTED = "NOT_STARTED"
    NOT_COMPLETED = "NOT_COMPLETED"
    BEHIND = "BEHIND"
    """A minority has made fewer steps than the rest."""
    COMPUTING = "COMPUTING"
    """All are in the same step; a minority is still in its own part of it, and the rest waits."""
    GPU_IDLE = "GPU_IDLE"
    """The GPUs of a minority idle, those of all others are busy all the time, as they are when they wait."""
    ODD_STACK = "ODD_STACK"
    """All are in the same step; most stand at the same place of the program, and a minority elsewhere."""
    UNKNOWN = "UNKNOWN"
    """Nothing differs."""


CONFIDENCE = {
    StallCase.GPU_LOST: 0.95,
    StallCase.GONE: 0.9,
    StallCase.MISMATCH: 0.9,
    StallCase.DESYNC: 0.7,
    StallCase.NOT_ENQUEUED: 0.8,
    StallCase.NOT_STARTED: 0.7,
    StallCase.NOT_COMPLETED: 0.5,
    StallCase.BEHIND: 0.8,
    StallCase.COMPUTING: 0.8,
    StallCase.GPU_IDLE: 0.6,
    StallCase.ODD_STACK: 0.5,
    StallCase.UNKNOWN: 0.0,
}
IDLE_PERCENT = 5
PINNED_PERCENT = 95

_WHOLE = {
    CollectiveCase.MISMATCH: "the ranks do not do the same, and none of it is usual",
    CollectiveCase.DESYNC: "the ranks have done very different numbers of them",
    CollectiveCase.NOT_ENQUEUED: "some ranks have not come to it",
    CollectiveCase.NOT_STARTED: "some GPUs have not begun with it",
    CollectiveCase.NOT_COMPLETED: "all GPUs have begun with it and none is done",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSeen:
    """One rank as its last beat shows it. ``age_ms``: since that beat. ``limit_ms`` None: no step yet."""

    rank: int
    node: str
    step: int
    age_ms: int
    limit_ms: int | None
    alive: bool = True
    computing: bool = False
    section: str = ""
    process_state: str = ""
    """As the kernel names it: R, S, D (uninterruptible) and others; empty when nobody looked."""
    stack: str = ""
    places: tuple[Place, ...] = ()
    """How far it is in each communicator, where its flight recorder told."""
    told: bool = True
    """False: it never told of steps, and is known from a look only."""
    looked: str = ""
    """Its stack as a look from outside of the process saw it, innermost frame first."""
    gpu_lost: bool = False
    gpu_least: int | None = None
    gpu_most: int | None = None
    """How busy its GPUs were over the look, in percent; None where that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The verdict. ``ranks`` are those that hold the others up, none when nothing tells them apart.

    ``suspect_node``: where such a rank hangs in the kernel; a suspect only, never proof.
    """

    case: StallCase
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    confidence: float
    silent_ms: int
    limit_ms: int
    step: int
    message: str
    suspect_node: str = ""
    evidence: tuple[str, ...] = ()


def limit_ms(p99_ms: float, steps: int, *, own_ms: int = 0) -> int | None:
    """Return how long no step is still well; None before the first one. ``own_ms``: what user code said, goes first.

    ``p99_ms`` is that of the last 50 step times. Source: nvidia-resiliency-ext uses factor 5 and 5 warm-up steps.
    """
    if own_ms > 0:
        return own_ms
    if steps <= 0:
        return None
    return max(WARM_UP_MS if steps <= WARM_UP_STEPS else SHORTEST_MS, round(FACTOR * p99_ms))


def judge(seen: Iterable[RankSeen], *, logs: str = "") -> Stall | None:
    """Return the verdict on a gang that makes no steps; None while every rank that can be judged still does.

    The order of the ranks does not matter. ``logs``: the command that shows the members' logs.
    """
    ranks = sorted(seen, key=lambda one: one.rank)
    living = [one for one in ranks if one.alive]
    late = [one for one in living if one.limit_ms is not None and one.age_ms > one.limit_ms]
    if not late:
        return None
    case, roots, finding = _case(ranks, living)
    # Of the ones that are late the one with the least patience says what was exceeded.
    worst = min(late, key=lambda one: (one.limit_ms or 0, one.rank))
    on_device = case in (StallCase.GPU_LOST, StallCase.NOT_STARTED, StallCase.NOT_COMPLETED)
    stuck = next((one for one in roots if one.process_state == "D" or on_device), None)
    return Stall(
        case=case,
        ranks=tuple(one.rank for one in roots),
        nodes=tuple(sorted({one.node for one in roots})),
        confidence=CONFIDENCE[case],
        silent_ms=worst.age_ms,
        limit_ms=worst.limit_ms or 0,
        step=max(one.step for one in ranks),
        message=_message(case, roots, worst, finding),
        suspect_node=stuck.node if stuck is not None else "",
        evidence=(*(rank_evidence(one) for one in (roots or late)[:4]), *_where_the_rest_is(ranks, logs)),
    )


def single_out(seen: Iterable[RankSeen]) -> tuple[StallCase, tuple[RankSeen, ...]]:
    """Return what a look alone tells of ranks that stand still: the case and the ranks that differ."""
    ranks = sorted(seen, key=lambda one: one.rank)
    lost = [one for one in ranks if one.gpu_lost]
    if lost:
        return StallCase.GPU_LOST, tuple(lost)
    for case, odd in ((StallCase.GPU_IDLE, _idle_gpus(ranks)), (StallCase.ODD_STACK, _odd_stacks(ranks))):
        if odd:
            return case, tuple(odd)
    return StallCase.UNKNOWN, ()


def _case(
    ranks: Sequence[RankSeen], living: Sequence[RankSeen]
) -> tuple[StallCase, list[RankSeen], collectives.Finding | None]:
    lost = [one for one in ranks if one.gpu_lost]
    if lost:
        return StallCase.GPU_LOST, lost, None
    gone = [one for one in ranks if not one.alive]
    if gone:
        return StallCase.GONE, gone, None
    finding = collectives.judge(
        {one.rank: one.places for one in living}, {one.rank: one.node for one in living}
    )
    if finding is not None:
        named = [one for one in living if one.rank in finding.ranks]
        return StallCase(finding.case.value), named, finding
    return (*_case_of_steps(living), None)


def _case_of_steps(living: Sequence[RankSeen]) -> tuple[StallCase, list[RankSeen]]:
    telling = [one for one in living if one.told]
    newest = max(one.step for one in telling)
    behind = [one for one in telling if one.step < newest]
    if _is_minority(behind, telling):
        # Of several that are behind, the one furthest behind holds up the others.
        oldest = min(one.step for one in behind)
        return StallCase.BEHIND, [one for one in behind if one.step == oldest]
    computing = [one for one in telling if one.computing]
    if _is_minority(computing, telling):
        return StallCase.COMPUTING, computing
    case, odd = single_out(living)
    return case, list(odd)


def _is_minority(some: Sequence[RankSeen], all_of_them: Sequence[RankSeen]) -> bool:
    return bool(some) and 2 * len(some) < len(all_of_them)


def _idle_gpus(living: Sequence[RankSeen]) -> list[RankSeen]:
    """Return the ranks whose GPUs idle while those of all others are pinned; none unless all are known."""
    idle = [one for one in living if one.gpu_most is not None and one.gpu_most <= IDLE_PERCENT]
    pinned = [one for one in living if one.gpu_least is not None and one.gpu_least >= PINNED_PERCENT]
    return idle if _is_minority(idle, living) and len(idle) + len(pinned) == len(living) else []


def _odd_stacks(living: Sequence[RankSeen]) -> list[RankSeen]:
    """Return the ranks outside of the place where most stand; none unless all stacks are known.

    What the ranks themselves said goes before a look, which comes later; and of that all frames before the program's
    alone: of those that spin in a library hardly two are seen at the same place of it.
    """
    ways = (
        [one.stack for one in living],
        [normal(one.looked) for one in living],
        [of_program(one.looked) for one in living],
    )
    for stacks in ways:
        if not all(stacks):
            continue
        usual, count = Counter(stacks).most_common(1)[0]
        if count < len(stacks) < 2 * count:
            return [one for one, stack in zip(living, stacks, strict=True) if stack != usual]
    return []


def _message(
    case: StallCase, roots: Sequence[RankSeen], worst: RankSeen, finding: collectives.Finding | None
) -> str:
    silence = f"no step for {worst.age_ms / 1000:.0f} s (limit {(worst.limit_ms or 0) / 1000:.0f} s)"
    if finding is not None:
        where = f"{finding.operation or 'collective'} {finding.seq} of group {finding.group}"
        silence = f"{silence}, in {where}"
    if not roots and finding is not None:
        return f"{silence}: {_WHOLE[finding.case]}"
    if not roots:
        return f"{silence}; nothing tells the ranks apart"
    who = ", ".join(f"{one.rank} on {one.node}" for one in roots[:4])
    who += f" and {len(roots) - 4} more" if len(roots) > 4 else ""
    what = {
        StallCase.GPU_LOST: "has a GPU that does not answer any more",
        StallCase.GPU_IDLE: "has idle GPUs while all others are busy, as in waiting",
        StallCase.GONE: "has ended while others wait",
        StallCase.MISMATCH: "does another one, or with other sizes",
        StallCase.NOT_ENQUEUED: "has not come to it",
        StallCase.NOT_STARTED: "has come to it, but its GPU has not begun with it",
        StallCase.NOT_COMPLETED: "shares its node with every group that is stuck",
        StallCase.BEHIND: f"is behind, at step {roots[0].step}",
        StallCase.COMPUTING: "is still computing while the others wait",
        StallCase.ODD_STACK: "stands elsewhere in the program than the others",
    }[case]
    section = f", in {roots[0].section}" if roots[0].section else ""
    return f"{silence}; rank {who} {what}{section}"


def rank_evidence(one: RankSeen) -> str:
    """Return what is known of a rank that stands still, its stack in the lines after the first."""
    state = f", process state {one.process_state}" if one.process_state else ""
    step = f"step {one.step}, {one.age_ms / 1000:.0f} s ago" if one.told else "it tells of no steps"
    gpus = f", GPUs {one.gpu_least} to {one.gpu_most} % busy" if one.gpu_most is not None else ""
    text = f"rank {one.rank} on {one.node}: {step}{state}{', a GPU is gone' if one.gpu_lost else gpus}"
    stack = one.stack or one.looked
    return f"{text}\n{stack}" if stack else text


def _where_the_rest_is(ranks: Sequence[RankSeen], logs: str) -> tuple[str, ...]:
    looked = sum(bool(one.looked) for one in ranks)
    if not looked:
        return ()
    command = f": {logs}" if logs else ""
    return (f"the stacks of {looked} ranks, and their GPUs, are in the members' logs{command}",)
