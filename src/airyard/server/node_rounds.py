"""Rounds of checks on nodes, as the server asks agents for them: for a person who waits, and for a mended node.

Owns: what is asked, how long, what an answer comes to. Must not know: routes, how an agent is reached,
what a failure does to a node (it is reported, as what a monitor sees).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from airyard.adapters.node_checking import away
from airyard.app.control import Control
from airyard.app.loop import ControlLoop
from airyard.checks.catalogue import is_sure
from airyard.checks.contract import Profile
from airyard.checks.preflight.results import results_from_json
from airyard.core.actions import RunRetest
from airyard.core.cluster import Node
from airyard.core.commands import Command, HealthReported, RetestDone
from airyard.core.errors import AiryardError, NotFound, Unavailable
from airyard.core.health.check_events import events_of
from airyard.core.health.facts import CheckResult, CheckStatus, Retest
from airyard.core.health.retesting import judged
from airyard.core.policy_json import told_checks
from airyard.server.attended import Attended
from airyard.server.pair_retests import PairRetests

ROUND_S = {Profile.FAST: 120.0, Profile.FULL: 960.0}
"""A round's own deadline on the node, and what reaching it takes."""
LATER = frozenset({"MACHINE_AWAY", "CHECKS_BUSY", "NODE_IN_USE", "UNKNOWN_NODE"})
"""Refusals that may be over soon: a retest is asked for again."""
_log = structlog.get_logger("airyard.rounds")


