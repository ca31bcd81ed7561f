"""What runners told of the steps of running gangs, in memory, and the verdicts on it.

Owns: the newest of each member, windows of compute times. Must not know: HTTP, files, the journal: nothing of it is
kept over a restart of the server, after which runners tell it again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airyard.app.gang_looks import GangLooks
from airyard.core.errors import UserError
from airyard.core.health import hangs, stragglers
from airyard.core.health.collectives import Operation, Place
from airyard.core.ids import AttemptKey, MemberKey
from airyard.core.run import Attempt

MOST_GANGS = 4096
MOST_RANKS = 64
"""Of one member."""
_STACK_CHARACTERS = 2000
_MOST_GROUPS = 16
_MOST_OPERATIONS = 8
SAME_FOR_MS = 1500
"""A verdict counts once it was the same for so long: a member that stands still tells of it every two seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTold:
    """One rank as its member's runner told it at ``at_ms``, by this server's monotonic clock."""

    rank: int
    step: int
    count: int
    age_ms: int
    at_ms: int
    limit_ms: int | None
    alive: bool
    computing: bool
    compute_ms: float | None
    section: str
    state: str
    stack: str
    places: tuple[Place, ...]


@dataclass(slots=True)
class _Gang:
    members: dict[int, tuple[RankTold, ...]] = field(default_factory=dict)
    windows: deque[Mapping[int, float]] = field(default_factory=lambda: deque(maxlen=stragglers.WINDOWS))
    rows: stragglers.Rows = field(default_factory=stragglers.Rows)
    counted: int = 0
    seen: tuple[hangs.StallCase, tuple[int, ...]] | None = None
    seen_ms: int = 0


class GangSteps:
    """The gangs that told of steps, newest last. Used on the server's event loop alone."""

    def __init__(self) -> None:
        self._gangs: OrderedDict[AttemptKey, _Gang] = OrderedDict()
        self.looks = GangLooks()

    def put(self, key: MemberKey, ranks: object, at_ms: int) -> bool:
        """Take what a member told; return whether that ended a window. Raises: UserError for what no runner sends."""
        told = _read(ranks, at_ms)
        gang = self._gangs.setdefault(key.attempt_key, _Gang())
        self._gangs.move_to_end(key.attempt_key)
        while len(self._gangs) > MOST_GANGS:
            self._gangs.popitem(last=False)
        gang.members[key.member] = told
        # A window needs all ranks to have made its steps.
        fewest = min((one.count for each in gang.members.values() for one in each), default=0)
        if fewest < gang.counted + stragglers.STEPS_A_WINDOW:
            return False
        gang.counted = fewest
        told_by_all = (one for each in gang.members.values() for one in each)
        window = {one.rank: one.compute_ms for one in told_by_all if one.compute_ms is not None}
        gang.windows.append(window)
        gang.rows.add(window, at_ms)
        return True

    def drop(self, key: AttemptKey) -> None:
        """Forget a gang that has ended."""
        self._gangs.pop(key, None)
        self.looks.moves(key)

    def stall(self, attempt: AttemptKey, members: Attempt, now_ms: int) -> hangs.Stall | None:
        """Return the verdict on a gang that makes no steps; None for one that does, or never told."""
        logs = f"airyard logs {attempt.run_id} --attempt {attempt.attempt}"
        return hangs.judge(self._seen(attempt, members, now_ms), logs=logs)

    def _seen(self, key: AttemptKey, attempt: Attempt, now_ms: int) -> list[hangs.RankSeen]:
        looked = self.looked(key, attempt)
        told = [
            hangs.RankSeen(
                rank=one.rank,
                node=node,
                step=one.step,
                age_ms=one.age_ms + max(0, now_ms - one.at_ms),
                limit_ms=one.limit_ms,
                alive=one.alive,
                computing=one.computing,
                section=one.section,
                process_state=one.state,
                stack=one.stack,
                places=one.places,
            )
            for one, node in self._ranks(key, attempt)
        ]
        known = {one.rank for one in told}
        silent = [one for rank, one in looked.items() if rank not in known]
        return [_with_look(one, looked.get(one.rank)) for one in told] + silent

    def looked(self, key: AttemptKey, attempt: Attempt) -> dict[int, hangs.RankSeen]:
        """Return the ranks of an attempt as the look at its stall shows them, without their steps. Any thread."""
        nodes = {member.index: member.node for member in attempt.members}
        return {
            one.rank: hangs.RankSeen(
                rank=one.rank,
                node=nodes[index],
                step=0,
                age_ms=0,
                limit_ms=None,
                told=False,
                process_state=one.state,
                looked=one.stack,
                gpu_lost=one.gpu_lost,
                gpu_least=one.gpu_least,
                gpu_most=one.gpu_most,
            )
            for index, ranks in self.looks.of(key).items()
            if index in nodes
            for one in ranks
        }

    def confirmed(
        self, attempt: AttemptKey, members: Attempt, now_ms: int
    ) -> tuple[bool, hangs.Stall | None]:
        """Return whether the verdict can be relied on, and it: one that names ranks has to be the same twice.

        The members' news come one after another, so that a gang that is moving may look as if one were behind.
        """
        stall, gang = self.stall(attempt, members, now_ms), self._gangs.get(attempt)
        if gang is None:
            return False, None
        seen = (stall.case, stall.ranks) if stall is not None else None
        if seen != gang.seen:
            gang.seen, gang.seen_ms = seen, now_ms
        return stall is None or now_ms - gang.seen_ms >= SAME_FOR_MS, stall

    def moved_since(self, attempt: AttemptKey, members: Attempt, now_ms: int, span_ms: int) -> bool:
        """Whether a rank made a step, or began something else, within the last ``span_ms``."""
        ages = [one.age_ms + max(0, now_ms - one.at_ms) for one, _ in self._ranks(attempt, members)]
        return min(ages, default=span_ms) < span_ms

    def heard_of(self, attempt: AttemptKey, members: Attempt, ranks: Sequence[int]) -> bool:
        """Whether all of these ranks told of steps, or were looked at."""
        told = {one.rank for one, _ in self._ranks(attempt, members)}
        return told.union(self.looked(attempt, members)).issuperset(ranks)

    def stragglers(self, attempt: AttemptKey, members: Attempt) -> list[stragglers.Straggler]:
        """Return the slow ranks of a gang."""
        gang = self._gangs.get(attempt)
        if gang is None:
            return []
        nodes = {one.rank: node for one, node in self._ranks(attempt, members)}
        return stragglers.judge(tuple(gang.windows), nodes, gang.rows.since)

    def ranks_of(self, attempt: AttemptKey) -> dict[int, list[int]]:
        """Return the ranks that each member told of."""
        gang = self._gangs.get(attempt)
        return {index: [one.rank for one in told] for index, told in gang.members.items()} if gang else {}

    def newest_step(self, attempt: AttemptKey) -> int | None:
        """Return the step that the foremost rank has made; None before the first. Any thread: members may tell."""
        gang = self._gangs.get(attempt)
        told = tuple(gang.members.values()) if gang else ()
        return max((one.step for each in told for one in each if one.count > 0), default=None)

    def _ranks(self, key: AttemptKey, attempt: Attempt) -> Sequence[tuple[RankTold, str]]:
        gang = self._gangs.get(key)
        if gang is None:
            return []
        nodes = {member.index: member.node for member in attempt.members}
        return [(one, nodes[index]) for index, told in gang.members.items() if index in nodes for one in told]


