"""What would let a waiting run start now: every answer has been tried on the book, with a plan.

Owns: what is worth trying, and how the answer reads. Must not know: how a plan is made, who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from airyard.core.policy import Policy, ProjectPolicy, Reservation
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.plan import NodeView, Plan, Running, Start, Waiting
from airyard.core.scheduling.planner import CLEARING_MS, plan
from airyard.core.scheduling.reasons import closed_in_words
from airyard.core.scheduling.sandbox import Sandbox
from airyard.core.wording import span
from airyard.core.workload import Priority

MOST_TRIALS = 40
"""So many plans are made for one run at most."""
MOST_ENDS = 256
MOST_NAMED = 8
"""Of so many ends each is left out in turn, to see whether it is needed."""
MINUTE_MS = 60_000

Lasting = Callable[[Waiting], tuple[int, int]]
"""Says how long a run is predicted to last (p50, p90) that asks something else than the one that waits."""


class Change(Enum):
    """What would have to be different."""

    FEWER_NODES = "FEWER_NODES"
    FEWER_DEVICES = "FEWER_DEVICES"
    OTHER_ACCELERATOR = "OTHER_ACCELERATOR"
    ANY_POOL = "ANY_POOL"
    ANY_FABRIC = "ANY_FABRIC"
    HIGHER_CLASS = "HIGHER_CLASS"
    SHORTER_LIMIT = "SHORTER_LIMIT"
    RUNS_END = "RUNS_END"
    NODES_RETURN = "NODES_RETURN"
    RESERVATION_ENDS = "RESERVATION_ENDS"
    HIGHER_CEILING = "HIGHER_CEILING"
    HIGHER_USER_LIMIT = "HIGHER_USER_LIMIT"
    BUDGET = "BUDGET"
    RELEASED = "RELEASED"
    BEGUN = "BEGUN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counterfactual:
    """One change that would let the run start now. ``text`` goes on after "it would start".

    ``detail`` is the change for programs. ``at_ms``: when it comes by itself, about. ``evicts``: runs that would have
    to leave first, so that it starts once their grace is over.
    """

    change: Change
    text: str
    detail: Mapping[str, Any] = field(default_factory=dict)
    at_ms: int | None = None
    evicts: tuple[int, ...] = ()


def counterfactuals(
    book: Book,
    want: Waiting,
    now_ms: int,
    *,
    expected_ms: int | None = None,
    lasting: Lasting | None = None,
    trials: int = MOST_TRIALS,
) -> list[Counterfactual]:
    """Return the changes that would each let a waiting run start now; none when it does already.

    ``expected_ms``: its expected start; of the attempts that end until then it is asked which ends place it.
    ``lasting`` predicts the run in another shape or pool; None: it lasts as long in any.
    The book is played with and is afterwards what it was. Cost: a plan for each trial.
    """
    return list(_Search(book, want, now_ms, expected_ms, lasting, trials).all())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """That a trial placed the run: where, or whom it would evict to be placed."""

    start: Start | None
    evicts: tuple[int, ...] = ()


class _Search:
    """The trials for one run."""

    def __init__(
        self,
        book: Book,
        want: Waiting,
        now_ms: int,
        expected_ms: int | None,
        lasting: Lasting | None,
        trials: int,
    ) -> None:
        self._book = book
        self._want = want
        self._now_ms = now_ms
        self._expected_ms = expected_ms
        self._lasting = lasting
        self._left = trials
        self._base: Plan | None = None

    def all(self) -> Iterator[Counterfactual]:
        want = self._want
        self._base = self._plan()
        if any(start.run_id == want.run_id for start in self._base.starts):
            return
        if want.held or want.begin_ms > self._now_ms:
            yield from self._not_yet()
            return
        if want.not_before_ms > self._now_ms:
            return
        for search in (
            self._smaller,
            self._elsewhere,
            self._fabrics,
            self._limit,
            self._classes,
            self._ends,
            self._reservations,
            self._nodes,
            self._quota,
        ):
            yield from search()

    # Trials.

    def _plan(self) -> Plan:
        """Plan on the book as it is."""
        with Sandbox(self._book, self._now_ms):
            return plan(self._book, self._now_ms)

    def _try(
        self, changed: Waiting | None = None, prepare: Callable[[Sandbox], None] | None = None
    ) -> _Found | None:
        """Return where the run would be placed if it, or the book, were different; None when it would not."""
        if self._left <= 0:
            return None
        self._left -= 1
        with Sandbox(self._book, self._now_ms) as sandbox:
            if prepare is not None:
                prepare(sandbox)
            if changed is not None:
                sandbox.put(changed, self._now_ms)
            made = plan(self._book, self._now_ms)
        for start in made.starts:
            if start.run_id == self._want.run_id:
                return _Found(start=start)
        evicts = tuple(one.run_id for one in made.evictions if one.for_run == self._want.run_id)
        return _Found(start=None, evicts=evicts) if evicts else None

    def _starts(
        self, changed: Waiting | None = None, prepare: Callable[[Sandbox], None] | None = None
    ) -> bool:
        found = self._try(changed, prepare)
        return found is not None and found.start is not None

    def _as(self, changed: Waiting) -> Waiting:
        """Return the run in another shape or pool with what is predicted of it there."""
        if self._lasting is None:
            return changed
        expected_ms, likely_ms = self._lasting(changed)
        return replace(changed, expected_ms=expected_ms, likely_ms=likely_ms)

    def _most(self, changed: Callable[[int], Waiting], most: int) -> int:
        """Return the largest number from 1 to ``most`` with which it starts; 0 when it does not with 1."""
        if most < 1 or not self._starts(changed(1)):
            return 0
        low, high = 1, most
        while low < high:
            middle = (low + high + 1) // 2
            if self._starts(changed(middle)):
                low = middle
            else:
                high = middle - 1
        return low

    # What is tried.

    def _not_yet(self) -> Iterator[Counterfactual]:
        want = self._want
        changed = replace(want, held=False, begin_ms=0, not_before_ms=0)
        if not self._starts(changed):
            return
        if want.held:
            yield Counterfactual(change=Change.RELEASED, text="once it is released", detail={"held": False})
        else:
            yield Counterfactual(
                change=Change.BEGUN,
                text="when its begin comes",
                detail={"begin_ms": want.begin_ms},
                at_ms=want.begin_ms,
            )

    def _smaller(self) -> Iterator[Counterfactual]:
        want = self._want
        nodes = self._most(lambda count: self._as(replace(want, nodes=count)), want.nodes - 1)
        if nodes:
            text = f"now with {_count(nodes, 'node')} instead of {want.nodes}"
            yield Counterfactual(change=Change.FEWER_NODES, text=text, detail={"nodes": nodes})
        if want.model is None:
            return
        devices = self._most(lambda count: self._as(_with_devices(want, count)), want.devices_per_node - 1)
        if devices:
            each = "" if want.nodes == 1 else " a node"
            text = f"now with {_count(devices, 'GPU')}{each} instead of {want.devices_per_node}"
            detail = {"accelerator": _with_devices(want, devices).accelerator}
            yield Counterfactual(change=Change.FEWER_DEVICES, text=text, detail=detail)

    def _elsewhere(self) -> Iterator[Counterfactual]:
        want = self._want
        if want.pool is not None:
            found = self._try(self._as(replace(want, pool=None)))
            if found is not None and found.start is not None:
                pool = self._pool_of(found.start)
                text = f"now in pool {pool}, if it left the pool open"
                yield Counterfactual(change=Change.ANY_POOL, text=text, detail={"pool": pool})
        if want.model is None:
            return
        models = {kind.kind for kind in self._book.nodes.names if kind.accelerator != "CPU"} - {want.model}
        for model in sorted(models):
            accelerator = f"GPU_{want.devices_per_node}x{model}"
            found = self._try(self._as(replace(want, model=model, accelerator=accelerator, pool=None)))
            if found is not None and found.start is not None:
                detail = {"accelerator": accelerator, "pool": self._pool_of(found.start)}
                yield Counterfactual(
                    change=Change.OTHER_ACCELERATOR, text=f"now on {accelerator}", detail=detail
                )

    def _pool_of(self, start: Start) -> str:
        return self._book.nodes.slots[start.seats[0].node].view.pool

    def _fabrics(self) -> Iterator[Counterfactual]:
        if self._want.same_fabric and self._starts(replace(self._want, same_fabric=False)):
            yield Counterfactual(
                change=Change.ANY_FABRIC, text="now if it may span fabrics", detail={"same_fabric": False}
            )

    def _limit(self) -> Iterator[Counterfactual]:
        """Look for the longest limit with which it ends before what is promised or reserved."""
        assert self._base is not None
        want = self._want
        leaving_ms = want.grace_ms + CLEARING_MS
        turns = [hold.from_ms for hold in (*self._base.holds, *self._base.kept)]
        turns += [one.from_ms - leaving_ms for of_node in self._book.barred.values() for one in of_node]
        lengths = {at_ms - self._now_ms for at_ms in turns}
        limits = sorted({_readable(ms) for ms in lengths if ms >= MINUTE_MS} - {0})
        limits = [ms for ms in limits if ms < want.bound_ms]
        place = self._most(lambda count: _with_limit(want, limits[count - 1]), len(limits))
        if place:
            limit_ms = limits[place - 1]
            needs = (
                f"; it is predicted to last {span(want.expected_ms)}" if limit_ms < want.expected_ms else ""
            )
            yield Counterfactual(
                change=Change.SHORTER_LIMIT,
                text=f"now with a time limit of {span(limit_ms)} or less{needs}",
                detail={"timeout_s": limit_ms // 1000},
            )

    def _classes(self) -> Iterator[Counterfactual]:
        want = self._want
        for priority in (Priority.NORMAL, Priority.CRITICAL):
            if priority.rank >= want.rank:
                continue
            if priority is Priority.CRITICAL and not self._book.policy.may_be_critical(
                want.owner, want.project
            ):
                continue
            found = self._try(replace(want, rank=priority.rank))
            if found is None:
                continue
            when = f"once {_have(found.evicts)} left" if found.evicts else "now"
            yield Counterfactual(
                change=Change.HIGHER_CLASS,
                text=f"{when} as {priority.value}",
                detail={"priority": priority.value},
                evicts=found.evicts,
            )
            return

    def _ends(self) -> Iterator[Counterfactual]:
        """Look for the ends that place it: the first so many, and of these the ones that it needs."""
        if self._expected_ms is None:
            return
        leaving = self._leaving()
        if leaving and self._starts(prepare=_without(leaving)):
            yield self._ending(leaving)
            return
        pools = self._book.nodes.fitting(self._want.shape)
        ends = sorted(
            (running.end_ms, running.run_id)
            for running in self._book.running.values()
            if running.end_ms <= self._expected_ms and running.pool in pools
        )
        if not ends or len(ends) > MOST_ENDS or not self._starts(prepare=_without(ends)):
            return
        low, high = 1, len(ends)
        while low < high:
            middle = (low + high) // 2
            if self._starts(prepare=_without(ends[:middle])):
                high = middle
            else:
                low = middle + 1
        yield self._ending(self._needed(ends[:low]))

    def _leaving(self) -> list[tuple[int, int]]:
        """Return the ends of those whose devices are kept for it: they leave for it, or end by themselves."""
        assert self._base is not None
        refusal = self._base.of_runs.get(self._want.run_id)
        runs: Sequence[int] = refusal.evidence.get("runs", ()) if refusal is not None else ()
        assert self._expected_ms is not None
        # Who has not been asked to leave yet is expected to end when it would by itself.
        known = (self._book.running[run_id] for run_id in runs if run_id in self._book.running)
        return sorted((min(one.end_ms, self._expected_ms), one.run_id) for one in known)

    def _needed(self, ends: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the ends without those that it does not need."""
        found = self._try(prepare=_without(ends))
        if found is not None and found.start is not None:
            nodes = {seat.node for seat in found.start.seats}
            there = [(at, run_id) for at, run_id in ends if _on(self._book.running[run_id], nodes)]
            if 0 < len(there) < len(ends) and self._starts(prepare=_without(there)):
                ends = there
        # The last one is needed: without it the search for the first so many would have ended before.
        for one in ends[-2::-1] if len(ends) <= MOST_NAMED else ():
            rest = [other for other in ends if other != one]
            if self._starts(prepare=_without(rest)):
                ends = rest
        return ends

    def _ending(self, ends: list[tuple[int, int]]) -> Counterfactual:
        runs = sorted(run_id for _, run_id in ends)
        return Counterfactual(
            change=Change.RUNS_END,
            text=f"when {_runs(runs)} {'ends' if len(runs) == 1 else 'end'}",
            detail={"runs": runs},
            at_ms=max(ends[-1][0], self._now_ms),
        )

    def _reservations(self) -> Iterator[Counterfactual]:
        bars = {one for of_node in self._book.barred.values() for one in of_node}
        for one in sorted(bars, key=lambda found: (found.to_ms, found.reservation_id)):
            if one.to_ms <= self._now_ms or not self._starts(prepare=_lifting(one)):
                continue
            yield Counterfactual(
                change=Change.RESERVATION_ENDS,
                text=f"when reservation {one.reservation_id} ends",
                detail={"reservation_id": one.reservation_id},
                at_ms=one.to_ms,
            )
            return

    def _nodes(self) -> Iterator[Counterfactual]:
        closed = [
            slot.view
            for kinds in self._book.nodes.fitting(self._want.shape).values()
            for slot in self._book.nodes.of_kinds(kinds)
            if not slot.open
        ]
        found = self._try(prepare=_with_nodes(closed)) if closed else None
        if found is None or found.start is None:
            return
        used = {seat.node for seat in found.start.seats}
        needed = [view for view in closed if view.name in used]
        if len(needed) < len(closed) and needed and self._starts(prepare=_with_nodes(needed)):
            closed = needed
        names = [view.name for view in closed]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        named = ", ".join(closed_in_words(view) for view in closed[:5])
        yield Counterfactual(
            change=Change.NODES_RETURN,
            text=f"when {named}{more} {'are' if len(names) > 1 else 'is'} back",
            detail={"nodes": names},
        )

    def _quota(self) -> Iterator[Counterfactual]:
        want, book = self._want, self._book
        if want.project in book.spent:
            if self._starts(prepare=lambda box: box.afford(want.project)):
                text = f"now if project {want.project} had budget left"
                yield Counterfactual(change=Change.BUDGET, text=text, detail={"project": want.project})
            return
        project = book.shares.projects.get(want.project)
        if project is None:
            return
        if book.shares.over_user_limit(want) is not None:
            raised, detail, text = _more_for_user(project, want, book.shares.users)
            if self._starts(prepare=_declaring(book.policy, raised)):
                yield Counterfactual(change=Change.HIGHER_USER_LIMIT, text=text, detail=detail)
            return
        for pool in book.nodes.fitting(want.shape):
            over = book.shares.over_ceiling(want, pool)
            if over is None:
                continue
            ceiling = over[0] + want.devices
            if self._starts(prepare=_declaring(book.policy, _with_ceiling(project, pool, ceiling))):
                yield Counterfactual(
                    change=Change.HIGHER_CEILING,
                    text=f"now if project {project.name} might have {ceiling} devices of pool {pool}, not {over[1]}",
                    detail={"project": project.name, "pool": pool, "ceiling": ceiling},
                )
                return


