"""Reports of one's own monitors: known rules have their table's facts; what cannot be is refused by its name."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from airyard.core.decide.reporting import located
from airyard.core.errors import AiryardError, NotFound, UserError
from airyard.core.health import blame, reports
from airyard.core.health.facts import Component, HealthEvent, Remedy, Retest, Severity, Source
from airyard.core.triage.xid import TABLE, Weight
from core_yard import START_MS, Yard, node

NOW_MS = 1_800_000_000_000
LEAST = {"event_id": "e1", "rule": "nic.down", "node": "a"}


def read(**fields: Any) -> Any:
    """Read a report of one event."""
    return reports.read({**LEAST, **fields}, NOW_MS)


def test_the_least_that_is_said_is_enough() -> None:
    event = read()
    assert (event.node, event.at_ms, event.severity, event.source) == (
        "a",
        NOW_MS,
        Severity.HIGH,
        Source.OPERATOR,
    )
    assert (event.component, event.remedy, event.retest) == (Component.HOST, Remedy.NONE, Retest.T1)
    assert event.message == "nic.down, reported by hand"
    assert read(device=1).component is Component.GPU


def test_every_field_of_an_event_is_taken_as_it_is_said_and_documented() -> None:
    said = HealthEvent(
        event_id="e", rule="site.fan", machine="m", at_ms=NOW_MS - 1, component=Component.GPU_MEMORY,
        severity=Severity.WARNING, source=Source.RDMA, message="fan 2 stands", node="n", device=1,
        device_uuid="u", code=3, value=2.5,
        unit="rpm", remedy=Remedy.REBOOT, retest=Retest.T4, confirmed=False, evidence=("fan2: 0 rpm",),
        rule_version=2, clock_reasons=8,
    )  # fmt: skip
    names = {field.name for field in fields(HealthEvent)}
    assert set(said.as_json()) == names  # none is at its default
    assert reports.read(said.as_json(), NOW_MS) == said
    page = (Path(__file__).parents[4] / "docs" / "health.md").read_text("utf-8")
    table = page.partition('<a id="reports">')[2].partition("**Checks on request.**")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == names


@pytest.mark.parametrize("code", sorted(TABLE))
def test_an_xid_is_weighed_mended_and_tested_as_its_table_says(code: int) -> None:
    facts, event = TABLE[code], read(rule=f"xid.{code}")
    assert event.code == code
    if facts.weight is Weight.HARD:
        assert blame.weight(event) >= blame.CORDON_FROM
        assert (event.severity, event.remedy, event.retest) == (
            Severity.CRITICAL,
            facts.remedy,
            facts.retest,
        )
    else:
        assert blame.weight(event) < blame.CORDON_FROM
    assert event.message.startswith(f"Xid {code}")


def test_other_rules_of_the_kernels_log_are_known_too_and_a_word_of_ones_own_goes_first() -> None:
    lost, nic = read(rule="gpu.lost"), read(rule="net.mlx5")
    assert (lost.severity, lost.remedy, lost.retest) == (Severity.CRITICAL, Remedy.REBOOT, Retest.T3)
    assert (nic.component, nic.retest) == (Component.NETWORK, Retest.T4)
    own = read(rule="xid.79", severity="WARNING", remedy="POWER_CYCLE", retest="T4", message="mine")
    assert (own.severity, own.remedy, own.retest, own.message) == (
        Severity.WARNING,
        Remedy.POWER_CYCLE,
        Retest.T4,
        "mine",
    )


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rule": None}, "rule: it is missing"),
        ({"rule": "a b c!"}, "rule: 'a b c!' is no name"),
        ({"rule": "r" * 101}, "rule: it has 101 characters"),
        ({"rule": "xid.many"}, "rule: xid. is followed by its number"),
        ({"rule": "xid.-1"}, "rule: xid. is followed by its number"),
        ({"event_id": ""}, "event_id: it is empty"),
        ({"event_id": 7}, "event_id: it is no text"),
        ({"node": ""}, "node: it is missing"),
        ({"message": "m" * 100_000}, "message: it has 100,000 characters, 500 are the most"),
        ({"evidence": ["x"] * 21}, "evidence: it is no list of 20 lines"),
        ({"evidence": "line"}, "evidence: it is no list"),
        ({"evidence": ["x" * 501]}, "evidence: it has 501 characters"),
        ({"severity": "BAD"}, "severity: 'BAD' is none of"),
        ({"severity": 3}, "severity: 3 is none of"),
        ({"confirmed": "false"}, "confirmed: it is neither true nor false"),
        ({"at_ms": 10**30}, "at_ms: it is not within a day"),
        ({"at_ms": NOW_MS - 86_400_000}, "at_ms: it is not within a day"),
        ({"at_ms": True}, "at_ms: it is no whole number"),
        ({"device": -1}, "device: it is no whole number"),
        ({"device": 1.0}, "device: it is no whole number"),
        ({"value": float("nan")}, "value: it is no number"),
        ({"value": 10**400}, "value: it is no number"),
        ({"unit": "\x1b" * 21}, "unit: it has 21 characters"),
        ({"severty": "HIGH"}, "there is no field 'severty'; did you mean 'severity'?"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        read(**fields)
    assert said in refused.value.message
    assert refused.value.code == "BAD_HEALTH_EVENT"
    assert refused.value.fix is not None
    assert len(refused.value.message) < 500


def test_texts_are_one_line_each_and_a_clock_that_is_ahead_says_now() -> None:
    event = read(message="fan\x1b[31m new\nline", evidence=["a\x00b"], at_ms=NOW_MS + 60_000)
    assert (event.message, event.evidence, event.at_ms) == (
        "fan\\x1b[31m new\\nline",
        ("a\\x00b",),
        NOW_MS,
    )


YARD = Yard(node("a"), node("b", machine="m"), node("c", None, machine="m"))


@pytest.mark.parametrize(
    ("fields", "kind", "said"),
    [
        ({"node": "bb"}, NotFound, "there is no node 'bb'"),
        ({"node": "", "machine": "x"}, NotFound, "there is no machine 'x'"),
        ({"node": "a", "machine": "m"}, UserError, "node a is of machine a, not of m"),
        ({"node": "a", "device": 99}, NotFound, "node a has no device 99; it has 0, 1, 2"),
        ({"node": "c", "device": 3}, NotFound, "node c has no device 3"),
        ({"node": "a", "device_uuid": "b-1"}, NotFound, "node a has no device 'b-1'"),
        ({"node": "", "machine": "m", "device": 1}, UserError, "is of a node, and this names none"),
        ({"node": "", "machine": "m", "device_uuid": "a-1"}, NotFound, "machine m has no device 'a-1'"),
    ],
)
def test_what_is_not_there_is_refused_with_a_next_step(
    fields: dict[str, Any], kind: type[AiryardError], said: str
) -> None:
    with pytest.raises(kind) as refused:
        located(YARD.state, [read(**fields)])
    assert said in refused.value.message
    assert refused.value.fix is not None


def test_who_is_there_is_found() -> None:
    one, two, three = located(
        YARD.state,
        [read(), read(node="", machine="m", device_uuid="b-1"), read(node="b", device_uuid="b-1")],
    )
    assert (one.machine, two.node, three.device, three.machine) == ("a", "", 1, "m")
    assert one.at_ms != START_MS


def test_lines_of_evidence_beyond_those_that_are_kept_are_told_of() -> None:
    lines = [f"line {number}" for number in range(7)]
    event = read(evidence=lines)
    assert event.evidence == (*lines[:4], "… (3 more lines)")
    assert (
        reports.left_out({"evidence": lines}, place=2)
        == "event 2: of 7 lines of evidence the first 4 are kept"
    )
    assert reports.left_out({"evidence": lines[:5]}) == reports.left_out({}) == ""
