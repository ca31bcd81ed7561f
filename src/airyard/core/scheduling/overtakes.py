"""Who started before whom although it was queued later, and by which rule: for both of them the same sentence.

Owns: what is kept of a start, and what is told of it later. Must not know: how many starts are kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from airyard.core.scheduling.book import Book
from airyard.core.scheduling.places import Place, Rule, place_of, rule_between
from airyard.core.scheduling.plan import Hold, Plan, Waiting
from airyard.core.wording import moment, span
from airyard.core.workload import Priority

CLASSES = {priority.rank: priority.value for priority in Priority}
BESIDE = "beside"
"""It was behind in the queue, and started because it is in nobody's way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What is kept of a start by a plan: the run as it waited, its place, and what was promised to others then."""

    want: Waiting
    place: Place
    pool: str
    at_ms: int
    holds: tuple[Hold, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtake:
    """That ``later`` started at ``at_ms`` while ``earlier``, queued before it, went on waiting.

    ``rule`` is a ``Rule`` or ``beside``.
    """

    later: int
    earlier: int
    at_ms: int
    rule: str
    text: str


def begun_by(book: Book, plan: Plan, most: int) -> list[Begun]:
    """Return what is worth keeping of a plan's last starts: nothing when nobody is left waiting. Cost: ``most``."""
    if len(book.queue.runs) <= len(plan.starts):
        return []
    found = []
    for start in plan.starts[-most:]:
        want = book.queue.runs.get(start.run_id)
        slot = book.nodes.slots.get(start.seats[0].node)
        if want is not None and slot is not None:
            place = place_of(book, want, plan.made_ms)
            found.append(
                Begun(want=want, place=place, pool=slot.view.pool, at_ms=plan.made_ms, holds=plan.holds)
            )
    return found


def passed(book: Book, earlier: Waiting, begun: Iterable[Begun], now_ms: int) -> list[Overtake]:
    """Return who went before a waiting run although it was queued later, in the order given."""
    pools = book.nodes.fitting(earlier.shape)
    place = place_of(book, earlier, now_ms)
    return [
        _overtake(book, earlier, place, one)
        for one in begun
        if one.pool in pools
        and (one.want.queued_ms, one.want.run_id) > (earlier.queued_ms, earlier.run_id)
        and one.at_ms >= max(earlier.queued_ms, earlier.since_ms)
        and one.want.run_id not in book.queue.runs
    ]


def passed_by(book: Book, one: Begun, now_ms: int) -> list[Overtake]:
    """Return the runs before which one has started and that wait still, the earliest first. Cost: the queue."""
    found = [
        want
        for want in book.queue.waiting()
        if (want.queued_ms, want.run_id) < (one.want.queued_ms, one.want.run_id)
        and want.since_ms <= one.at_ms
        and one.pool in book.nodes.fitting(want.shape)
    ]
    found.sort(key=lambda want: (want.queued_ms, want.run_id))
    return [_overtake(book, want, place_of(book, want, now_ms), one) for want in found]


def _overtake(book: Book, earlier: Waiting, place: Place, one: Begun) -> Overtake:
    later = one.want
    rule: Rule | None = None
    if one.place < place:
        rule = rule_between(one.place, place, book.pool(one.pool).order)
    if rule is Rule.SHARE and later.project == earlier.project:
        # Its project's band has moved since; within the project it was the shorter one, or there was room beside.
        rule = Rule.SHORTER if later.expected_ms < earlier.expected_ms else None
    why = _beside(earlier, one) if rule is None else _figures(book, rule, earlier, one)
    return Overtake(
        later=later.run_id,
        earlier=earlier.run_id,
        at_ms=one.at_ms,
        rule=rule.value if rule is not None else BESIDE,
        text=f"run {later.run_id} started before run {earlier.run_id}: {why}",
    )


def _figures(book: Book, rule: Rule, earlier: Waiting, one: Begun) -> str:
    later, pool = one.want, one.pool
    match rule:
        case Rule.CLASS:
            return f"its class is {CLASSES[later.rank]}, not {CLASSES[earlier.rank]}"
        case Rule.CLAIM:
            if earlier.left_for == later.run_id and earlier.left_by:
                return f"run {earlier.run_id} had been evicted for it ({_right(earlier, later)})"
            return "others had been evicted for it"
        case Rule.AGED:
            return (
                f"it had waited {span(one.at_ms - later.queued_ms)}, longer than any run of its class should"
            )
        case Rule.GUARANTEE:
            guarantee = book.shares.guarantee(later.project, pool)
            return f"it is within the {guarantee} devices that project {later.project} is guaranteed in pool {pool}"
        case Rule.SHARE:
            order = book.pool(pool).order
            used, other = (
                book.shares.over_served(project, pool, order) for project in (later.project, earlier.project)
            )
            return (
                f"project {later.project} has used {used:.1f} of its fair share of pool {pool}, "
                f"project {earlier.project} {other:.1f}"
            )
        case Rule.SLICE:
            return (
                f"run {earlier.run_id} has had its first slice ({span(earlier.served_ms)}), it had not "
                f"({span(later.served_ms)})"
            )
        case Rule.SHORTER:
            return (
                f"shorter predicted duration, {span(later.expected_ms)} against {span(earlier.expected_ms)}"
            )
        case Rule.EARLIER:
            return "it had been queued earlier"


def _beside(earlier: Waiting, one: Begun) -> str:
    """Say why a run that stood behind could go all the same."""
    promise = next((hold for hold in one.holds if hold.run_id == earlier.run_id), None)
    if promise is None:
        free = "was" if one.want.devices == 1 else "were"
        return (
            f"its {_asks(one.want)} {free} free, the {_asks(earlier)} that run {earlier.run_id} asks were not"
        )
    return (
        f"it takes nothing of what run {earlier.run_id} is promised for {moment(promise.from_ms)}: "
        f"{_length(one.want)}, or it stands on other devices"
    )


def _length(want: Waiting) -> str:
    """Say what is known of how long a run lasts at most: its limit is a fact, a prediction is not."""
    if want.limit_ms is not None and want.limit_ms <= want.likely_ms:
        return f"its time limit is {span(want.limit_ms)}"
    return f"it is predicted to last {span(want.likely_ms)} at most, nine times in ten"


def _right(victim: Waiting, winner: Waiting) -> str:
    """Say by what right a run was evicted for another."""
    match victim.left_by:
        case "slice":
            return f"it had had its first slice, run {winner.run_id} had not"
        case "reclaim":
            return f"project {winner.project} took its guarantee back"
    return f"{CLASSES[winner.rank]} goes before {CLASSES[victim.rank]}"


def _asks(want: Waiting) -> str:
    devices = f"{want.devices_per_node} device{'s' if want.devices_per_node != 1 else ''}"
    return devices if want.nodes == 1 else f"{devices} on each of {want.nodes} nodes"
