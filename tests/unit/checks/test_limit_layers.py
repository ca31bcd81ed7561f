"""Whose limit a check went by: kept when the limit is scaled, never guessed from equal values."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterable
from typing import Any

import pytest

from airyard.checks import running
from airyard.checks.contract import Check, Probe, Site, Thresholds, failed
from airyard.checks.limit import Limit, whose, with_layer
from airyard.checks.thresholds import limits, of_pool, packaged, wrong_of_pool
from airyard.core.health.check_events import events_of, line_of
from airyard.core.health.facts import CheckResult, Component, Retest
from airyard.core.health.retesting import judged

POOL = {"all": {"disk_free_share_fail": 0.5, "nproc_warn": 65536}, "H100": {"nodes_gb_s": 80}}


def of(pool: dict[str, Any]) -> Thresholds:
    return limits(of_pool(packaged(), pool, "big"), "H100")


def test_a_scaled_limit_keeps_its_layer() -> None:
    found = of(POOL)
    for scaled in (
        found["disk_free_share_fail"] * 100,
        100 * found["disk_free_share_fail"],
        found["disk_free_share_fail"] / 2,
        1 - found["disk_free_share_fail"],
        max(1.0, found["disk_free_share_fail"] * 3),
        (found["disk_free_share_fail"] + 1) * found["small_message_share"],
    ):
        assert whose(scaled) == "disk_free_share_fail of pool big"
    assert whose(found["nodes_gb_s"] * found["disk_free_share_fail"]) == (
        "nodes_gb_s of pool big, disk_free_share_fail of pool big"
    )
    assert whose(found["copy_gb_s"] * 2) == "", "a packaged one is nobody's own"
    assert whose(7.0) == ""


def test_equal_values_are_told_apart() -> None:
    found = of(POOL)
    assert found["nofile_warn"] == found["nproc_warn"]
    assert whose(found["nofile_warn"]) == ""
    assert whose(found["nproc_warn"]) == "nproc_warn of pool big"


def test_it_is_a_plain_number_everywhere_else() -> None:
    limit = of(POOL)["disk_free_share_fail"] * 100
    assert isinstance(limit, Limit)
    for other in (copy.deepcopy(limit), pickle.loads(pickle.dumps(limit))):
        assert (type(other), other) == (float, 50.0)
    assert json.dumps(limit) == "50.0"
    assert f"{limit:g}" == "50"


def share(read: float, found: Thresholds) -> Iterable[CheckResult]:
    least = found["disk_free_share_fail"] * 100
    yield failed("own.disk", "little room", "tidy", Component.DISK, value=read, threshold=least, unit="%")


def test_the_layer_reaches_events_and_the_verdict_of_a_test() -> None:
    check = Check(name="own.disk", title="t", passes="p", judge=share)
    probe = Probe(name="own", collect=lambda site: 7.0, checks=(check,))
    (result,) = running.run([probe], Site(), of_pool(packaged(), POOL, "big"))
    told = "(measured 7, limit 50 %: disk_free_share_fail of pool big)"
    assert told in line_of(result)
    (event,) = events_of([result], round_name="r", node="n", machine="m", at_ms=1, is_sure=lambda _: True)
    assert told in event.evidence[0]
    assert told in judged(Retest.T1, [result], 0).message
    (packaged_one,) = running.run([probe], Site(), packaged())
    assert "limit" not in with_layer(packaged_one).details


@pytest.mark.parametrize("value", ["7", None, True, float("nan"), float("inf"), -1, [], 10**400])
def test_what_no_limit_can_be_is_named_and_the_others_hold(value: Any) -> None:
    told = {"all": {"cpus_least": value, "nvme_least": 3}, "H100": None}
    found = limits(of_pool(packaged(), told, "big"), "H100")
    assert (found["cpus_least"], found["nvme_least"]) == (0, 3)
    assert wrong_of_pool(told, "big").startswith("limits of pool big cannot be used: [all] cpus_least is no ")
    assert wrong_of_pool(POOL, "big") == ""


@pytest.mark.parametrize("tables", [None, [], "x", 7])
def test_what_are_no_tables_changes_nothing(tables: Any) -> None:
    assert of_pool(packaged(), tables, "big") == packaged()
    assert "no tables" in wrong_of_pool(tables, "big")