# Changed yards.


def _without(ends: Sequence[tuple[int, int]]) -> Callable[[Sandbox], None]:
    def prepare(sandbox: Sandbox) -> None:
        for _, run_id in ends:
            sandbox.drop(run_id)

    return prepare


def _with_nodes(views: Sequence[NodeView]) -> Callable[[Sandbox], None]:
    def prepare(sandbox: Sandbox) -> None:
        for view in views:
            sandbox.put_node(replace(view, alive=True, cordoned=False))

    return prepare


def _lifting(reservation: Reservation) -> Callable[[Sandbox], None]:
    return lambda sandbox: sandbox.lift(reservation)


def _declaring(policy: Policy, project: ProjectPolicy) -> Callable[[Sandbox], None]:
    projects = tuple(project if one.name == project.name else one for one in policy.projects)
    return lambda sandbox: sandbox.declare(replace(policy, projects=projects))


def _with_ceiling(project: ProjectPolicy, pool: str, ceiling: int) -> ProjectPolicy:
    others = tuple(share for share in project.shares if share.pool != pool)
    return replace(project, shares=(*others, replace(project.share_of(pool), ceiling=ceiling)))


def _more_for_user(
    project: ProjectPolicy, want: Waiting, users: Mapping[tuple[str, str], tuple[int, int]]
) -> tuple[ProjectPolicy, dict[str, Any], str]:
    """Return the project with limits that leave this run room, as a change and in words."""
    runs, devices = users.get((want.project, want.owner), (0, 0))
    limits = project.per_user
    detail: dict[str, Any] = {"project": project.name, "user": want.owner}
    allowed = []
    if limits.running is not None and runs + 1 > limits.running:
        limits = replace(limits, running=runs + 1)
        detail["running"] = runs + 1
        allowed.append(f"{runs + 1} runs")
    if limits.devices is not None and devices + want.devices > limits.devices:
        limits = replace(limits, devices=devices + want.devices)
        detail["devices"] = devices + want.devices
        allowed.append(f"{devices + want.devices} devices")
    text = f"now if {want.owner} might have {' and '.join(allowed)} at a time in project {project.name}"
    return replace(project, per_user=limits), detail, text


# Changed runs.


def _with_devices(want: Waiting, devices: int) -> Waiting:
    return replace(want, devices_per_node=devices, accelerator=f"GPU_{devices}x{want.model}")


def _with_limit(want: Waiting, limit_ms: int) -> Waiting:
    return replace(
        want,
        limit_ms=limit_ms,
        expected_ms=min(want.expected_ms, limit_ms),
        likely_ms=min(want.likely_ms, limit_ms),
    )


def _readable(duration_ms: int) -> int:
    """Return a duration in full minutes, and beyond two hours in full ten minutes."""
    step = MINUTE_MS if duration_ms < 120 * MINUTE_MS else 10 * MINUTE_MS
    return duration_ms // step * step


def _on(running: Running, nodes: set[str]) -> bool:
    return any(seat.node in nodes for seat in running.seats)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _runs(runs: Sequence[int]) -> str:
    if len(runs) == 1:
        return f"run {runs[0]}"
    more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
    return f"runs {', '.join(map(str, runs[:5]))}{more}"


def _have(runs: Sequence[int]) -> str:
    return f"{_runs(runs)} {'has' if len(runs) == 1 else 'have'}"
