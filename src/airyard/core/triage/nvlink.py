"""Decodes what the driver says of NVLink: Xid 74 by its registers, Xid 144 to 150 by their first word, SXid by number.

Owns: bit rules and lists. Must not know: lines of a log (``kernel_lines.py``), repetition over time.

Source: NVSentinel's bit rules for Xid 74, the sub-table of NVIDIA's Xid catalogue for 144 to 150, the fabric manager's
guide for SXid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class LinkVerdict(Enum):
    """What an NVLink event asks for."""

    IGNORE = "ignore"
    RESET = "reset"
    RESET_AND_PEER = "reset_and_peer"
    """Reset, and look at the device at the other end before this one alone is blamed."""
    FOLLOW_154 = "follow_154"
    """The driver's own Xid 154 beside it says what to do."""
    REPLACE = "replace"


_XID74_ONCE = {(0, 1), (0, 20), (0, 21), (0, 22), (2, 13), (3, 18)}
"""(register, bit) that need a person at the first time."""
_XID74_TWICE = {
    *((0, bit) for bit in (4, 5, 8, 9, 12, 16, 17, 24, 27, 28, 29)),
    *((2, bit) for bit in (0, 1, 2, 6, 16, 17, 18, 19)),
}
"""(register, bit) that need a person at the second time on one link within 24 hours."""


def xid74(registers: Sequence[int], *, earlier: bool) -> LinkVerdict:
    """Judge an Xid 74 by its registers REG0 to REG6; ``earlier``: the link had one in the last 24 hours."""
    bits = {(number, bit) for number, word in enumerate(registers) for bit in range(32) if word >> bit & 1}
    if bits & _XID74_ONCE or (earlier and bits & _XID74_TWICE):
        return LinkVerdict.REPLACE
    return LinkVerdict.RESET


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkEvent:
    """The first word of Xid 144 to 150, taken apart."""

    unit: str
    sub_code: int
    verdict: LinkVerdict


_RLW_FATAL = ("REMAP", "RSPCOL", "SRC_TRACK", "TAGSTATE")
_NETIR_LINK_DOWN_PEER = frozenset({37})
_NETIR_LINK_IGNORE = frozenset({38})


def sub_code(first_word: int) -> int:
    """Return bits 20 to 25."""
    return first_word >> 20 & 0x3F


def link_event(code: int, unit: str, fatal: bool | None, first_word: int | None) -> LinkEvent:
    """Judge an Xid 144 to 150. ``unit`` and ``fatal`` are its line's words; the word *Fatal* breaks ties."""
    sub = sub_code(first_word) if first_word is not None else 0
    return LinkEvent(unit=unit, sub_code=sub, verdict=_verdict(code, unit.upper(), fatal, sub))


def _verdict(code: int, unit: str, fatal: bool | None, sub: int) -> LinkVerdict:
    if fatal is False or code in (147, 148):
        return LinkVerdict.IGNORE
    if code == 149 and "LINK" in unit:
        if sub in _NETIR_LINK_DOWN_PEER:
            return LinkVerdict.RESET_AND_PEER
        return LinkVerdict.IGNORE if sub in _NETIR_LINK_IGNORE else LinkVerdict.RESET
    if code == 149 and "BER" in unit:
        return LinkVerdict.IGNORE
    if code == 145 and not any(name in unit for name in _RLW_FATAL):
        return LinkVerdict.FOLLOW_154 if fatal else LinkVerdict.IGNORE
    if code in (149, 150) or fatal:
        return LinkVerdict.RESET
    return LinkVerdict.IGNORE


class SwitchVerdict(Enum):
    """How bad an event of an NVSwitch is."""

    MINOR = "minor"
    MAYBE_FATAL = "maybe_fatal"
    """It hits the jobs on that switch: reboot, and look closer when it comes again."""
    FATAL = "fatal"
    """The whole fabric has to be reset, and the host rebooted."""
    UNKNOWN = "unknown"


_MINOR = {
    11004, 11012, 11021, 11022, 11023, 12021, 12023, 12028, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065,
    19068, 19071, 19084, 20001, 20009, 20012, 22013, 24001, 24002, 24003,
}  # fmt: skip
_MAYBE_FATAL = {
    10001, 10002, 10004, 10005, 11001, 11009, 11013, 11018, 11019, 11020, 12001, 12002, 12022, 12024, 12025, 12026,
    12027, 12030, 12031, 12032, 14017, 15001, 15006, 15009, 15010, 15012, 15013, 19047, 19048, 19054, 19056, 19058,
    19060, 19061, 19063, 19064, 19066, 19067, 19069, 19070, 20034, 22012, 24004, 24005, 24006, 24007,
}  # fmt: skip
_FATAL = {10003, 12020, 22003, 22011, *range(23001, 23018)}


def switch_event(code: int, fatal: bool | None) -> SwitchVerdict:
    """Judge an SXid; ``fatal`` is the line's own word, which decides where the number is in no list."""
    if code in _FATAL:
        return SwitchVerdict.FATAL
    if code in _MAYBE_FATAL:
        return SwitchVerdict.MINOR if fatal is False else SwitchVerdict.MAYBE_FATAL
    if code in _MINOR:
        return SwitchVerdict.MINOR
    if fatal is None:
        return SwitchVerdict.UNKNOWN
    return SwitchVerdict.MAYBE_FATAL if fatal else SwitchVerdict.MINOR