def _with_look(told: hangs.RankSeen, look: hangs.RankSeen | None) -> hangs.RankSeen:
    if look is None:
        return told
    return replace(
        told,
        process_state=told.process_state or look.process_state,
        looked=look.looked,
        gpu_lost=look.gpu_lost,
        gpu_least=look.gpu_least,
        gpu_most=look.gpu_most,
    )


def _read(ranks: object, at_ms: int) -> tuple[RankTold, ...]:
    try:
        if not isinstance(ranks, list):
            raise TypeError("ranks is no list")
        return tuple(_rank(item, at_ms) for item in ranks[:MOST_RANKS])
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise UserError(f"steps in a report are malformed: {error!r}", code="BAD_REPORT") from error


def _rank(item: Mapping[str, Any], at_ms: int) -> RankTold:
    limit, compute = item.get("limit_ms"), item.get("compute_ms")
    return RankTold(
        rank=int(item["rank"]),
        step=int(item["step"]),
        count=int(item.get("count", 0)),
        age_ms=max(0, int(item["age_ms"])),
        at_ms=at_ms,
        limit_ms=int(limit) if limit is not None else None,
        alive=bool(item.get("alive", True)),
        computing=bool(item.get("computing")),
        compute_ms=float(compute) if compute is not None else None,
        section=str(item.get("section", ""))[:24],
        state=str(item.get("state", ""))[:1],
        stack=str(item.get("stack", ""))[:_STACK_CHARACTERS],
        places=tuple(_place(place) for place in item.get("collectives", ())[:_MOST_GROUPS]),
    )


def _place(item: Mapping[str, Any]) -> Place:
    started = item.get("started")
    return Place(
        group=str(item["group"])[:80],
        enqueued=int(item["enqueued"]),
        completed=int(item["completed"]),
        started=int(started) if started is not None else None,
        last=tuple(
            Operation(seq=int(seq), name=str(name)[:40], sizes=str(sizes)[:80], types=str(types)[:40])
            for seq, name, sizes, types in item.get("last", ())[:_MOST_OPERATIONS]
        ),
    )
