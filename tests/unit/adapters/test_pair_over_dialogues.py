"""How the ends of two sides come to one answer, and which refusal an agent's answer is."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from airyard.adapters.agent_dialogue import Dialogue
from airyard.adapters.node_pairing import pair_over
from airyard.core.errors import Unavailable

ASKED = {"name": "p", "nodes": ["n1", "n2"], "python": ""}
OPEN = {"state": "open", "port": 1}
DONE = {"state": "done", "said": {"correct": True}}


class Agent:
    """The other end of a dialogue: answers each operation by a table; None: not at all."""

    def __init__(self, answers: Mapping[str, Mapping[str, Any] | None]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.ended_by_stop: Mapping[str, Any] | None = None
        """What an end that is waited for is answered with once the test is stopped."""
        self._waiting: list[int] = []
        self._woken, self._over = threading.Event(), False
        self.dialogue = Dialogue(
            server_url="http://x", config={}, tell=lambda fact: None, wake=self._woken.set, now_ms=lambda: 0
        )
        self.dialogue.begin()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over:
            self._woken.wait(1)
            self._woken.clear()
            for line in self.dialogue.outgoing().splitlines():
                request = json.loads(line)
                name = str(request.get("side") or request["op"])
                self.asked.append(name)
                answer = self.answers.get(name, {"result": {}})
                if answer is None:
                    self._waiting.append(request["id"])
                else:
                    self._tell(request["id"], answer)
                if name == "pair_stop" and self.ended_by_stop is not None:
                    while self._waiting:
                        self._tell(self._waiting.pop(), {"result": self.ended_by_stop})

    def _tell(self, number: int, answer: Mapping[str, Any]) -> None:
        told = {"id": number, "ok": "error" not in answer, **answer}
        self.dialogue.on_line(json.dumps(told).encode())

    def close(self) -> None:
        self._over = True
        self._woken.set()
        self._thread.join(30)


def paired(
    served: Mapping[str, Any] | None,
    called: Mapping[str, Any] | None,
    opened: Mapping[str, Any] | None = OPEN,
    should_stop: Callable[[], bool] = lambda: False,
    ended_by_stop: Mapping[str, Any] | None = None,
) -> tuple[Any, list[str]]:
    def wrapped(answer: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        return answer if answer is None or "error" in answer else {"result": answer}

    one = Agent({"serve": wrapped(opened), "pair_end": wrapped(served)})
    one.ended_by_stop = ended_by_stop
    other = Agent({"call": wrapped(called)})
    try:
        told = pair_over(
            (one.dialogue, other.dialogue), ("m1", "m2"), ASKED, should_stop, settle_s=0.3, end_s=0.3
        )
        return told, one.asked
    finally:
        one.close()
        other.close()


@pytest.mark.parametrize(
    ("served", "called", "state"),
    [
        (DONE, DONE, "done"),
        ({"state": "late"}, {"state": "apart", "problem": "cut"}, "hung"),
        (DONE, {"state": "apart", "problem": "refused"}, "apart"),
        # Work came on one side: that the other was cut off says nothing.
        ({"state": "stopped"}, {"state": "apart", "problem": "cut"}, "stopped"),
        ({"state": "crashed", "problem": "x"}, {"state": "late"}, "stopped"),
        # An agent that does not answer may be gone with its machine.
        (None, {"state": "apart", "problem": "cut"}, "stopped"),
    ],
)
def test_two_ends_are_one_answer(
    served: Mapping[str, Any] | None, called: Mapping[str, Any], state: str
) -> None:
    told, asked = paired(served, called)
    assert told["state"] == state
    assert ("pair_stop" in asked) is (served is None)


def test_whom_nobody_reaches_is_ended_and_the_pair_has_failed() -> None:
    told, _ = paired(
        None, {"state": "apart", "problem": "refused"}, ended_by_stop={"state": "stopped", "said": {}}
    )
    assert (told["state"], told["problem"]) == ("apart", "refused")


def test_refusals_are_told_and_what_was_begun_is_ended() -> None:
    for code, wanted in (("UNKNOWN_OP", "AGENT_TOO_OLD"), ("NODE_IN_USE", "NODE_IN_USE")):
        with pytest.raises(Unavailable) as refused:
            paired(None, {"error": {"code": code, "message": "m"}})
        assert refused.value.code == wanted


def test_who_does_not_wait_any_longer_has_it_stopped() -> None:
    until = time.monotonic() + 0.5
    told, asked = paired(None, None, should_stop=lambda: time.monotonic() >= until)
    assert (told["state"], asked[-1]) == ("stopped", "pair_stop")
