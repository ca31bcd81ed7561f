"""Tests of two nodes against each other, as the server asks their agents for them.

Owns: that no node is in two tests at a time, how long one may take, what an answer comes to, what was usual lately.
Must not know: routes, how an agent is reached, who is tested against whom, rules of sweeps (``core/health/fabric``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

from airyard.checks.fabric_probe import parse
from airyard.checks.limit import Limit, whose
from airyard.core.cluster import Node
from airyard.core.errors import AiryardError, NotFound, Unavailable, UserError
from airyard.core.health.fabric import RATIOS_FROM, Measured, PairResult, against
from airyard.core.health.tournament import Pair
from airyard.server.pair_due import METHODS

PAIR_S = 150.0
"""A test's own deadlines on its nodes, and what reaching them takes; the wait for its turn is not in it."""
REMEMBERED = 64
"""So many finished tests are kept, by which one that is asked for by hand is judged."""
_LOOK_S = 0.2


class AsksPair(Protocol):
    """The part of the engine that is needed here."""

    def __call__(
        self, machines: tuple[str, str], asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        """See ``Engine.pair_nodes``."""
        ...


class PairRounds:
    """Measures pairs of nodes. Any thread."""

    def __init__(
        self,
        *,
        pair_nodes: AsksPair,
        find_node: Callable[[str], Node | None],
        python: str,
        due: Callable[[Node], Limit | None] = lambda node: None,
    ) -> None:
        """``python``: an interpreter that may have torch, on the nodes. ``due``: what a node's pool asks of a pair."""
        self._due = due
        self._pair_nodes = pair_nodes
        self._find_node = find_node
        self._python = python
        self._taken: set[str] = set()
        self._freed = threading.Condition()
        self._lately: deque[tuple[str, Measured]] = deque(maxlen=REMEMBERED)

    def measure(self, one: str, other: str, *, name: str, should_stop: Callable[[], bool]) -> Measured:
        """Test two nodes against each other: ``one`` serves, ``other`` calls. Blocks, ``should_stop`` at most.

        ``name`` is of this test alone. Never raises for what a node or machine does: one that is away, busy, too old or
        not known, and a test that gave way to work, is ``stopped``, which says nothing of the nodes; ``problem`` beside
        it says why. ``problem`` alone is a failure: the two did not come together.
        """
        try:
            return self.test(one, other, name=name, should_stop=should_stop)
        except AiryardError as problem:
            return Measured(pair=Pair(a=one, b=other), stopped=True, problem=problem.message)

    def find(self, one: str, other: str) -> tuple[Node, Node]:
        """Return two nodes that can be tested against each other. Raises: NotFound, UserError."""
        if one == other:
            raise UserError(
                f"a pair has two nodes, and {one} is named twice",
                code="SAME_NODE",
                fix="name another node beside it; `airyard nodes` lists them",
                details={"node": one},
            )
        nodes = self._known(one), self._known(other)
        if nodes[0].simulated is not nodes[1].simulated:
            simulated = one if nodes[0].simulated else other
            raise UserError(
                f"{simulated} is simulated and the other node is not: there is nothing between them to test",
                code="MIXED_PAIR",
                fix="take two real nodes, or two simulated ones",
                details={"nodes": [one, other]},
            )
        return nodes

    def test(self, one: str, other: str, *, name: str, should_stop: Callable[[], bool]) -> Measured:
        """Test two nodes as ``measure`` does. Raises: AiryardError; its code says why there is no measurement."""
        pair, nodes = Pair(a=one, b=other), self.find(one, other)
        asked = {"name": name, "nodes": [one, other], "python": self._python}
        with self._alone(nodes, should_stop) as mine:
            if not mine:
                raise _stopped(pair, "its turn did not come")
            until_s = time.monotonic() + PAIR_S
            answer = self._pair_nodes(
                (nodes[0].machine, nodes[1].machine),
                asked,
                should_stop=lambda: should_stop() or time.monotonic() >= until_s,
            )
        measured = self._with_due(_read(pair, answer), nodes)
        if measured.finished and measured.correct and not measured.errors_grown:
            with self._freed:
                self._lately.append((nodes[0].accelerator, measured))
        return measured

    def _with_due(self, measured: Measured, nodes: tuple[Node, Node]) -> Measured:
        """Return a test with what the nodes' pool asks for, where it was measured as that is meant."""
        asked = [due for node in nodes if measured.method in METHODS and (due := self._due(node)) is not None]
        most = max(asked, default=None)
        if most is None or most <= measured.due_gb_s:
            return measured
        return replace(measured, due_gb_s=float(most), due_by=whose(most))

    def judge(self, measured: Measured) -> PairResult:
        """Judge one test by what is due, and by what other nodes of its kind had lately, where they tell.

        Slots of CPUs share their machines with others: they are judged by what they exchanged, not by speed.
        """
        node = self._find_node(measured.pair.a)
        if node is None or node.model is None:
            return against(measured, ())
        with self._freed:
            lately = list(self._lately)
        mine = set(measured.pair.edge)
        others = [
            each for kind, each in lately if kind == node.accelerator and not mine & set(each.pair.edge)
        ]
        return against(measured, others, least=RATIOS_FROM)

    def _known(self, name: str) -> Node:
        node = self._find_node(name)
        if node is None:
            raise NotFound(
                f"there is no node {name}",
                code="NODE_NOT_FOUND",
                fix="`airyard nodes` lists them",
                details={"node": name},
            )
        return node

    @contextmanager
    def _alone(self, nodes: tuple[Node, Node], should_stop: Callable[[], bool]) -> Iterator[bool]:
        """Wait until nothing else is tested on the nodes or, where they are real, on their machines."""
        wanted = {f"node {node.name}" for node in nodes}
        wanted |= {f"machine {node.machine}" for node in nodes if not node.simulated}
        with self._freed:
            while self._taken & wanted and not should_stop():
                self._freed.wait(_LOOK_S)
            mine = not self._taken & wanted
            if mine:
                self._taken |= wanted
        try:
            yield mine
        finally:
            if mine:
                with self._freed:
                    self._taken -= wanted
                    self._freed.notify_all()


def _read(pair: Pair, answer: Mapping[str, Any]) -> Measured:
    """Return what an answer of the engine comes to. Raises: Unavailable where it says nothing."""
    state, problem = answer["state"], str(answer.get("problem") or "")
    if state == "stopped":
        raise _stopped(pair, problem or "work came, or nobody waited for it")
    if state == "hung":
        return Measured(pair=pair, hung=True)
    if state != "done":
        return Measured(pair=pair, problem=problem or "the two did not come together")
    try:
        return parse(pair, answer["served"], answer["called"])
    except (KeyError, TypeError, ValueError) as error:
        raise _stopped(pair, f"its answer cannot be read ({type(error).__name__}: {error})") from error


def _stopped(pair: Pair, why: str) -> Unavailable:
    return Unavailable(
        f"the test of {pair.a} and {pair.b} did not come to its end: {why}",
        code="PAIR_STOPPED",
        fix="`airyard cordon` keeps work away meanwhile; then ask again",
        details={"nodes": [pair.a, pair.b]},
    )
