"""Expected starts, worked out by hand: minutes from now."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from airyard.core.policy import PoolOrder, ProjectPolicy, Share, UserLimits
from airyard.core.scheduling.eta import etas
from airyard.core.scheduling.plan import Snapshot
from explain_yard import MINUTE_MS, NOW_MS, at, book_of, minutes, reserved, runs, waits, yard

WHOLE = range(8)
IN_SUBMIT_ORDER = {"order": PoolOrder.FIFO}


def expected(snapshot: Snapshot, **more: Any) -> dict[int, float]:
    """Return run → minutes until its median start."""
    found = etas(book_of(snapshot), NOW_MS, **more)
    return {run_id: minutes(eta.p50_ms) for run_id, eta in found.items()}


def test_one_after_the_other_on_one_node() -> None:
    waiting = [waits(1, lasts=30, queued=-30), waits(2, lasts=30, queued=-20), waits(3, lasts=30, queued=-10)]
    assert expected(yard(1, waiting, [runs(9, {"n0": WHOLE}, ends=5)])) == {1: 5, 2: 35, 3: 65}


def test_what_fits_now_starts_now() -> None:
    waiting = [waits(1, 4), waits(2, 4), waits(3, 4)]
    assert expected(yard(1, waiting)) == {1: 0, 2: 0, 3: 60}


def test_a_gang_waits_for_the_last_of_its_nodes_and_a_short_run_goes_beside_it() -> None:
    running = [runs(8, {"n0": WHOLE}, ends=10), runs(9, {"n1": WHOLE}, ends=40)]
    waiting = [waits(1, 8, 2, lasts=60, queued=-99), waits(2, 8, lasts=25), waits(3, 8, lasts=35)]
    assert expected(yard(2, waiting, running, pool=IN_SUBMIT_ORDER)) == {1: 40, 2: 10, 3: 100}


def test_without_promises_a_gang_is_passed_by_whoever_fits() -> None:
    running = [runs(8, {"n0": WHOLE}, ends=10), runs(9, {"n1": WHOLE}, ends=40)]
    waiting = [waits(1, 8, 2, lasts=60, queued=-99), waits(2, 8, lasts=25), waits(3, 8, lasts=35)]
    assert expected(yard(2, waiting, running, pool={"reservations": 0, **IN_SUBMIT_ORDER})) == {
        1: 70,
        2: 10,
        3: 35,
    }


def test_late_ends_are_the_other_case() -> None:
    running = [runs(9, {"n0": WHOLE}, ends=5, late_end_ms=at(50))]
    waiting = [
        waits(1, lasts=30, queued=-20),
        waits(2, lasts=30, likely_ms=90 * MINUTE_MS, limit_ms=80 * MINUTE_MS),
    ]
    found = etas(book_of(yard(1, [*waiting, waits(3, lasts=99)], running)), NOW_MS)
    assert [(minutes(eta.p50_ms), minutes(eta.p90_ms)) for _, eta in sorted(found.items())] == [
        (5, 50),
        (35, 80),
        (65, 160),
    ]


def test_an_attempt_that_should_have_ended_holds_its_devices_still() -> None:
    found = etas(book_of(yard(1, [waits(1)], [runs(9, {"n0": WHOLE}, ends=-5)])), NOW_MS)
    assert found[1].p50_ms == NOW_MS + 1


def test_an_eviction_takes_the_grace_of_its_class() -> None:
    running = [runs(9, {"n0": WHOLE}, ends=500, rank=2)]
    assert expected(yard(1, [waits(1), waits(2)], running)) == {1: 0.5, 2: 60.5}


def test_a_begin_and_a_hold() -> None:
    waiting = [waits(1, begin_ms=at(20), queued=-99), waits(2, lasts=50), waits(3, held=True)]
    assert expected(yard(1, waiting)) == {2: 0, 1: 50}


def test_a_reservation_ends_before_who_cannot_finish_in_time_starts() -> None:
    snapshot = yard(1, [waits(1, lasts=60), waits(2, lasts=20)], reservations=(reserved(1, ["n0"], 30, 90),))
    assert expected(snapshot) == {2: 0, 1: 90}


def test_a_ceiling_is_kept_to() -> None:
    project = ProjectPolicy(name="nlp", shares=(Share(pool="h100", ceiling=8),))
    waiting = [waits(1, project="nlp", queued=-30), waits(2, project="nlp"), waits(3, 16, 1, project="nlp")]
    assert expected(yard(3, waiting, projects=[project])) == {1: 0, 2: 60}


def test_a_limit_of_users_is_kept_to() -> None:
    project = ProjectPolicy(name="nlp", per_user=UserLimits(running=1))
    waiting = [
        waits(1, 1, project="nlp"),
        waits(2, 1, project="nlp"),
        waits(3, 1, project="nlp", owner="eve"),
    ]
    assert expected(yard(1, waiting, projects=[project])) == {1: 0, 2: 60, 3: 0}


def test_what_never_fits_or_may_not_run_has_none() -> None:
    waiting = [waits(1, 8, 2), waits(2, project="nlp"), waits(3)]
    assert expected(yard(1, waiting, spent=frozenset({"nlp"}))) == {3: 0}


def test_only_what_is_wanted_is_waited_for() -> None:
    waiting = [waits(index, lasts=10, queued=index - 100) for index in range(1, 50)]
    found = expected(yard(1, waiting), wanted=[3])
    assert (found[3], len(found)) == (20, 3)


def test_a_project_that_falls_below_its_guarantee_goes_first_from_then_on() -> None:
    """Run 9 ends after 5 minutes, and with it what project sure has: its waiting run goes before an earlier one."""
    project = ProjectPolicy(name="sure", shares=(Share(pool="h100", guarantee=8),))
    running = [runs(8, {"n0": WHOLE}, ends=10), runs(9, {"n1": WHOLE}, ends=5, project="sure")]
    waiting = [waits(1, lasts=60, queued=-99), waits(2, lasts=60, project="sure")]
    snapshot = yard(2, waiting, running, projects=[project])
    for plans in (1, 100):
        assert expected(snapshot, plans=plans) == {2: 5, 1: 10}


def test_the_book_is_left_as_it_was() -> None:
    book = book_of(yard(2, [waits(1, 8, 2), waits(2)], [runs(9, {"n0": WHOLE})]))
    before = deepcopy(book.picture())
    etas(book, NOW_MS)
    assert book.picture() == before