class Asks(Protocol):
    """The part of the engine that is needed here."""

    def __call__(
        self, machine: str, asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """See ``Engine.check_node``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a round came to. ``problem``: why there are no results; of a simulated node nothing is checked."""

    node: str
    profile: Profile
    results: tuple[CheckResult, ...] = ()
    problem: AiryardError | None = None
    simulated: bool = False
    reported: int = 0
    """Failures that were reported as the node's health."""


def find_node(loop: ControlLoop, name: str) -> Node | None:
    """Return a node as the newest commit left it."""
    return loop.peek(lambda control: control.state.nodes.get(name))


def boot_of(loop: ControlLoop, machine: str) -> str:
    """Return the boot id of a machine as its agent told it last; empty where none is known."""

    def read(control: Control) -> str:
        known = control.state.machines.get(machine)
        return known.boot_id if known is not None else ""

    return loop.peek(read)


def is_away(loop: ControlLoop, node: Node) -> bool:
    """Return whether a node's machine cannot be reached, as the newest commit has it."""

    def read(control: Control) -> bool:
        machine = control.state.machines.get(node.machine)
        return machine is None or not machine.alive

    return loop.peek(read)


def told_by_pool(loop: ControlLoop, node: str) -> dict[str, Any]:
    """Return what checks of a node are told by its pool, as it is now; nothing where it says nothing."""

    def read(control: Control) -> dict[str, Any]:
        known, policy = control.state.nodes.get(node), control.state.policy
        return told_checks(policy.pool(policy.pool_of(known))) if known is not None else {}

    return loop.peek(read)


def run_round(
    check_node: Asks,
    node: Node,
    profile: Profile,
    python: str,
    name: str,
    should_stop: Callable[[], bool],
) -> tuple[CheckResult, ...]:
    """Have a round run on a node. Blocks. Raises: Unavailable where there are no results; its code says why."""
    return run_part(check_node, node, profile, python, name, should_stop, {})[0]


def run_part(
    check_node: Asks,
    node: Node,
    profile: Profile,
    python: str,
    name: str,
    should_stop: Callable[[], bool],
    part: Mapping[str, Any],
) -> tuple[tuple[CheckResult, ...], str]:
    """Have a part of a round run, and return which it was, too: an agent of an older release does the whole, empty.

    ``part``: its name, the names of all ``parts``, and its checks (``only``). Otherwise as ``run_round``.
    """
    until_s = time.monotonic() + ROUND_S[profile]
    asked = {"name": name, "node": node.name, "profile": profile.value, "python": python, **part}
    answer = check_node(node.machine, asked, should_stop=lambda: should_stop() or time.monotonic() >= until_s)
    state = answer.get("state")
    if state == "stopped":
        raise Unavailable(
            f"the checks of {node.name} were stopped before their end: work came, or nobody waited for them",
            code="CHECKS_STOPPED",
            fix="`airyard cordon` keeps work away meanwhile; then ask again",
            details={"node": node.name},
        )
    if state != "done":
        raise Unavailable(
            f"the checks of {node.name} gave no answer: they crashed, or were late and were killed",
            code="CHECKS_SILENT",
            fix="run `airyard health check` on the machine itself",
            details={"node": node.name},
        )
    return tuple(results_from_json(answer["results"])), str(answer.get("part") or "")


class NodeRounds:
    """Rounds that persons ask for. Any thread."""

    def __init__(
        self,
        *,
        check_node: Asks,
        find_node: Callable[[str], Node | None],
        report: Callable[[Command], object],
        now_ms: Callable[[], int],
        python: str,
        is_away: Callable[[Node], bool] = lambda node: False,
    ) -> None:
        """``report`` waits for the journal. ``python``: an interpreter that may have torch.

        ``is_away`` is asked of simulated nodes only: of others the agent answers, or does not.
        """
        self._is_away = is_away
        self._check_node = check_node
        self._find_node = find_node
        self._report = report
        self._now_ms = now_ms
        self._python = python
        self._work = Attended[Found]("round of checks")

    def begin(self, node_name: str, profile: Profile, by: str) -> str:
        """Begin a round and return its name. Raises: NotFound, Conflict where too many are under way."""
        node = self._find_node(node_name)
        if node is None:
            raise NotFound(
                f"there is no node {node_name}",
                code="NODE_NOT_FOUND",
                fix="`airyard nodes` lists them",
                details={"node": node_name},
            )
        return self._work.begin(lambda name, should_stop: self._round(name, node, profile, by, should_stop))

    def wait(self, name: str, wait_s: float) -> Found | None:
        """Return what a round came to; None while it goes on. Raises: NotFound for one that is not known."""
        return self._work.wait(name, wait_s)

    def _round(
        self, name: str, node: Node, profile: Profile, by: str, should_stop: Callable[[], bool]
    ) -> Found:
        found = Found(node=node.name, profile=profile, simulated=node.simulated)
        try:
            if node.simulated and self._is_away(node):
                raise away(node.machine)
            return found if node.simulated else self._look(name, node, found, by, should_stop)
        except AiryardError as problem:
            return replace(found, problem=problem)
        except Exception as error:  # whoever waits hears of it
            _log.exception("round_broke", node=node.name)
            said = f"the checks of {node.name} broke: {type(error).__name__}: {error}"
            return replace(found, problem=Unavailable(said))

    def _look(self, name: str, node: Node, found: Found, by: str, should_stop: Callable[[], bool]) -> Found:
        results = run_round(self._check_node, node, found.profile, self._python, name, should_stop)
        events = events_of(
            results,
            round_name=name,
            node=node.name,
            machine=node.machine,
            at_ms=self._now_ms(),
            is_sure=is_sure,
        )
        if events:
            self._report(HealthReported(events=events, by=by))
        return replace(found, results=results, reported=len(events))


class Retests:
    """Tests mended nodes on the nodes themselves, where no command is configured for it."""

    def __init__(
        self,
        *,
        check_node: Asks,
        find_node: Callable[[str], Node | None],
        python: str,
        in_pairs: PairRetests | None = None,
    ) -> None:
        """``in_pairs``: what T4 needs beside the node's own checks."""
        self._check_node = check_node
        self._find_node = find_node
        self._python = python
        self._in_pairs = in_pairs

    def test(self, action: RunRetest, should_stop: Callable[[], bool]) -> RetestDone | None:
        """Return what the test came to; None where it has to be asked for again, because nobody could carry it out."""
        node = self._find_node(action.node)
        if node is None:
            return None
        if action.level is not Retest.T4 or self._in_pairs is None:
            return self._test_alone(action, node, action.level, should_stop)
        # The node's own part takes a quarter of an hour: it is not done again for each try at the pairs.
        if not (node.simulated or self._in_pairs.is_begun(action.name)):
            alone = self._test_alone(action, node, Retest.T3, should_stop)
            if alone is None or alone.status is not CheckStatus.PASS:
                return alone
        verdict = self._in_pairs.test(action, should_stop)
        return tested(action, verdict.status, verdict.message) if verdict is not None else None

    def _test_alone(
        self, action: RunRetest, node: Node, level: Retest, should_stop: Callable[[], bool]
    ) -> RetestDone | None:
        profile = Profile.FAST if level is Retest.T1 else Profile.FULL
        try:
            results = run_round(
                self._check_node, node, profile, self._python, f"retest/{action.name}", should_stop
            )
        except Unavailable as problem:
            if problem.code in LATER or problem.code == "CHECKS_STOPPED":
                return None
            return tested(action, CheckStatus.UNKNOWN, problem.message)
        devices = len(node.devices) if node.model is not None else 0
        verdict = judged(level, results, devices)
        return tested(action, verdict.status, verdict.message)


def tested(action: RunRetest, status: CheckStatus, said: str) -> RetestDone:
    """Return the answer to a test."""
    return RetestDone(node=action.node, name=action.name, status=status, message=said)
