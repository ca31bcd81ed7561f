"""What of a round counts for the fleet, and what is usual among other nodes."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.core.health.fleet_values import (
    GEMM,
    LASTS_MS,
    STORAGE,
    Told,
    Usual,
    measured,
    usual_among,
    usual_from_json,
    usual_to_json,
    values_from_json,
)

NOW_MS = LASTS_MS + 1_000


def told(*values: float, at_ms: int = NOW_MS) -> list[Told]:
    return [
        Told(node=f"n{index}", machine=f"m{index}", value=value, at_ms=at_ms)
        for index, value in enumerate(values)
    ]


def row(check: str, status: str = "PASS", value: Any = None) -> dict[str, Any]:
    return {"check": check, "status": status, "value": value}


def test_it_is_the_median_of_five_others_and_never_the_own_value() -> None:
    six = told(700, 710, 720, 730, 740, 100)
    assert usual_among(six, "m5", NOW_MS) == Usual(median=720, nodes=5)
    assert usual_among(six, "m0", NOW_MS) == Usual(median=720, nodes=5)
    assert usual_among(six[:5], "m0", NOW_MS) is None, "four others are too few"


def test_two_bad_ones_of_five_do_not_move_it_below_a_good_one() -> None:
    found = usual_among(told(700, 690, 710, 300, 310), "other", NOW_MS)
    assert found is not None
    assert found.median == 690
    # ... and each of the bad ones is told so: of the five beside it one is bad.
    assert usual_among(told(700, 690, 710, 300, 310, 705), "m3", NOW_MS) == Usual(median=700, nodes=5)


def test_a_value_counts_for_thirty_days() -> None:
    assert usual_among(told(*[700.0] * 5, at_ms=NOW_MS - LASTS_MS), "other", NOW_MS) is not None
    assert usual_among(told(*[700.0] * 5, at_ms=NOW_MS - LASTS_MS - 1), "other", NOW_MS) is None


def test_nodes_of_one_machine_are_one() -> None:
    slots = [Told(node=f"s{index}", machine="m", value=10.0 + index, at_ms=index) for index in range(9)]
    assert usual_among([*slots], "other", 10) is None
    assert usual_among([*slots, *told(1, 2, 99, 98, at_ms=5)], "other", 10) == Usual(median=18, nodes=5)


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        ([row(GEMM, value=700), row(STORAGE, value=900.5)], {GEMM: 700, STORAGE: 900.5}),
        ([row(GEMM, value=700), row("host.disk", "WARN"), row("rdma.ports", "SKIP")], {GEMM: 700}),
        ([row(GEMM, value=700), row("host.disk", "FAIL")], {}),
        ([row(GEMM, value=700), row("host.disk", "UNKNOWN")], {}),
        ([row(GEMM, value=700), row(GEMM, "WARN", 6)], {}),
        ([row(STORAGE, "WARN", 10)], {}),
        ([row(GEMM, value=700), row(GEMM, value=690)], {GEMM: 690}),
        ([row(GEMM, value=value) for value in (None, True, "700", 0, -1, float("nan"))], {}),
        ([row("compute.memory", value=3000)], {}),
    ],
)
def test_only_what_was_passed_counts(rows: list[dict[str, Any]], values: dict[str, float]) -> None:
    assert measured(rows) == values


def test_medians_come_back_from_json_and_nonsense_is_left_out() -> None:
    usual = {GEMM: Usual(median=700.5, nodes=7)}
    assert usual_from_json(usual_to_json(usual)) == usual
    for wrong in (
        None,
        [],
        {GEMM: 700},
        {GEMM: {"median": "x", "nodes": 7}},
        {GEMM: {"median": 7}},
        {"x": {}},
    ):
        assert usual_from_json(wrong) == {}
    assert values_from_json({GEMM: 1, STORAGE: "x", "more": 2}) == {GEMM: 1.0}
    assert values_from_json(7) == {}
