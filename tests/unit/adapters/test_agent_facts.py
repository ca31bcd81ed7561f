"""What an agent tells of members becomes facts without loss."""

from __future__ import annotations

from typing import Any

from airyard.adapters.agent_facts import fact_of_push, facts_of_hello
from airyard.app.reports import report_of
from airyard.core.commands import MachineSeen, MemberGone

EXITED: dict[str, Any] = {
    "number": 3, "kind": "EXITED", "at_ns": 5_000_000, "code": None, "signal": None, "started": False, "cause": "NODE",
    "message": "the prolog failed", "duration_ms": 7, "fault": "prolog", "fault_message": "nvidia-smi: exit 9",
}  # fmt: skip


def test_an_exit_record_says_the_same_as_the_report_that_was_not_delivered() -> None:
    record = {"exited": EXITED, "logs": None, "delivered": False}
    reported = report_of(EXITED, 0, 9).exit
    assert reported is not None
    assert reported.fault == "prolog"
    gone = fact_of_push("exited", {"key": "1.0.0", "exit": record}, now_ms=9)
    assert isinstance(gone, MemberGone)
    assert gone.seen.exit == reported
    machine = {"name": "m", "boot_id": "b", "address": "a", "cpus": 1, "memory_bytes": 1, "containment": {}}
    attempts = [{"key": "1.0.0", "state": "exited", "exit": record}]
    _, seen = facts_of_hello({"machine": machine, "nodes": [], "attempts": attempts}, now_ms=9)
    assert isinstance(seen, MachineSeen)
    assert seen.members[0].exit == reported
