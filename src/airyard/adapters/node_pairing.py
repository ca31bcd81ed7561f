"""One test of two nodes over the dialogues with their agents: both sides begun, waited for, ended together.

Owns: the order of the asks, what one side's end means for the other, which refusal an answer is. Must not know: what is
measured, what carries the lines.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any

from airyard.adapters.agent_dialogue import Dialogue
from airyard.adapters.node_checking import away, refused

_LOOK_S = 0.2
END_S = 5.0
"""So long agents have to say that they ended what was begun."""
SETTLE_S = 10.0
"""When one side has ended badly, the other has so long to say how it ended: a stop for work is no failure."""
Answer = Mapping[str, Any]
_STOPPED: Answer = {"state": "stopped", "served": {}, "called": {}, "problem": ""}


def pair_over(
    dialogues: tuple[Dialogue, Dialogue],
    machines: tuple[str, str],
    asked: Mapping[str, Any],
    should_stop: Callable[[], bool],
    *,
    settle_s: float = SETTLE_S,
    end_s: float = END_S,
) -> Answer:
    """Have the first node serve and the second call. See ``Engine.pair_nodes``."""
    for dialogue, machine in zip(dialogues, machines, strict=True):
        if not dialogue.is_open:
            raise away(machine)
    test = _Test(dialogues, machines, asked, should_stop, settle_s, end_s)
    try:
        return test.run()
    finally:
        test.close()


class _Test:
    """One test under way."""

    def __init__(
        self,
        dialogues: tuple[Dialogue, Dialogue],
        machines: tuple[str, str],
        asked: Mapping[str, Any],
        should_stop: Callable[[], bool],
        settle_s: float,
        end_s: float,
    ) -> None:
        self._dialogues = dialogues
        self._machines = machines
        self._asked = asked
        self._should_stop = should_stop
        self._settle_s = settle_s
        self._end_s = end_s
        self._asks: list[Future[dict[str, Any]]] = []

    def run(self) -> Answer:
        """Return what it came to. Raises: Unavailable."""
        token = secrets.token_hex(16)
        opening = self._begin(0, side="serve", token=token)
        if not self._wait([opening]):
            return _STOPPED
        opened = self._result(0, opening)
        if opened["state"] != "open":
            return _combined({"served": opened})
        serving = self._call(0, "pair_end", name=self._asked["name"], node=self._asked["nodes"][0])
        calling = self._begin(1, side="call", token=token, peer=opened)
        sides = {"served": (0, serving), "called": (1, calling)}
        if not self._wait([serving, calling]):
            return _STOPPED
        # A refusal of one side is the answer, whatever the other says.
        ended = {
            name: self._result(place, future) for name, (place, future) in sides.items() if future.done()
        }
        for name, (place, future) in sides.items():
            if name not in ended and self._only_waited(place, future):
                ended[name] = {"state": "waited", "said": {}}
        return _combined(ended)

    def close(self) -> None:
        """End what may still run of it, and wait for that: the nodes are free then."""
        if all(ask.done() for ask in self._asks):
            return
        for dialogue in self._dialogues:
            if dialogue.is_open:
                dialogue.call("pair_stop", name=self._asked["name"])
        wait_for(self._asks, timeout=self._end_s)

    def _only_waited(self, place: int, future: Future[dict[str, Any]]) -> bool:
        """End a side that outlasted the other, and say whether it was there: whom nobody reached waits for its caller.

        One whose agent does not answer may be gone with its machine.
        """
        dialogue = self._dialogues[place]
        if dialogue.is_open:
            dialogue.call("pair_stop", name=self._asked["name"])
            wait_for([future], timeout=self._end_s)
        return future.done() and not _is_refusal(future)

    def _begin(self, place: int, **more: Any) -> Future[dict[str, Any]]:
        asked, node = self._asked, self._asked["nodes"][place]
        return self._call(place, "pair", name=asked["name"], node=node, python=asked["python"], **more)

    def _call(self, place: int, op: str, **fields: Any) -> Future[dict[str, Any]]:
        self._asks.append(self._dialogues[place].call(op, **fields))
        return self._asks[-1]

    def _wait(self, futures: list[Future[dict[str, Any]]]) -> bool:
        """Wait for all; once one has ended badly, a little longer only. False when nobody waits any more."""
        settled: float | None = None
        while True:
            done, waiting = wait_for(futures, timeout=_LOOK_S)
            if not waiting:
                return True
            if any(_is_refusal(future) for future in done):
                return True
            if self._should_stop():
                return False
            if settled is None and any(not _is_well(future) for future in done):
                settled = time.monotonic() + self._settle_s
            if settled is not None and time.monotonic() >= settled:
                return True

    def _result(self, place: int, future: Future[dict[str, Any]]) -> dict[str, Any]:
        try:
            answer = future.result(0)
        except ConnectionError as error:
            raise away(self._machines[place]) from error
        if not answer["ok"]:
            raise refused(self._machines[place], answer["error"])
        return dict(answer["result"])


def _is_refusal(future: Future[dict[str, Any]]) -> bool:
    return future.exception() is not None or not future.result()["ok"]


def _is_well(future: Future[dict[str, Any]]) -> bool:
    return not _is_refusal(future) and future.result()["result"]["state"] == "done"


def _combined(ended: Mapping[str, Mapping[str, Any]]) -> Answer:
    """Put together how the sides ended; one that did not say how leaves the test unknown."""
    said = {name: dict(ended.get(name, {}).get("said") or {}) for name in ("served", "called")}
    states = {str(side["state"]) for side in ended.values()}
    problems = [str(side["problem"]) for side in ended.values() if side.get("problem")]
    if states & {"stopped", "crashed"}:
        problem = next(
            (str(side.get("problem", "")) for side in ended.values() if side["state"] == "crashed"), ""
        )
        return {**_STOPPED, "problem": "" if "stopped" in states else problem}
    if len(ended) < 2:
        missing = "the side that calls" if "called" not in ended else "the side that serves"
        return {**_STOPPED, "problem": f"{missing} does not say how it ended"}
    if "late" in states:
        return {"state": "hung", **said, "problem": ""}
    if "apart" in states:
        return {"state": "apart", **said, "problem": "; ".join(problems)}
    return {"state": "done", **said, "problem": ""}
