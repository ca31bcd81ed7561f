"""What is known of Xids, and which of a burst is the root."""

from __future__ import annotations

import pytest

from airyard.core.health.facts import Remedy
from airyard.core.triage.causes import Action, FailureClass
from airyard.core.triage.nvlink import (
    LinkVerdict,
    SwitchVerdict,
    link_event,
    sub_code,
    switch_event,
    xid74,
)
from airyard.core.triage.xid import TABLE, Weight, xid_facts

APPLICATION = (13, 31, 43, 45, 63, 68, 69, 92, 109)


def test_every_number_of_the_catalogue_has_an_answer() -> None:
    for code in range(1, 173):
        assert xid_facts(code).code == code
    assert xid_facts(171).weight is Weight.CASCADE
    unused = xid_facts(59)
    assert (unused.weight, unused.remedy) == (Weight.SOFT, Remedy.NONE)


@pytest.mark.parametrize("code", APPLICATION)
def test_what_programs_bring_about_is_never_hard(code: int) -> None:
    assert xid_facts(code).weight is not Weight.HARD


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (79, Action.CORDON_REBOOT),
        (48, Action.CORDON_RESET),
        (95, Action.CORDON_RESET),
        (64, Action.REPLACE),
        (119, Action.CORDON_RESET),
        (74, Action.CORDON_RESET),
        (167, Action.CORDON_REBOOT),
        (157, Action.REPLACE),
    ],
)
def test_what_is_hard_asks_for_its_remedy(code: int, action: Action) -> None:
    facts = xid_facts(code)
    assert (facts.weight, facts.action) == (Weight.HARD, action)


def test_a_firmware_that_hangs_is_the_drivers() -> None:
    assert {xid_facts(code).failure_class for code in (119, 120)} == {FailureClass.DRIVER}


def test_details_of_a_double_bit_error_rank_with_it() -> None:
    assert TABLE[171].precedence == TABLE[172].precedence == TABLE[48].precedence


@pytest.mark.parametrize(
    ("code", "unit", "fatal", "word", "sub", "verdict"),
    [
        (149, "NETIR_LINK_EVT", True, 0x025001C6, 37, LinkVerdict.RESET_AND_PEER),
        (149, "NETIR_LINK_EVT", True, 0x026001C6, 38, LinkVerdict.IGNORE),
        (149, "NETIR_INT", True, 0x000FE406, 0, LinkVerdict.RESET),
        (145, "RLW_RXPIPE", False, 0x0409A0C2, 0, LinkVerdict.IGNORE),
        (145, "RLW_REMAP", True, 0x00410082, 4, LinkVerdict.RESET),
        (147, "TREX", True, 0, 0, LinkVerdict.IGNORE),
        (150, "MSE_WATCHDOG", True, 0, 0, LinkVerdict.RESET),
        (144, "SAW_MVB", False, 0x001A4002, 1, LinkVerdict.IGNORE),
    ],
)
def test_nvlink_events_are_taken_apart(
    code: int, unit: str, fatal: bool, word: int, sub: int, verdict: LinkVerdict
) -> None:
    assert sub_code(word) == sub
    assert link_event(code, unit, fatal, word).verdict is verdict


def test_registers_of_an_nvlink_error() -> None:
    assert xid74((1 << 1,), earlier=False) is LinkVerdict.REPLACE
    assert xid74((1 << 4,), earlier=False) is LinkVerdict.RESET
    assert xid74((1 << 4,), earlier=True) is LinkVerdict.REPLACE
    assert xid74((0, 0, 1 << 13), earlier=False) is LinkVerdict.REPLACE
    assert xid74((), earlier=True) is LinkVerdict.RESET


def test_switch_events_by_their_lists_and_else_by_their_word() -> None:
    assert switch_event(22013, False) is SwitchVerdict.MINOR
    assert switch_event(20034, True) is SwitchVerdict.MAYBE_FATAL
    assert switch_event(23001, None) is SwitchVerdict.FATAL
    assert switch_event(23017, False) is SwitchVerdict.FATAL
    assert switch_event(99999, None) is SwitchVerdict.UNKNOWN
    assert switch_event(99999, True) is SwitchVerdict.MAYBE_FATAL
