"""What monitors saw on its way from an agent to the loop: said again until it is journalled, and nobody else's."""

from __future__ import annotations

import json
from typing import Any

import pytest

import airyard
from airyard.adapters.agent_dialogue import Dialogue
from airyard.core.commands import MachineSeen
from airyard.ports.engine import ContainmentSeen, Fact, HealthSeen

NOW_MS = 1_000_000


def item(name: str, **more: Any) -> dict[str, Any]:
    base = {
        "event_id": name, "rule": "xid.79", "machine": "elsewhere", "at_ms": NOW_MS - 500, "component": "GPU",
        "severity": "CRITICAL", "source": "KERNEL", "message": "lost",
    }  # fmt: skip
    return {**base, **more}


class Side:
    """A dialogue with machine m, whose one node is n."""

    def __init__(self, monitor: dict[str, Any] | None = None) -> None:
        self.facts: list[Fact] = []
        self.dialogue = Dialogue(
            server_url="http://s",
            config={},
            tell=self.facts.append,
            wake=lambda: None,
            now_ms=lambda: NOW_MS,
            monitor=monitor,
        )
        self.hello = json.loads(self.dialogue.begin())

    def greet(self) -> None:
        about = {
            "name": "m", "boot_id": "b", "address": "a", "containment": {}, "version": airyard.__version__,
        }  # fmt: skip
        node = {
            "name": "n", "accelerator": "GPU_1xA10", "model": "A10", "devices": [], "cpus": 1, "memory_bytes": 1,
            "simulated": True, "labels": {},
        }  # fmt: skip
        self.hear(id=0, ok=True, result={"protocol": 2, "machine": about, "nodes": [node], "attempts": []})

    def hear(self, **message: Any) -> None:
        self.dialogue.on_line(json.dumps(message).encode())

    def seen(self) -> HealthSeen:
        (found,) = [fact for fact in self.facts if isinstance(fact, HealthSeen)]
        return found


def test_hello_says_how_to_watch() -> None:
    assert Side({"enabled": False}).hello["monitor"] == {"enabled": False}
    assert Side().hello["monitor"] == {}


def test_events_are_acknowledged_after_they_were_taken_and_not_before() -> None:
    side = Side()
    side.greet()
    side.hear(event="health", sent_ms=NOW_MS, events=[item("a"), item("b", node="n", device=3)])
    assert side.dialogue.outgoing() == b""
    seen = side.seen()
    assert [(one.event_id, one.machine, one.node) for one in seen.events] == [("a", "m", ""), ("b", "m", "n")]
    seen.taken()
    said = json.loads(side.dialogue.outgoing())
    assert (said["op"], said["ids"]) == ("health_taken", ["a", "b"])
    side.hear(
        id=said["id"], ok=False, error={"code": "UNKNOWN_OP", "message": "an agent that does not know it"}
    )


@pytest.mark.parametrize(
    "wrong", [item("x", node="of-another-machine"), item("x", severity="NEW"), {"event_id": "x"}]
)
def test_what_is_not_understood_or_not_theirs_is_taken_and_left_out(wrong: dict[str, Any]) -> None:
    side = Side()
    side.greet()
    side.hear(event="health", sent_ms=NOW_MS, events=[wrong, item("a")])
    seen = side.seen()
    assert [one.event_id for one in seen.events] == ["a"]
    seen.taken()
    assert json.loads(side.dialogue.outgoing())["ids"] == ["x", "a"]


@pytest.mark.parametrize(
    ("ahead_ms", "at_ms"), [(0, -500), (1_000, 0), (3_600_000, -500), (-3_600_000, -500)]
)
def test_a_machine_whose_clock_is_wrong_says_what_happened_when_it_did(ahead_ms: int, at_ms: int) -> None:
    side = Side()
    side.greet()
    here_ms = NOW_MS + ahead_ms
    side.hear(event="health", sent_ms=here_ms, events=[item("a", at_ms=here_ms - 500)])
    assert side.seen().events[0].at_ms == NOW_MS + at_ms


def test_before_hello_nobody_knows_whose_events_they_are() -> None:
    side = Side()
    side.hear(event="health", sent_ms=NOW_MS, events=[item("a")])
    assert side.facts == []
    side.greet()
    assert [type(fact) for fact in side.facts] == [ContainmentSeen, MachineSeen]
