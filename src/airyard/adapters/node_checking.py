"""One round of checks over a dialogue with an agent: asked, waited for, ended early.

Owns: the waiting, and which refusal an answer is. Must not know: what is checked, what carries the lines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from airyard.adapters.agent_dialogue import Dialogue
from airyard.core.errors import Unavailable

_LOOK_S = 0.2
_END_S = 10.0
"""So long an agent has to say that it ended a round; it kills it within a second."""
_NEXT = {
    "CHECKS_BUSY": "ask again when it is over: one at a time a machine, a full round takes 15 minutes at most",
    "NODE_IN_USE": "wait for its runs, or empty it (`airyard drain NODE`); a check without --full disturbs nobody",
    "UNKNOWN_NODE": "`airyard nodes` lists the nodes; the machine may have joined again with others",
}


def check_over(
    dialogue: Dialogue, machine: str, asked: Mapping[str, Any], should_stop: Callable[[], bool]
) -> Mapping[str, Any]:
    """Return the agent's answer. Blocks until ``should_stop``. Raises: Unavailable; its code says why."""
    if not dialogue.is_open:
        raise away(machine)
    future = dialogue.call("check", **asked)
    try:
        answer = _wait(future, should_stop)
        if answer is None:
            dialogue.call("check_stop", name=asked["name"])
            answer = future.result(_END_S)
    except ConnectionError as error:
        raise away(machine) from error
    except TimeoutError as error:
        raise Unavailable(
            f"the agent of {machine} does not end its round of checks",
            code="CHECKS_BUSY",
            fix="look at the machine: a process that waits in the kernel cannot be ended",
            details={"machine": machine},
        ) from error
    if answer["ok"]:
        return dict(answer["result"])
    raise refused(machine, answer["error"])


def _wait(future: Future[dict[str, Any]], should_stop: Callable[[], bool]) -> dict[str, Any] | None:
    """Return the answer; None when it is not waited for any longer. Raises: ConnectionError."""
    while not should_stop():
        try:
            return future.result(_LOOK_S)
        except TimeoutError:
            continue
    return None


def away(machine: str) -> Unavailable:
    """Return the refusal where an agent cannot be reached."""
    return Unavailable(
        f"machine {machine} cannot be reached: nothing was checked",
        code="MACHINE_AWAY",
        fix="`airyard nodes NODE` says since when; run `airyard health check` on the machine itself",
        details={"machine": machine},
    )


def refused(machine: str, error: Mapping[str, Any]) -> Unavailable:
    """Return the refusal that an agent's error is."""
    if error["code"] == "UNKNOWN_OP":
        return Unavailable(
            f"the agent of {machine} is of an older release, which cannot be asked for checks",
            code="AGENT_TOO_OLD",
            fix="upgrade the machine (docs/operate/upgrade.md), or run `airyard health check` on it",
            details={"machine": machine},
        )
    return Unavailable(
        f"nothing was checked: {error['message']}",
        code=str(error["code"]),
        fix=_NEXT.get(str(error["code"])),
        details={"machine": machine},
    )
