"""The conversations with the agents of many machines, and one question to all of them.

Owns: one dialogue a machine, for as long as the process lives; what their answers come to. Must not know: what carries
them, which machines are there now.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait as wait_for_futures
from typing import Any

from airyard.adapters.agent_dialogue import Dialogue

ASK_S = 10.0
TIDY_S = 300.0

Answers = Sequence[Mapping[str, Any]]


class Dialogues:
    """Machine → its dialogue, made when it is first spoken of: requests wait in it until the machine comes."""

    def __init__(self, make: Callable[[str], Dialogue]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._all: dict[str, Dialogue] = {}

    def of(self, machine: str) -> Dialogue:
        """Return the conversation with a machine, of which perhaps nothing has been heard yet. Any thread."""
        with self._lock:
            found = self._all.get(machine)
            if found is None:
                found = self._all[machine] = self._make(machine)
            return found


def ask_all(asked: Iterable[Dialogue], op: str, timeout_s: float, **fields: Any) -> Answers:
    """Ask those that are there one thing; return the answers that came in time. Blocks."""
    futures = [dialogue.call(op, **fields) for dialogue in asked]
    done, _ = wait_for_futures(futures, timeout_s)
    return [future.result() for future in done if future.exception() is None]


def any_ready(answers: Answers) -> bool | None:
    """Return whether one machine has what was asked for; None when none can say."""
    ready = [bool(answer["result"]["ready"]) for answer in answers if answer["ok"]]
    return any(ready) if ready else None


def tidied(answers: Answers, away: str) -> Mapping[str, Any]:
    """Return what went on all machines together; ``away`` says why when none answered."""
    done = [answer["result"] for answer in answers if answer["ok"]]
    if not done:
        return {"away": away or "no machine answered"}
    return {name: sum(int(each[name]) for each in done) for name in ("count", "bytes")}
