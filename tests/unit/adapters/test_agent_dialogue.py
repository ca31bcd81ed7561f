"""The conversation with an agent, without anything that carries it."""

from __future__ import annotations

import json
from typing import Any

import pytest

import airyard
from airyard.adapters.agent_dialogue import Dialogue, OtherVersion
from airyard.core.actions import ForgetMember, KillMember, StartMember
from airyard.core.commands import MachineAway, MachineSeen, MemberGone
from airyard.core.ids import MemberKey
from airyard.core.run import Cause
from airyard.ports.engine import ContainmentSeen, Fact

KEY = MemberKey(1, 0, 0)


class Side:
    """A dialogue with what it told."""

    def __init__(self, **options: Any) -> None:
        self.facts: list[Fact] = []
        self.dialogue = Dialogue(
            server_url="http://s",
            config={},
            tell=self.facts.append,
            wake=lambda: None,
            now_ms=lambda: 7,
            **options,
        )

    def sent(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.dialogue.outgoing().splitlines()]

    def hear(self, **message: Any) -> None:
        self.dialogue.on_line(json.dumps(message).encode())

    def greet(self, version: str = airyard.__version__) -> None:
        about = {
            "name": "m", "boot_id": "b", "address": "10.0.0.1", "containment": {"kind": "cookie"}, "version": version,
        }  # fmt: skip
        self.hear(id=0, ok=True, result={"protocol": 1, "machine": about, "nodes": [], "attempts": []})

    def start(self) -> None:
        action = StartMember(key=KEY, machine="m", node="n", devices=(0,), epoch=1, cookie="c")
        self.dialogue.start(action, "token")


def test_requests_wait_for_hello_and_are_sent_again_until_answered() -> None:
    side = Side()
    side.start()
    assert json.loads(side.dialogue.begin())["op"] == "hello"
    assert side.sent() == []
    side.greet()
    assert [type(fact) for fact in side.facts] == [ContainmentSeen, MachineSeen]
    (first,) = side.sent()
    assert (first["op"], first["key"], first["server_url"]) == ("start", "1.0.0", "http://s")
    side.dialogue.lost()
    assert side.facts[-1] == MachineAway(machine="m")
    side.dialogue.begin(server_url="http://t", config={"machine": "m"})
    side.greet()
    (again,) = side.sent()
    assert again["id"] != first["id"]
    side.hear(id=first["id"], ok=True, result={})  # of the lost connection: answers nothing
    side.hear(id=again["id"], ok=True, result={"pid": 1, "already": True})
    side.dialogue.lost()
    side.dialogue.begin()
    side.greet()
    assert side.sent() == []


def test_a_refused_start_is_a_member_gone() -> None:
    side = Side()
    side.dialogue.begin()
    side.greet()
    side.start()
    (request,) = side.sent()
    side.hear(id=request["id"], ok=False, error={"code": "NODE_DISK_FULL", "message": "no space"})
    gone = side.facts[-1]
    assert isinstance(gone, MemberGone)
    assert gone.seen.exit is not None
    assert (gone.seen.key, gone.seen.exit.cause, gone.seen.exit.at_ms) == (KEY, Cause.STORAGE, 7)


def test_a_renewal_holds_requests_back_until_its_answer() -> None:
    side = Side()
    side.dialogue.begin()
    side.greet()
    side.hear(event="nodes", nodes=[])
    side.dialogue.kill(KillMember(key=KEY, machine="m", reason="r"))
    assert [message["op"] for message in side.sent()] == ["hello"]
    side.greet()
    side.dialogue.forget(ForgetMember(key=KEY, machine="m"))
    assert [message["op"] for message in side.sent()] == ["kill", "forget"]


def test_a_question_ends_with_its_connection() -> None:
    side = Side()
    side.dialogue.begin()
    asked = side.dialogue.call("tidy", dry_run=True)
    (request,) = side.sent()  # needs no hello
    side.hear(id=request["id"], ok=True, result={"count": 0, "bytes": 0})
    assert asked.result(0)["result"] == {"count": 0, "bytes": 0}
    lost = side.dialogue.call("tidy", dry_run=True)
    side.dialogue.lost()
    with pytest.raises(ConnectionError):
        lost.result(0)


def test_versions_must_be_the_same_on_one_machine_only() -> None:
    side = Side()
    side.dialogue.begin()
    with pytest.raises(OtherVersion):
        side.greet("0.0.1")
    fleet = Side(same_version=False)
    fleet.dialogue.begin()
    fleet.greet("0.0.1")
    assert fleet.dialogue.machine == "m"
