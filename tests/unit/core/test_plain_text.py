"""Text of machines, checks and monitors: without control characters, bounded, and honest where it was cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airyard.core import commands as c
from airyard.core.actions import RunRemedy
from airyard.core.codec import encode_event
from airyard.core.exit_reports import exit_of
from airyard.core.health.facts import (
    CheckResult,
    CheckStatus,
    HealthEvent,
)
from airyard.core.health.idle import IdleTest
from airyard.core.health.idle_records import TestNote
from airyard.core.health.states import RemedyOutcome
from airyard.core.plain import NAME, plain, plain_evidence, plain_lines, plain_name
from core_yard import START_MS, Yard, node

LOUD = "\x1b[2J\x1b]0;owned\x07\r\n" + "x" * 2_000_000
"""Clears a terminal, renames its window, and does not end."""


def event(**changes: object) -> HealthEvent:
    told: dict[str, object] = {
        "event_id": "e",
        "rule": "xid.79",
        "machine": "a",
        "node": "a",
        "at_ms": START_MS,
        "component": "GPU",
        "severity": "CRITICAL",
        "source": "OPERATOR",
        "message": "m",
        "code": 79,
    }
    return HealthEvent.from_json({**told, **changes})


@example("\x1b" * 20, 20)
@given(st.text(), st.integers(1, 200))
def test_plain_text_is_printable_bounded_and_stays_as_it_is(text: str, most: int) -> None:
    said = plain(text, most)
    assert said.isprintable()
    assert len(said) <= most
    assert plain(said, most) == said
    said.encode()  # no half of a pair is left: it would break whoever writes it


@given(st.text())
def test_ordinary_text_is_left_alone_and_what_is_cut_says_so(text: str) -> None:
    if text.isprintable() and len(text) <= 100:
        assert plain(text, 100) == text
    assert plain("y" * 300 + text, 100).endswith(f"… (cut: {300 + len(text)} characters)")


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert plain("a\x1b[31m\u202eb\tc\r\nd\ud800") == "a\\x1b[31m\\u202eb c\\r\\nd\\ud800"
    assert plain_lines("a\n\x07b", 100) == "a\n\\x07b"
    assert plain_evidence("ab") == ("a", "b")
    assert plain_evidence("abcdefg") == ("a", "b", "c", "d", "… (3 more lines)")


def test_long_names_stay_different() -> None:
    one, other = plain_name("n" * 5_000 + "1"), plain_name("n" * 5_000 + "2")
    assert one != other
    assert max(len(one), len(other)) <= NAME
    assert plain_name(one) == one


def test_an_event_is_plain_wherever_it_comes_from() -> None:
    names = ("event_id", "rule", "machine", "node", "device_uuid", "unit")
    made = event(**dict.fromkeys(names, LOUD), message=LOUD, evidence=[LOUD] * 100, value=float("nan"))
    text = json.dumps(made.as_json(), allow_nan=False)
    assert len(text) < 10_000
    assert "\\u001b" not in text
    assert HealthEvent.from_json(made.as_json()) == made


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "7", True])
def test_a_check_with_a_value_that_is_no_number_judges_nothing(value: Any) -> None:
    with pytest.raises(ValueError, match="value is no number"):
        CheckResult(check="a.b", status=CheckStatus.PASS, message="m", value=value)


@pytest.mark.parametrize("value", [float("inf"), -(10**400), 10**400, True, "3"])
def test_an_event_with_a_value_that_is_no_number_is_kept_without_it(value: Any) -> None:
    assert event(value=value).value is None
    assert event(value=7).value == 7.0


def test_nothing_of_a_nodes_health_is_kept_as_it_was_sent() -> None:
    yard = Yard(*(node(name) for name in "abcdefgh"))
    decisions = [
        yard.do(c.HealthReported(events=(event(message=LOUD, evidence=[LOUD] * 9),), by=LOUD)),
        yard.do(
            c.IdleTestDone(
                node="b",
                test=TestNote(kind=IdleTest.DEEP, at_ms=START_MS, status=CheckStatus.FAIL, message=LOUD),
            )
        ),
    ]
    yard.tick(1)
    yard.tick(1)
    name = next(action.name for action in yard.actions if isinstance(action, RunRemedy))
    done = c.RemedyDone(node="a", name=name, outcome=RemedyOutcome.PERMANENT, message=LOUD)
    decisions.append(yard.do(done))
    assert yard.state.health["a"].waits_for.endswith(f"… (cut: {len(LOUD)} characters)")
    for decision in decisions:
        assert decision.events
        for said in decision.events:
            text = json.dumps(encode_event(said), ensure_ascii=False)
            assert "\\u00" not in text, "an escape of JSON: a control character"
            assert len(text) < 12_000


def test_what_a_runner_says_of_an_end_is_bounded_and_keeps_its_lines() -> None:
    said = exit_of({"message": "a\nb\x1b[2J" + "x" * 100_000, "fault": LOUD, "fault_message": LOUD}, 1)
    assert said.message.startswith("a\nb\\x1b[2Jxxx")
    assert max(len(said.message), len(said.fault_message), len(said.fault)) <= 8_000
