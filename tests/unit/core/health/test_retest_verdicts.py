"""What rounds of checks say of a mended node, and which events failures become."""

from __future__ import annotations

import pytest

from airyard.core.health import blame
from airyard.core.health.check_events import events_of, refused_start
from airyard.core.health.facts import CheckResult, CheckStatus, Component, Retest, Severity, Source
from airyard.core.health.retesting import judged, needed


def result(check: str, status: CheckStatus = CheckStatus.PASS, device: int | None = None) -> CheckResult:
    return CheckResult(check=check, status=status, message="m", device=device, component=Component.GPU)


def passing(level: Retest, devices: int) -> list[CheckResult]:
    return [result(check) for check in needed(level, devices)]


@pytest.mark.parametrize("level", [Retest.T1, Retest.T2, Retest.T3])
@pytest.mark.parametrize("devices", [0, 1, 8])
def test_a_level_is_passed_when_all_it_needs_passed(level: Retest, devices: int) -> None:
    assert judged(level, passing(level, devices), devices).status is CheckStatus.PASS


@pytest.mark.parametrize("status", [CheckStatus.SKIP, CheckStatus.UNKNOWN, None])
@pytest.mark.parametrize("check", needed(Retest.T3, 8))
def test_what_was_skipped_crashed_or_was_not_run_is_no_pass(check: str, status: CheckStatus | None) -> None:
    others = [one for one in passing(Retest.T3, 8) if one.check != check]
    verdict = judged(Retest.T3, [*others, *([result(check, status)] if status else [])], 8)
    assert verdict.status is CheckStatus.UNKNOWN
    assert check in verdict.message


def test_any_failure_fails_and_no_results_or_a_test_between_nodes_pass_nothing() -> None:
    failed = [*passing(Retest.T1, 8), result("site.own", CheckStatus.FAIL)]
    verdict = judged(Retest.T1, failed, 8)
    assert (verdict.status, verdict.message) == (CheckStatus.FAIL, "fail site.own: m")
    assert judged(Retest.T1, [], 0).status is CheckStatus.UNKNOWN
    assert judged(Retest.T4, passing(Retest.T4, 8), 8).status is CheckStatus.UNKNOWN


def test_only_failures_are_events_and_how_sure_a_check_is_says_how_grave() -> None:
    results = [
        *(result(f"a.{status.value}", status) for status in CheckStatus if status is not CheckStatus.FAIL),
        result("gpu.lost", CheckStatus.FAIL, 3),
        result("gpu.rows", CheckStatus.FAIL, 4),
        result("compute.gemm", CheckStatus.FAIL),
    ]

    def made() -> list[tuple[str, Severity, float]]:
        events = events_of(
            results,
            round_name="r",
            node="n1",
            machine="m1",
            at_ms=5,
            is_sure=lambda check: check != "compute.gemm",
        )
        assert {(one.source, one.confirmed, one.node) for one in events} == {(Source.CHECK, True, "n1")}
        return [(one.event_id, one.severity, blame.weight(one)) for one in events]

    assert made() == [
        ("check/r/gpu.lost/3", Severity.CRITICAL, 8.0),
        ("check/r/gpu.rows/4", Severity.HIGH, blame.CORDON_FROM),
        ("check/r/compute.gemm/", Severity.WARNING, 4.0),
    ]
    assert made() == made()


def test_a_refused_start_is_told_from_the_runners_words() -> None:
    said = "preflight: node n1 failed gpu.rows: GPU 3 has rows to remap (measured 1, limit 0); next: reset it"
    event = refused_start(said, round_name="1.0.0", node="n1", machine="m", at_ms=1, device=3, on_device=True)
    assert (event.rule, event.device, blame.weight(event)) == ("check.gpu.rows", 3, blame.CORDON_FROM)
    other = refused_start("?", round_name="x", node="n1", machine="m", at_ms=1, device=None, on_device=False)
    assert other.rule == "check.preflight"
