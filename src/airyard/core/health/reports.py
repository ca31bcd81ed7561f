"""What monitors of one's own may report of a node: each field checked, and what a known rule says filled in.

Owns: the limits of these fields, their defaults. Must not know: which nodes there are, the wire.
Agents' own events do not come this way: what they cannot know is not asked of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from enum import Enum
from typing import Any, TypeVar

from airyard.core.errors import Fix, UserError
from airyard.core.health.blame import COUNTS_MS
from airyard.core.health.facts import Component, HealthEvent, Remedy, Retest, Severity, Source
from airyard.core.health.known_rules import facts_of
from airyard.core.plain import LINES, is_number, plain
from airyard.core.policy_rules import listed, near
from airyard.core.wording import moment

LONGEST_NAME = 200
LONGEST_RULE = 100
LONGEST_TEXT = 500
MOST_LINES = 20
"""That a report may have. Of more than ``plain.LINES`` the first are kept, and it is said how many were not."""
_RULE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_FIELDS = tuple(field.name for field in fields(HealthEvent))
_Word = TypeVar("_Word", bound=Enum)


def read(data: Mapping[str, Any], now_ms: int, *, place: int = 0) -> HealthEvent:
    """Return the event of a report's entry ``place``. Raises: UserError, which names the field.

    ``event_id``, ``rule`` and ``node`` or ``machine`` are needed; the rest has defaults, those of a known rule by it.
    """
    try:
        return _read(data, now_ms)
    except ValueError as error:
        raise UserError(
            f"event {place} is no health event: {error}",
            code="BAD_HEALTH_EVENT",
            details={"event": place},
            fix=Fix(text="docs/health.md#reports has the fields and their limits"),
        ) from error


def left_out(data: Mapping[str, Any], *, place: int = 0) -> str:
    """Say what is not kept of a report's entry that ``read`` takes; empty where all is."""
    count = len(data.get("evidence") or ())
    if count <= LINES:
        return ""
    return f"event {place}: of {count} lines of evidence the first {LINES - 1} are kept"


def _read(data: Mapping[str, Any], now_ms: int) -> HealthEvent:
    unknown = [name for name in data if name not in _FIELDS]
    if unknown:
        raise ValueError(f"there is no field {unknown[0][:50]!r}{near(unknown[0][:50], _FIELDS)}")
    rule = _text(data, "rule", most=LONGEST_RULE)
    if not _RULE.fullmatch(rule):
        raise ValueError(f"rule: {rule!r} is no name: letters, digits, '.', '-' and '_', as in nic.down")
    try:
        facts = facts_of(rule)
    except ValueError as error:
        raise ValueError(f"rule: {error}") from error
    node, machine = _text(data, "node", ""), _text(data, "machine", "")
    if not node and not machine:
        raise ValueError("node: it is missing; name the node, or the machine")
    device = _whole(data, "device", least=0)
    code = _whole(data, "code", least=0)
    otherwise = Component.HOST if device is None else Component.GPU
    return HealthEvent(
        event_id=_text(data, "event_id"),
        rule=rule,
        machine=machine,
        node=node,
        at_ms=_moment(data, now_ms),
        component=_word(data, "component", Component, facts.component if facts else otherwise),
        severity=_word(data, "severity", Severity, facts.severity if facts else Severity.HIGH),
        source=_word(data, "source", Source, Source.OPERATOR),
        message=_text(data, "message", "", most=LONGEST_TEXT)
        or (facts.message if facts else f"{rule}, reported by hand"),
        device=device,
        device_uuid=_text(data, "device_uuid", ""),
        code=facts.code if facts and facts.code is not None else code,
        value=_number(data, "value"),
        unit=_text(data, "unit", "", most=20),
        remedy=_word(data, "remedy", Remedy, facts.remedy if facts else Remedy.NONE),
        retest=_word(data, "retest", Retest, facts.retest if facts else Retest.T1),
        confirmed=_truth(data, "confirmed"),
        evidence=_lines(data, "evidence"),
        rule_version=_whole(data, "rule_version", least=0) or 1,
        clock_reasons=_whole(data, "clock_reasons", least=0) or 0,
    )


def _text(data: Mapping[str, Any], name: str, default: str | None = None, *, most: int = LONGEST_NAME) -> str:
    value = data.get(name)
    if value is None and default is None:
        raise ValueError(f"{name}: it is missing")
    if value is None:
        return default or ""
    if not isinstance(value, str):
        raise ValueError(f"{name}: it is no text")
    if len(value) > most:
        raise ValueError(f"{name}: it has {len(value):,} characters, {most} are the most")
    said = plain(value.strip(), most)
    if not said and default is None:
        raise ValueError(f"{name}: it is empty")
    return said


def _whole(data: Mapping[str, Any], name: str, *, least: int) -> int | None:
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
        raise ValueError(f"{name}: it is no whole number from {least} on")
    return value


def _number(data: Mapping[str, Any], name: str) -> float | None:
    value = data.get(name)
    if value is None:
        return None
    if not is_number(value):
        raise ValueError(f"{name}: it is no number")
    return float(value)


def _truth(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name, True)
    if not isinstance(value, bool):
        raise ValueError(f"{name}: it is neither true nor false")
    return value


def _lines(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = data.get(name) or []
    if not isinstance(value, list) or len(value) > MOST_LINES:
        raise ValueError(f"{name}: it is no list of {MOST_LINES} lines at most")
    return tuple(_text({name: line}, name, "", most=LONGEST_TEXT) for line in value)


def _word(data: Mapping[str, Any], name: str, kind: type[_Word], default: _Word) -> _Word:
    value = data.get(name)
    if value is None:
        return default
    names = [each.value for each in kind]
    if not isinstance(value, str) or value not in names:
        shown = repr(value)[:50]
        raise ValueError(f"{name}: {shown} is none of {listed(names, len(names))}{near(shown, names)}")
    return kind(value)


def _moment(data: Mapping[str, Any], now_ms: int) -> int:
    """Return when it was. A clock that is a little ahead says *now*; what counts no more is refused, not lost."""
    value = data.get("at_ms")
    if value is None:
        return now_ms
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError("at_ms: it is no whole number of milliseconds since 1970")
    if not now_ms - COUNTS_MS < value <= now_ms + COUNTS_MS:
        raise ValueError(f"at_ms: it is not within a day of the server's {moment(now_ms)}")
    return min(value, now_ms)
