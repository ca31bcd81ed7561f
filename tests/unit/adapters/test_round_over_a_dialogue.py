"""What an agent's answers to a round of checks come to; one of an older release does not know the question."""

from __future__ import annotations

import json
import threading

import pytest

from airyard.adapters.agent_dialogue import Dialogue
from airyard.adapters.node_checking import check_over
from airyard.core.errors import Unavailable

ASKED = {"name": "r", "node": "n1", "profile": "fast", "python": ""}


def dialogue() -> tuple[Dialogue, threading.Event]:
    woken = threading.Event()
    made = Dialogue(
        server_url="http://x", config={}, tell=lambda fact: None, wake=woken.set, now_ms=lambda: 0
    )
    return made, woken


def refusal_of(answer: dict[str, object]) -> Unavailable | None:
    made, woken = dialogue()
    made.begin()

    def be_the_agent() -> None:
        woken.wait(30)
        (line,) = made.outgoing().splitlines()
        made.on_line(json.dumps({"id": json.loads(line)["id"], **answer}).encode())

    agent = threading.Thread(target=be_the_agent)
    agent.start()
    try:
        assert check_over(made, "m", ASKED, lambda: False) == answer["result"]
    except Unavailable as problem:
        return problem
    finally:
        agent.join()
    return None


def code_for(answer: dict[str, object]) -> str:
    refusal = refusal_of(answer)
    return refusal.code if refusal is not None else ""


@pytest.mark.parametrize(
    ("code", "next_step"),
    [
        ("CHECKS_BUSY", "ask again when it is over"),
        ("NODE_IN_USE", "`airyard drain NODE`"),
        ("UNKNOWN_NODE", "`airyard nodes`"),
    ],
)
def test_a_refusal_says_what_to_do_next(code: str, next_step: str) -> None:
    refusal = refusal_of({"ok": False, "error": {"code": code, "message": "n1 is such"}})
    assert refusal is not None
    assert refusal.fix is not None
    assert (refusal.code, next_step in refusal.fix.text) == (code, True)
    assert "n1 is such" in refusal.message


def test_an_older_agent_is_said_to_be_one_and_nobody_waits() -> None:
    assert (
        code_for({"ok": False, "error": {"code": "UNKNOWN_OP", "message": "no operation"}}) == "AGENT_TOO_OLD"
    )
    assert code_for({"ok": False, "error": {"code": "CHECKS_BUSY", "message": "busy"}}) == "CHECKS_BUSY"
    assert code_for({"ok": True, "result": {"state": "done", "results": []}}) == ""


def test_a_machine_that_is_away_or_goes_away_is_said_to_be() -> None:
    made, woken = dialogue()
    with pytest.raises(Unavailable) as refused:
        check_over(made, "m", ASKED, lambda: False)
    assert refused.value.code == "MACHINE_AWAY"
    made.begin()

    def cut() -> None:
        woken.wait(30)
        made.lost()

    agent = threading.Thread(target=cut)
    agent.start()
    with pytest.raises(Unavailable) as refused:
        check_over(made, "m", ASKED, lambda: False)
    agent.join()
    assert refused.value.code == "MACHINE_AWAY"
