"""What would let a run start now, worked out by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from airyard.core.cluster import Cordon
from airyard.core.policy import ProjectPolicy, Share, UserLimits
from airyard.core.scheduling.counterfactual import Change, Counterfactual, counterfactuals
from airyard.core.scheduling.plan import Snapshot, Waiting
from explain_yard import MINUTE_MS, NOW_MS, at, book_of, node, reserved, runs, waits, yard

WHOLE = range(8)


def found(snapshot: Snapshot, want: Waiting, **more: Any) -> dict[Change, Counterfactual]:
    """Return the counterfactuals of a run by their change."""
    return {one.change: one for one in counterfactuals(book_of(snapshot), want, NOW_MS, **more)}


def told(snapshot: Snapshot, want: Waiting, change: Change, **more: Any) -> tuple[str, Mapping[str, Any]]:
    """Return text and detail of one of them."""
    one = found(snapshot, want, **more)[change]
    return one.text, one.detail


def test_as_many_nodes_as_are_free() -> None:
    want = waits(1, 8, 4)
    snapshot = yard(5, [want], [runs(9, {"n0": WHOLE, "n1": WHOLE}, ends=90)])
    assert told(snapshot, want, Change.FEWER_NODES) == ("now with 3 nodes instead of 4", {"nodes": 3})
    assert Change.FEWER_DEVICES not in found(snapshot, want)


def test_as_many_devices_as_are_free() -> None:
    want = waits(1, 8)
    snapshot = yard(1, [want], [runs(9, {"n0": range(3)})])
    assert told(snapshot, want, Change.FEWER_DEVICES) == (
        "now with 5 GPUs instead of 8",
        {"accelerator": "GPU_5xH100"},
    )


def test_another_model_and_another_pool() -> None:
    want = waits(1, 8, pool="h100")
    others = [
        node("n0"),
        node("b0", pool="other"),
        node("a0", accelerator="GPU_8xA100", model="A100", pool="a100"),
        node("t0", 4, accelerator="GPU_4xT4", model="T4", pool="t4"),
    ]
    snapshot = yard(others, [want], [runs(9, {"n0": WHOLE})])
    assert told(snapshot, want, Change.ANY_POOL)[0] == "now in pool other, if it left the pool open"
    assert told(snapshot, want, Change.OTHER_ACCELERATOR) == (
        "now on GPU_8xA100",
        {"accelerator": "GPU_8xA100", "pool": "a100"},
    )


def test_over_fabrics() -> None:
    want = waits(1, 8, 2, same_fabric=True)
    snapshot = yard(
        [node("n0", fabric="f0"), node("n1", fabric="f1"), node("n2", fabric="f1")],
        [want],
        [runs(9, {"n1": WHOLE})],
    )
    assert told(snapshot, want, Change.ANY_FABRIC)[0] == "now if it may span fabrics"


def test_a_limit_short_enough_to_end_before_a_promise() -> None:
    """n1 is promised to the gang for in 40 minutes; until then somebody else may have n0."""
    want = waits(2, lasts=600)
    running = [runs(9, {"n1": WHOLE}, ends=40.5)]
    snapshot = yard(2, [waits(1, 8, 2, queued=-90_000), want], running)
    assert told(snapshot, want, Change.SHORTER_LIMIT) == (
        "now with a time limit of 40 min or less; it is predicted to last 10 h",
        {"timeout_s": 2400},
    )
    sure = replace(want, expected_ms=30 * MINUTE_MS)
    snapshot = yard(2, [waits(1, 8, 2, queued=-90_000), sure], running)
    assert told(snapshot, sure, Change.SHORTER_LIMIT)[0] == "now with a time limit of 40 min or less"


def test_a_higher_class_that_evicts_says_whom() -> None:
    want = waits(1, rank=2)
    snapshot = yard(1, [want], [runs(9, {"n0": WHOLE}, rank=2)])
    one = found(snapshot, want)[Change.HIGHER_CLASS]
    assert (one.text, one.evicts) == ("once run 9 has left as NORMAL", (9,))


def test_a_higher_class_that_goes_before_others() -> None:
    want = waits(2, rank=1)
    snapshot = yard(1, [waits(1, queued=-9000), want])
    one = found(snapshot, want)[Change.HIGHER_CLASS]
    assert (one.text, one.evicts) == ("now as CRITICAL", ())


def test_who_may_not_be_critical_is_not_told_to() -> None:
    want = waits(2, project="nlp")
    project = ProjectPolicy(name="nlp", critical=("eve",))
    snapshot = yard(1, [waits(1, queued=-9000), want], projects=[project])
    assert Change.HIGHER_CLASS not in found(snapshot, want)


def test_the_ends_that_place_it() -> None:
    want = waits(1, 8, 2)
    running = [
        runs(7, {"n0": WHOLE}, ends=30),
        runs(8, {"n1": range(4)}, ends=10),
        runs(9, {"n2": WHOLE}, ends=20),
    ]
    one = found(yard(3, [want], running), want, expected_ms=at(20))[Change.RUNS_END]
    assert (one.text, one.at_ms) == ("when runs 8, 9 end", at(20))
    assert Change.RUNS_END not in found(yard(3, [want], running), want)


def test_of_the_ends_only_those_on_its_nodes_are_named() -> None:
    """Run 8 ends first, but the gang needs whole nodes, and run 6 stays beside it."""
    want = waits(1, 8)
    running = [
        runs(6, {"n1": range(4)}, ends=99),
        runs(8, {"n1": range(4, 8)}, ends=10),
        runs(9, {"n0": WHOLE}, ends=20),
    ]
    one = found(yard(2, [want], running), want, expected_ms=at(20))[Change.RUNS_END]
    assert (one.text, one.detail) == ("when run 9 ends", {"runs": [9]})


def test_those_that_leave_for_it_are_the_ends_it_waits_for() -> None:
    """Run 6 would end first, but its node is not the one that is being left for the run."""
    want = waits(1, rank=0)
    running = [
        runs(6, {"n0": WHOLE}, ends=1),
        runs(7, {"n1": WHOLE}, ends=2, stopping=True, evicted=True, leaving_for=1, evicted_ms=at(-0.1)),
    ]
    one = found(yard(2, [want], running), want, expected_ms=at(2))[Change.RUNS_END]
    assert (one.text, one.detail, one.at_ms) == ("when run 7 ends", {"runs": [7]}, at(2))


def test_no_end_is_named_that_is_not_needed() -> None:
    """Run 6 ends first, on the same node; but what run 7 leaves is enough."""
    want = waits(1, 4)
    running = [
        runs(5, {"n0": range(3)}, ends=99),
        runs(6, {"n0": (3,)}, ends=1),
        runs(7, {"n0": range(4, 8)}, ends=2),
    ]
    assert found(yard(1, [want], running), want, expected_ms=at(2))[Change.RUNS_END].detail == {"runs": [7]}


def test_another_shape_is_tried_with_what_is_predicted_of_that_shape() -> None:
    """n1 is promised for in 40 minutes: 10 minutes on one node would do, but one node takes two hours."""
    want = waits(2, 8, 2, lasts=10)
    running = [runs(9, {"n1": WHOLE}, ends=40)]
    snapshot = yard(2, [waits(1, 8, 2, queued=-90_000), want], running)
    assert found(snapshot, want)[Change.FEWER_NODES].detail == {"nodes": 1}
    longer = found(snapshot, want, lasting=lambda changed: (at(120) - NOW_MS, at(120) - NOW_MS))
    assert Change.FEWER_NODES not in longer


def test_a_reservation_that_ends() -> None:
    want = waits(1, lasts=60, grace_ms=120_000)
    snapshot = yard(1, [want], reservations=(reserved(4, ["n0"], 30, 90),))
    one = found(snapshot, want)[Change.RESERVATION_ENDS]
    assert (one.text, one.at_ms) == ("when reservation 4 ends", at(90))
    assert found(snapshot, want)[Change.SHORTER_LIMIT].detail == {"timeout_s": 27 * 60}


def test_nodes_that_come_back() -> None:
    want = waits(1, 8, 2)
    snapshot = yard([node("n0"), node("n1", cordoned=True), node("n2", alive=False)], [want])
    assert told(snapshot, want, Change.NODES_RETURN) == ("when n1 is back", {"nodes": ["n1"]})


def test_of_a_node_that_somebody_closed_it_is_said_who_and_why() -> None:
    want = waits(1, 8, 2)
    fan = Cordon(by="op", at_ms=NOW_MS, reason="fan")
    snapshot = yard([node("n0"), node("n1", cordoned=True, cordon=fan)], [want])
    text = "when n1 (cordoned by op: fan) is back"
    assert told(snapshot, want, Change.NODES_RETURN) == (text, {"nodes": ["n1"]})


def test_a_higher_ceiling_and_a_smaller_gang_below_it() -> None:
    want = waits(1, 8, 3, project="nlp")
    project = ProjectPolicy(name="nlp", shares=(Share(pool="h100", ceiling=16),))
    snapshot = yard(4, [want], [runs(9, {"n0": WHOLE}, project="nlp")], projects=[project])
    assert told(snapshot, want, Change.HIGHER_CEILING) == (
        "now if project nlp might have 32 devices of pool h100, not 16",
        {"project": "nlp", "pool": "h100", "ceiling": 32},
    )
    assert found(snapshot, want)[Change.FEWER_NODES].detail == {"nodes": 1}


def test_a_users_limits() -> None:
    want = waits(1, 8, project="nlp")
    project = ProjectPolicy(name="nlp", per_user=UserLimits(running=1, devices=8))
    running = [runs(9, {"n0": WHOLE}, project="nlp", owner="ada")]
    snapshot = yard(2, [want], running, projects=[project])
    assert told(snapshot, want, Change.HIGHER_USER_LIMIT) == (
        "now if ada might have 2 runs and 16 devices at a time in project nlp",
        {"project": "nlp", "user": "ada", "running": 2, "devices": 16},
    )


def test_a_spent_budget() -> None:
    want = waits(1, project="nlp")
    snapshot = yard(1, [want], spent=frozenset({"nlp"}))
    assert told(snapshot, want, Change.BUDGET)[0] == "now if project nlp had budget left"


@pytest.mark.parametrize(
    ("changes", "change", "text", "at_ms"),
    [
        ({"held": True}, Change.RELEASED, "once it is released", None),
        ({"begin_ms": at(30)}, Change.BEGUN, "when its begin comes", at(30)),
    ],
)
def test_what_is_parked(changes: dict[str, Any], change: Change, text: str, at_ms: int | None) -> None:
    want = waits(1, **changes)
    (only,) = found(yard(1, [want]), want).values()
    assert (only.change, only.text, only.at_ms) == (change, text, at_ms)
    assert found(yard(1, [want], [runs(9, {"n0": WHOLE})]), want) == {}


def test_who_waits_after_a_failure_only_waits() -> None:
    want = waits(1, not_before_ms=at(1))
    assert found(yard(1, [want]), want) == {}


def test_trials_are_bounded() -> None:
    want = waits(1, 8, 4)
    assert found(yard(3, [want]), want, trials=0) == {}
