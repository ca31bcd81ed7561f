"""Forms of the protocols that releases before this one speak, as they were recorded: this one still understands them.

``golden/agent_1.json``: all that a server and an agent of protocol 1 said. ``golden/runner_1.json``: what a runner of
protocol 1 asked and was answered. ``golden/attempts_1``: folders that such runners left. None of it is ever changed.
"""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airyard.adapters.agent_dialogue import Dialogue, NoCommonProtocol
from airyard.adapters.agent_process import connected, start_agent
from airyard.core.actions import ForgetMember, KillMember, ShipLogs, StartMember
from airyard.core.commands import MachineSeen, MemberGone, SeenState
from airyard.core.ids import MemberKey
from airyard.core.run import Cause
from airyard.core.versions import AGENT
from airyard.node.attempts import Attempts, Seen
from airyard.node.containment import detect
from airyard.node.exit_record import boot_id
from airyard.ports.engine import ContainmentSeen, Fact, Samples

GOLDEN = Path(__file__).parent / "golden"
AGENT_1: list[dict[str, Any]] = json.loads((GOLDEN / "agent_1.json").read_text())
FIRST, SECOND, NEVER = MemberKey(1, 0, 0), MemberKey(2, 0, 0), MemberKey(9, 0, 0)


def start_of(key: MemberKey, cookie: str) -> StartMember:
    return StartMember(key=key, machine="h1", node="n", devices=(0,), epoch=3, cookie=cookie)


def test_this_server_talks_with_an_agent_of_protocol_1() -> None:
    facts: list[Fact] = []
    dialogue = Dialogue(
        server_url="http://10.0.0.1:8290",
        config={},
        tell=facts.append,
        wake=lambda: None,
        now_ms=lambda: 7,
        same_version=False,
    )
    asks = {
        "start": lambda key: dialogue.start(start_of(key, "c"), "token"),
        "kill": lambda key: dialogue.kill(KillMember(key=key, machine="h1", reason="r")),
        "ship": lambda key: dialogue.ship(ShipLogs(key=key, machine="h1"), "token"),
        "forget": lambda key: dialogue.forget(ForgetMember(key=key, machine="h1")),
    }
    hello = json.loads(dialogue.begin())
    numbers: dict[int, int] = {}
    for line in AGENT_1:
        if "agent" in line:
            said = dict(line["agent"])
            said["id"] = numbers.get(said.get("id", 0), 0)
            if "event" in said or said["id"] or line["agent"]["id"] == 0:
                dialogue.on_line(json.dumps(said).encode())
            continue
        asked = line["server"]
        if asked["op"] == "hello":
            assert asked.keys() <= hello.keys(), "an agent of protocol 1 finds all that it was told before"
        elif asked["op"] in asks and len(asked["key"].split(".")) == 3:
            asks[asked["op"]](MemberKey.parse(asked["key"]))
            (sent,) = [json.loads(sent) for sent in dialogue.outgoing().splitlines()]
            assert asked.keys() == sent.keys(), asked["op"]
            numbers[asked["id"]] = sent["id"]
    seen = [fact for fact in facts if isinstance(fact, MachineSeen)]
    assert [fact.machine.version for fact in seen] == ["0.1.0"] * 2
    assert [(str(one.key), one.state) for one in seen[1].members] == [
        ("1.0.0", SeenState.EXITED),
        ("2.0.0", SeenState.DIED),
    ]
    gone = {fact.seen.key: fact.seen for fact in facts if isinstance(fact, MemberGone)}
    assert set(gone) == {FIRST, SECOND, NEVER}
    ended = gone[FIRST]
    assert ended.exit is not None
    assert ended.logs is not None
    assert (ended.exit.code, ended.exit.cause, ended.logs.last_seq) == (0, None, 1)
    died = gone[SECOND].exit
    assert died is not None
    assert (died.cause, "it was asked for" in died.message) == (Cause.PLATFORM, True)
    kinds = {type(fact) for fact in facts}
    assert kinds == {ContainmentSeen, MachineSeen, MemberGone, Samples}
    assert dialogue.outgoing() == b"", "nothing is left unanswered"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[socket.socket]:
    """A connection to an agent of this release."""
    (tmp_path / "server").mkdir()
    start_agent(tmp_path)
    deadline = time.monotonic() + 60
    while True:
        try:
            stream = connected(tmp_path)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    stream.settimeout(60)
    with stream:
        yield stream
        stream.sendall(b'{"id":99,"op":"stop"}\n')


@pytest.mark.e2e
def test_this_agent_answers_a_server_of_protocol_1(agent: socket.socket) -> None:
    lines = agent.makefile("rb")

    def answer_to(asked: dict[str, Any]) -> dict[str, Any]:
        agent.sendall(json.dumps(asked).encode() + b"\n")
        while True:
            found: dict[str, Any] = json.loads(lines.readline())
            if found.get("id") == asked["id"]:
                return found

    tried = set()
    for number, line in enumerate(AGENT_1):
        asked = line.get("server")
        if asked is None or asked["op"] in tried or asked["op"] == "stop":
            continue
        tried.add(asked["op"])
        wanted = next(
            later["agent"] for later in AGENT_1[number:] if later.get("agent", {}).get("id") == asked["id"]
        )
        found = answer_to(asked)
        assert (found["ok"], wanted.keys()) == (wanted["ok"], found.keys()), asked
        result = wanted.get("result", {})
        assert result.keys() <= found.get("result", {}).keys(), asked
        if asked["op"] == "hello":
            assert found["result"]["protocol"] == 1
            assert result["machine"].keys() <= found["result"]["machine"].keys()
            assert result["nodes"][0].keys() <= found["result"]["nodes"][0].keys()
    assert tried == {"hello", "start", "kill", "ship", "forget", "tidy", "dance"}


@pytest.mark.e2e
def test_an_agent_and_a_server_without_a_common_form_name_both_versions(agent: socket.socket) -> None:
    far = AGENT.newest + 2
    hello = {"id": 0, "op": "hello", "protocol": far, "oldest": far - 1, "server": {"version": "7.7.0"}}
    agent.sendall(json.dumps(hello).encode() + b"\n")
    answer = json.loads(agent.makefile("rb").readline())
    assert answer["error"]["code"] == "PROTOCOL_MISMATCH"
    assert "Airyard 7.7.0" in answer["error"]["message"]
    dialogue = Dialogue(
        server_url="", config={}, tell=print, wake=lambda: None, now_ms=lambda: 7, same_version=False
    )
    dialogue.begin()
    with pytest.raises(NoCommonProtocol, match=r"7\.7\.0"):
        dialogue.on_line(json.dumps(answer).encode())


def test_folders_that_older_runners_left_are_read(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "attempts_1", tmp_path / "attempts")
    for path in tmp_path.rglob("runner.json"):
        value = {**json.loads(path.read_text()), "boot_id": boot_id()}
        path.write_text(json.dumps(value))
    attempts = Attempts(tmp_path, detect())
    ended = attempts.look("1.0.0")
    assert (ended.state, ended.version, ended.node, ended.devices) == (Seen.EXITED, "", "n", (0,))
    assert ended.exit is not None
    assert ended.exit["logs"]["last_seq"] == 1
    assert attempts.look("2.0.0").state is Seen.DIED
    # One that this agent cannot read is not taken for what it is not.
    path = tmp_path / "attempts" / "1.0.0" / "runner.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99, "version": "7.7.0"}))
    unread = attempts.look("1.0.0")
    assert (unread.state, unread.exit, "Airyard 7.7.0" in unread.detail) == (Seen.DIED, None, True)
