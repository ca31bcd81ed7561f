"""One test of one idle node by its own agent: asked, and what the answer comes to.

Owns: which round is which test, what is kept of its results. Must not know: when a test is due, what else is under way.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from airyard.checks import catalogue
from airyard.checks.catalogue import is_sure
from airyard.checks.contract import Profile
from airyard.core.cluster import Node
from airyard.core.commands import IdleTestDone
from airyard.core.errors import Unavailable
from airyard.core.health.check_events import events_of
from airyard.core.health.facts import CheckResult, CheckStatus, Retest
from airyard.core.health.idle import IdleTest
from airyard.core.health.idle_records import TestNote
from airyard.core.health.retesting import judged
from airyard.core.plain import plain
from airyard.server.node_rounds import Asks, run_part

_ROUNDS = {
    IdleTest.LIGHT: (Profile.FAST, Retest.T1),
    IdleTest.DEEP: (Profile.FULL, Retest.T3),
}
_TELLING = ("compute.", "rdma.", "storage.")
_SAID_CHARACTERS = 500


class IdleChecks:
    """Has nodes tested. Any thread."""

    def __init__(self, check_node: Asks, now_ms: Callable[[], int], python: str) -> None:
        """``python``: an interpreter that may have torch, on the nodes."""
        self._check_node = check_node
        self._now_ms = now_ms
        self._python = python

    def run(
        self,
        node: Node,
        kind: IdleTest,
        boot_id: str,
        began_ms: int,
        should_stop: Callable[[], bool],
        part: str = "",
    ) -> IdleTestDone:
        """Return what a test came to. Blocks. A simulated node passes at once.

        ``part``: the one of a deep test to do. An agent of an older release does the whole; so it is noted.
        Raises: Unavailable where it was not done, or stopped: it says nothing of the node then.
        """
        if node.simulated:
            return self._told(node, kind, boot_id, began_ms, CheckStatus.PASS, "simulated")
        profile, level = _ROUNDS[kind]
        name = f"idle/{uuid.uuid4().hex[:12]}"
        parts = parts_of(node)
        asked = {"part": part, "parts": list(parts), "only": list(parts[part])} if part else {}
        tell = partial(self._told, node, kind, boot_id, began_ms, parts=tuple(parts))
        try:
            results, done = run_part(self._check_node, node, profile, self._python, name, should_stop, asked)
        except Unavailable as problem:
            if problem.code != "CHECKS_SILENT":
                raise
            return tell(CheckStatus.UNKNOWN, problem.message, part=part)
        devices = len(node.devices) if node.model is not None else 0
        verdict = judged(level, results, devices, parts[done] if done else None)
        return tell(verdict.status, verdict.message, part=done, round_name=name, results=results)

    def _told(
        self,
        node: Node,
        kind: IdleTest,
        boot_id: str,
        began_ms: int,
        status: CheckStatus,
        message: str,
        *,
        part: str = "",
        parts: tuple[str, ...] = (),
        round_name: str = "",
        results: Iterable[CheckResult] = (),
    ) -> IdleTestDone:
        now_ms, found = self._now_ms(), tuple(results)
        note = TestNote(
            kind=kind,
            at_ms=now_ms,
            status=status,
            message=plain(message, _SAID_CHARACTERS),
            version=boot_id,
            took_ms=max(now_ms - began_ms, 0),
            values=values_of(found),
            part=part,
            parts=parts if part else (),
        )
        events = events_of(
            found,
            round_name=round_name,
            node=node.name,
            machine=node.machine,
            at_ms=now_ms,
            is_sure=is_sure,
        )
        return IdleTestDone(node=node.name, test=note, events=events)


def parts_of(node: Node) -> Mapping[str, tuple[str, ...]]:
    """Return the parts of a deep test of a node, each with its checks."""
    return catalogue.parts(gpus=node.model is not None)


def values_of(results: Iterable[CheckResult]) -> Mapping[str, float]:
    """Return what was measured at work, of several devices the least: that is the one to look at."""
    values: dict[str, float] = {}
    for one in results:
        if one.value is not None and one.check.startswith(_TELLING):
            values[one.check] = min(one.value, values.get(one.check, one.value))
    return values
