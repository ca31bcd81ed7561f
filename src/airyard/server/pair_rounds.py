"""Tests of two nodes against each other, as the server asks their agents for them.

Owns: that no node is in two tests at a time, how long one may take, what an answer comes to. Must not know: routes, how
an agent is reached, who is tested against whom, what a figure means (``core/health/fabric``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from airyard.core.cluster import Node
from airyard.core.errors import Unavailable
from airyard.core.health.fabric import Measured
from airyard.core.health.tournament import Pair

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

    def __init__(self, *, pair_nodes: AsksPair, find_node: Callable[[str], Node | None], python: str) -> None:
        """``python``: an interpreter that may have torch, on the nodes."""
        self._pair_nodes = pair_nodes
        self._find_node = find_node
        self._python = python
        self._taken: set[str] = set()
        self._freed = threading.Condition()

    def measure(self, one: str, other: str, *, name: str, should_stop: Callable[[], bool]) -> Measured:
        """Test two nodes against each other: ``one`` serves, ``other`` calls. Blocks, ``should_stop`` at most.

        ``name`` is of this test alone. Never raises for what a node or machine does: one that is away, busy, too old or
        not known, and a test that gave way to work, is ``stopped``, which says nothing of the nodes; ``problem`` beside
        it says why. ``problem`` alone is a failure: the two did not come together.
        """
        pair = Pair(a=one, b=other)
        nodes = self._find_node(one), self._find_node(other)
        if nodes[0] is None or nodes[1] is None:
            missing = one if nodes[0] is None else other
            return Measured(pair=pair, stopped=True, problem=f"there is no node {missing}")
        asked = {"name": name, "nodes": [one, other], "python": self._python}
        with self._alone((nodes[0], nodes[1]), should_stop) as mine:
            if not mine:
                return Measured(pair=pair, stopped=True)
            try:
                answer = self._pair_nodes(
                    (nodes[0].machine, nodes[1].machine), asked, should_stop=should_stop
                )
            except Unavailable as problem:
                return Measured(pair=pair, stopped=True, problem=problem.message)
        return _read(pair, answer)

    @contextmanager
    def _alone(self, nodes: tuple[Node, Node], should_stop: Callable[[], bool]) -> Iterator[bool]:
        """Wait until nothing else is tested on the nodes or, where they are real, on their machines."""
        wanted = {f"node {node.name}" for node in nodes}
        wanted |= {f"machine {node.machine}" for node in nodes if not node.simulated}
        with self._freed:
            while self._taken & wanted:
                if should_stop():
                    break
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
    state = answer["state"]
    if state == "stopped":
        return Measured(pair=pair, stopped=True, problem=str(answer.get("problem") or ""))
    if state == "hung":
        return Measured(pair=pair, hung=True)
    if state != "done":
        return Measured(pair=pair, problem=str(answer.get("problem") or "the two did not come together"))
    return Measured(
        pair=pair,
        busbw_gb_s=float(answer["busbw_gb_s"]),
        latency_p95_us=float(answer["latency_p95_us"]),
        correct=bool(answer["correct"]),
        errors_grown=int(answer["errors_grown"]),
    )
