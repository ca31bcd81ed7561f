"""What a member tells of its node is kept in bounds, and what is not kept is named."""

from __future__ import annotations

from airyard.app.reports import LEFT_OUT, MAX_FACTS, report_of


def facts(count: int) -> dict[str, str]:
    told = {f"fact{number:02}": str(number) for number in range(count)}
    meeting = {"addresses": ["10.0.0.1"], "port": 1, "facts": told}
    report = report_of(
        {"kind": "READY", "number": 1, "address": "a", "meeting": meeting}, offset_ns=0, now_ms=1
    )
    assert report.meeting is not None
    return dict(report.meeting.facts)


def test_facts_beyond_what_is_kept_are_named() -> None:
    assert LEFT_OUT not in facts(MAX_FACTS)
    found = facts(MAX_FACTS + 2)
    assert len(found) == MAX_FACTS + 1
    assert found[LEFT_OUT] == f"fact{MAX_FACTS}, fact{MAX_FACTS + 1}"
