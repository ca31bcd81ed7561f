"""Explanations of waiting and running runs, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airyard.core.policy import PoolOrder, ProjectPolicy, Share, Slicing
from airyard.core.scheduling.book import Book
from airyard.core.scheduling.eta import etas
from airyard.core.scheduling.explain import Ahead, Explanation, Seen, explain, ways_out
from airyard.core.scheduling.exposure import exposure
from airyard.core.scheduling.order import CLAIM_BAND
from airyard.core.scheduling.overtakes import Begun, begun_by, passed, passed_by
from airyard.core.scheduling.places import Place, Rule, place_of, places
from airyard.core.scheduling.plan import Reason, Running, Start, Used, Waiting
from airyard.core.scheduling.planner import plan
from airyard.core.scheduling.prospects import Prospect
from explain_yard import MINUTE_MS, NOW_MS, at, book_of, node, runs, waits, yard

WHOLE = range(8)
DAY = 1440


def explained(book: Book, run_id: int) -> Explanation:
    """Explain a run of a book."""
    made = plan(book, NOW_MS)
    seen, want = Seen(order=places(book, NOW_MS), begun=()), book.queue.runs[run_id]
    eta = etas(book, NOW_MS, wanted=[run_id]).get(run_id)
    return explain(book, made, want, seen, eta, NOW_MS, ways_out(book, made, want, eta, NOW_MS))


def test_reason_place_promise_and_expected_start() -> None:
    waiting = [waits(1, lasts=30, queued=-900), waits(2, lasts=30, queued=-100)]
    found = explained(book_of(yard(1, waiting, [runs(9, {"n0": WHOLE}, ends=10)])), 2)
    assert (found.reason, found.position, found.waiting) == (Reason.NO_FREE_NODES, 2, 2)
    assert found.message == "it asks 1 node of GPU_8xH100; 0 of 1 have 8 free now; run 9 holds devices there"
    assert found.ahead == (Ahead(rule=Rule.EARLIER, count=1, runs=(1,)),)
    assert found.eta is not None
    assert found.eta.p50_ms == at(40)
    assert found.promise is None
    first = explained(book_of(yard(1, waiting, [runs(9, {"n0": WHOLE}, ends=10)])), 1)
    assert first.promise is not None
    assert (first.promise.from_ms, first.ahead) == (at(10), ())


def test_only_the_runs_of_its_own_pools_are_ahead() -> None:
    nodes = [node("n0"), node("a0", accelerator="GPU_8xA100", model="A100", pool="a100")]
    running = [runs(8, {"n0": WHOLE}), runs(9, {"a0": WHOLE}, pool="a100")]
    waiting = [waits(1, accelerator="GPU_8xA100", model="A100", queued=-9000), waits(2)]
    found = explained(book_of(yard(nodes, waiting, running)), 2)
    assert (found.position, found.ahead) == (2, ())


def ahead_of(book: Book, run_id: int) -> dict[Rule, tuple[int, ...]]:
    return {one.rule: one.runs for one in explained(book, run_id).ahead}


def test_every_rule_by_which_others_are_ahead() -> None:
    projects = [
        ProjectPolicy(name="sure", shares=(Share(pool="h100", guarantee=8),)),
        ProjectPolicy(name="busy", shares=(Share(pool="h100"),)),
    ]
    waiting = [
        waits(1, project="busy", rank=0),
        waits(2, project="busy", queued=-20 * DAY),
        waits(3, project="sure"),
        waits(4, project="other", lasts=300),
        waits(5, project="busy", queued=-500, lasts=30),
        waits(6, project="busy", queued=-5, lasts=1),
        waits(7, project="busy", queued=-100, lasts=60),
    ]
    snapshot = yard(
        1,
        waiting,
        [runs(9, {"n0": WHOLE})],
        projects=projects,
        usage=(Used(project="busy", pool="h100", decayed=9e9),),
    )
    assert ahead_of(book_of(snapshot), 7) == {
        Rule.CLASS: (1,),
        Rule.AGED: (2,),
        Rule.GUARANTEE: (3,),
        Rule.SHARE: (4,),
        Rule.SHORTER: (6,),
        Rule.EARLIER: (5,),
    }


def test_a_run_that_has_had_its_slice_is_behind_those_that_have_not() -> None:
    sliced = waits(1, acknowledges=True, served_ms=180 * MINUTE_MS, queued=-900)
    snapshot = yard(1, [sliced, waits(2)], [runs(9, {"n0": WHOLE})], pool={"slicing": Slicing()})
    assert ahead_of(book_of(snapshot), 1) == {Rule.SLICE: (2,)}


def test_a_run_for_which_others_were_evicted_is_ahead() -> None:
    leaving = runs(9, {"n0": WHOLE}, stopping=True, evicted=True, leaving_for=2, evicted_ms=at(-1), rank=2)
    book = book_of(yard(1, [waits(1, queued=-900), waits(2)], [leaving]))
    assert ahead_of(book, 1) == {Rule.CLAIM: (2,)}
    assert explained(book, 2).reason is Reason.PREEMPTING


def begun(book: Book, run_id: int) -> Begun:
    """Let a plan that starts this run be made, and its record be kept."""
    made = replace(
        plan(book, NOW_MS), starts=(Start(run_id=run_id, seats=runs(0, {"n0": (0,)}).seats),), made_ms=NOW_MS
    )
    (one,) = begun_by(book, made, 9)
    book.drop(run_id)
    return one


OVERTAKES: list[tuple[Waiting, Waiting, str]] = [
    (
        waits(1, lasts=300, queued=-50),
        waits(2, lasts=10),
        "run 2 started before run 1: shorter predicted duration, 10 min against 5 h",
    ),
    (
        waits(1, queued=-50, rank=2),
        waits(2, rank=0),
        "run 2 started before run 1: its class is CRITICAL, not BEST_EFFORT",
    ),
    (
        waits(1, queued=-50),
        waits(2, project="sure"),
        "run 2 started before run 1: it is within the 16 devices that project sure is guaranteed in pool h100",
    ),
    (
        waits(1, queued=-50, project="busy"),
        waits(2, project="idle"),
        "run 2 started before run 1: project idle has used 0.0 of its fair share of pool h100, project busy 3.0",
    ),
    (
        waits(1, 8, 3, queued=-50, lasts=1),
        waits(2, 1, lasts=60),
        "run 2 started before run 1: its 1 device was free, the 8 devices on each of 3 nodes that run 1 asks "
        "were not",
    ),
]


@pytest.mark.parametrize(("earlier", "later", "text"), OVERTAKES)
def test_a_later_run_that_started_first_says_by_which_rule(
    earlier: Waiting, later: Waiting, text: str
) -> None:
    projects = [
        ProjectPolicy(name="sure", shares=(Share(pool="h100", guarantee=16),)),
        ProjectPolicy(name="busy"),
        ProjectPolicy(name="idle"),
    ]
    usage = (Used(project="busy", pool="h100", decayed=9e9),)
    book = book_of(
        yard(
            2,
            [earlier, later],
            [runs(9, {"n1": WHOLE})],
            projects=projects,
            usage=usage,
            pool={"reservations": 0},
        )
    )
    one = begun(book, 2)
    (told,) = passed(book, earlier, [one], NOW_MS)
    assert told.text == text
    assert passed_by(book, one, NOW_MS) == [told]


def test_beside_a_promise_the_promise_is_named() -> None:
    earlier, later = waits(1, 8, 2, queued=-50, lasts=1), waits(2, 1, lasts=20)
    book = book_of(yard(2, [earlier, later], [runs(9, {"n1": WHOLE}, ends=40)]))
    (told,) = passed(book, earlier, [begun(book, 2)], NOW_MS)
    assert told.rule == "beside"
    assert "takes nothing of what run 1 is promised for 1970-04-26" in told.text
    assert "it is predicted to last 20 min at most, nine times in ten, or" in told.text
    limited = replace(later, limit_ms=15 * MINUTE_MS)
    book = book_of(yard(2, [earlier, limited], [runs(9, {"n1": WHOLE}, ends=40)]))
    (told,) = passed(book, earlier, [begun(book, 2)], NOW_MS)
    assert "its time limit is 15 min, or" in told.text


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        ("slice", "it had had its first slice, run 2 had not"),
        ("reclaim", "project nlp took its guarantee back"),
        ("priority", "CRITICAL goes before NORMAL"),
        ("", None),
    ],
)
def test_a_victim_names_itself_and_the_right_when_the_run_starts_that_it_left_for(
    rule: str, why: str | None
) -> None:
    victim = waits(1, queued=-50, left_for=2, left_by=rule, evicted_ms=at(-1), placed_ms=at(-40), rank=1)
    winner = waits(2, rank=0 if rule == "priority" else 1, project="nlp")
    book = book_of(yard(1, [victim, winner]))
    place = Place(1, CLAIM_BAND, 0.0, 0, 2)
    one = Begun(want=winner, place=place, pool="h100", at_ms=NOW_MS, holds=())
    book.drop(2)
    (told,) = passed(book, victim, [one], NOW_MS)
    text = f"run 1 had been evicted for it ({why})" if why else "others had been evicted for it"
    assert told.text == f"run 2 started before run 1: {text}"


def test_who_was_queued_earlier_has_overtaken_nobody() -> None:
    earlier, later = waits(1, lasts=300, queued=-50), waits(2, lasts=10)
    book = book_of(yard(2, [earlier, later], [runs(9, {"n1": WHOLE})]))
    one = begun(book, 1)
    assert (passed(book, later, [one], NOW_MS), passed_by(book, one, NOW_MS)) == ([], [])


def test_nothing_is_kept_of_starts_when_nobody_waits_on() -> None:
    book = book_of(yard(1, [waits(1)]))
    assert begun_by(book, plan(book, NOW_MS), 9) == []


def victim(**changes: object) -> Running:
    return runs(9, {"n0": WHOLE}, placed=-30, **changes)  # type: ignore[arg-type]  # any field


def test_a_plain_run_may_be_evicted_by_higher_classes_after_its_first_minute() -> None:
    book = book_of(yard(1, running=[victim()]))
    found = exposure(book, book.running[9], NOW_MS)
    assert (found.classes, found.owners, found.younger) == (("CRITICAL",), (), False)
    assert found.from_ms == at(-29)
    assert found.lost_ms == 8 * 30 * MINUTE_MS
    assert (found.evicted_ms, found.spared_until_ms) == (None, None)


def test_what_is_saved_is_not_lost() -> None:
    book = book_of(yard(1, running=[victim(safe_ms=at(-5), rank=2)]))
    found = exposure(book, book.running[9], NOW_MS)
    assert (found.classes, found.lost_ms) == (("CRITICAL", "NORMAL"), 8 * 5 * MINUTE_MS)
    assert found.own_class == "BEST_EFFORT"


def test_who_borrows_may_be_evicted_by_the_owners_that_want_it_back() -> None:
    projects = [
        ProjectPolicy(name="nlp", shares=(Share(pool="h100", guarantee=8),)),
        ProjectPolicy(name="full", shares=(Share(pool="h100", guarantee=8),)),
        ProjectPolicy(name="none"),
    ]
    running = [victim(project="none"), runs(8, {"n1": WHOLE}, project="full")]
    book = book_of(yard(2, running=running, projects=projects))
    assert exposure(book, book.running[9], NOW_MS).owners == ("nlp",)
    assert exposure(book, book.running[8], NOW_MS).owners == ()


def test_a_sliced_run_yields_after_its_first_slice_and_not_too_often() -> None:
    pool = {"slicing": Slicing(first_slice_ms=120 * MINUTE_MS, apart_ms=60 * MINUTE_MS)}
    once = victim(acknowledges=True, served_ms=30 * MINUTE_MS)
    book = book_of(yard(1, running=[once], pool=pool))
    found = exposure(book, book.running[9], NOW_MS)
    assert (found.younger, found.younger_from_ms) == (True, at(60))
    book = book_of(yard(1, running=[replace(once, evicted_ms=at(-40), served_ms=0)], pool=pool))
    found = exposure(book, book.running[9], NOW_MS)
    assert (found.younger_from_ms, found.spared_until_ms) == (at(90), at(20))


def test_in_the_victims_first_minute_it_is_said_who_may_be_evicted_and_from_when() -> None:
    waiting = [waits(1, project="nlp")]
    projects = [
        ProjectPolicy(name="nlp", shares=(Share(pool="h100", guarantee=8),)),
        ProjectPolicy(name="cv"),
    ]
    running = [
        runs(8, {"n0": WHOLE}, project="cv", placed=-0.5, safe_ms=at(-0.5)),
        runs(9, {"n1": WHOLE}, project="cv", placed=-0.1, safe_ms=at(-0.1)),
    ]
    book = book_of(yard(2, waiting, running, projects=projects))
    found = explained(book, 1)
    assert found.reason is Reason.NO_FREE_NODES
    assert found.ways_out.prospect == Prospect(from_ms=at(0.5), runs=(8,), rules=("reclaim",))
    assert found.eta is not None
    assert found.eta.p50_ms >= at(0.5)
    assert book.picture() == book_of(yard(2, waiting, running, projects=projects)).picture()


def test_a_gang_needs_the_rights_against_all_its_victims() -> None:
    running = [
        runs(8, {"n0": WHOLE}, rank=2, placed=-0.5),
        runs(9, {"n1": WHOLE}, rank=2, placed=-0.1),
    ]
    found = explained(book_of(yard(2, [waits(1, 8, 2)], running)), 1)
    assert found.ways_out.prospect == Prospect(from_ms=at(0.9), runs=(8, 9), rules=("priority",))


def test_a_slice_that_will_be_over_is_named() -> None:
    pool = {"slicing": Slicing(first_slice_ms=120 * MINUTE_MS, apart_ms=60 * MINUTE_MS)}
    running = [runs(9, {"n0": WHOLE}, placed=-90, ends=600, acknowledges=True)]
    found = explained(book_of(yard(1, [waits(1)], running, pool=pool)), 1)
    assert found.ways_out.prospect == Prospect(from_ms=at(30), runs=(9,), rules=("slice",))


@pytest.mark.parametrize(
    "running",
    [
        runs(9, {"n0": WHOLE}, placed=-0.5),  # of its own class: no right comes
        runs(9, {"n0": WHOLE}, rank=2, placed=-5),  # it is evicted by now
        runs(9, {"n0": WHOLE}, rank=2, placed=-0.5, ends=0.2),  # it ends before
    ],
)
def test_no_eviction_is_announced_that_will_not_be(running: Running) -> None:
    assert explained(book_of(yard(1, [waits(1)], [running])), 1).ways_out.prospect is None


def test_who_is_leaving_already_may_be_evicted_by_nobody() -> None:
    pool = {"slicing": Slicing()}
    leaving = victim(rank=2, stopping=True, acknowledges=True, evicted_ms=at(-1), ends=1)
    found = exposure(book_of(yard(1, running=[leaving], pool=pool)), leaving, NOW_MS)
    assert (found.classes, found.owners, found.younger, found.spared_until_ms) == ((), (), False, None)
    assert (found.leaving, found.end_ms) == (True, at(1))


def test_submit_order_has_no_shorter_runs_ahead() -> None:
    snapshot = yard(
        1,
        [waits(1, lasts=300, queued=-50), waits(2, lasts=1)],
        [runs(9, {"n0": WHOLE})],
        pool={"order": PoolOrder.FIFO},
    )
    assert ahead_of(book_of(snapshot), 2) == {Rule.EARLIER: (1,)}


def test_a_parked_run_has_the_place_it_will_have() -> None:
    book = book_of(yard(1, [waits(1), waits(2, begin_ms=at(5), queued=-500)]))
    parked = book.queue.runs[2]
    assert place_of(book, parked, NOW_MS) < places(book, NOW_MS)[0]
    assert explained(book, 2).position is None


@pytest.mark.parametrize("since", [-1.0, 1.0])
def test_who_started_before_it_waited_this_time_has_not_overtaken_it(since: float) -> None:
    """It was running, held, not to begin yet or after a failure when the other one started; its place is older."""
    earlier, later = waits(1, queued=-50, since_ms=at(since)), waits(2)
    book = book_of(yard(2, [earlier, later], [runs(9, {"n1": WHOLE})], pool={"reservations": 0}))
    one = begun(book, 2)
    assert len(passed(book, earlier, [one], NOW_MS)) == len(passed_by(book, one, NOW_MS)) == (since < 0)
