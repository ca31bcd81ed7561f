"""The last part of the longest test of a mended node (T4): pair tests against two idle nodes that are known to be well.

Owns: which two, what shows that they are well, how many tests, how long idle nodes are waited for. Must not know: how a
pair is measured, the node's own checks.

The two are tested against each other first: what they have between them is what the mended node has to come up to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from airyard.core.actions import RunRetest
from airyard.core.cluster import Node
from airyard.core.health.fabric import (
    CERTIFY,
    FirstPass,
    Measured,
    Outcome,
    PairResult,
    against,
    concluded,
)
from airyard.core.health.facts import CheckStatus
from airyard.core.health.retesting import Verdict
from airyard.core.health.tournament import second_pass
from airyard.server.pair_rounds import PairRounds

WAIT_S = 30 * 60.0
"""So long two idle nodes are waited for, and whatever else keeps the tests from their end."""
KEPT = 256
Stop = Callable[[], bool]


@dataclass(slots=True)
class _Waiting:
    """One test that has begun. ``tries``: how often two nodes were there for it; ``why``: what kept it from its end."""

    since_s: float = field(default_factory=time.monotonic)
    tries: int = 0
    why: str = ""


class PairRetests:
    """Tests mended nodes in pairs. Any thread; one test is worked at by one thread at a time."""

    def __init__(
        self,
        pairs: PairRounds,
        *,
        find_node: Callable[[str], Node | None],
        partners: Callable[[str], tuple[str, ...]],
        wait_s: float = WAIT_S,
    ) -> None:
        """``partners``: the idle, healthy nodes that another one can be tested against now."""
        self._pairs = pairs
        self._find_node = find_node
        self._partners = partners
        self._wait_s = wait_s
        self._waiting: dict[str, _Waiting] = {}

    def is_begun(self, name: str) -> bool:
        """True for a test whose node has passed its own checks already."""
        return name in self._waiting

    def test(self, action: RunRetest, should_stop: Stop) -> Verdict | None:
        """Return what the pair tests came to; None where they have to be asked for again in a moment."""
        waiting = self._waiting.setdefault(action.name, _Waiting())
        verdict = self._test(action, waiting, should_stop)
        if verdict is None and time.monotonic() - waiting.since_s >= self._wait_s:
            verdict = Verdict(status=CheckStatus.UNKNOWN, message=self._given_up(action.node, waiting))
        if verdict is not None:
            self._waiting.pop(action.name, None)
        for old in [*self._waiting][: -KEPT or None]:
            del self._waiting[old]
        return verdict

    def _test(self, action: RunRetest, waiting: _Waiting, should_stop: Stop) -> Verdict | None:
        node, idle = self._find_node(action.node), self._partners(action.node)
        if node is None or len(idle) < 2:
            there = f"there was {idle[0]}" if idle else "there was none"
            waiting.why = f"two idle, healthy nodes of its pool and kind are needed, and {there}"
            return None
        # Others each time: one of the two may be what is not well.
        first = waiting.tries % len(idle)
        one, other = idle[first], idle[(first + 1 + waiting.tries // len(idle) % (len(idle) - 1)) % len(idle)]
        waiting.tries += 1
        label = f"{action.name}/{waiting.tries}"
        well = self._pairs.measure(one, other, name=f"{label}/well", should_stop=should_stop)
        between = against(well, ())
        if between.outcome is not Outcome.PASS:
            waiting.why = f"{one} and {other}, which it was to be tested against: {between.why}"
            return None
        return self._against(node, (one, other), well, label, waiting, should_stop)

    def _against(
        self,
        node: Node,
        good: tuple[str, str],
        well: Measured,
        label: str,
        waiting: _Waiting,
        should_stop: Stop,
    ) -> Verdict | None:
        """Test the node in both directions until two of three tests agree."""
        # Slots of CPUs share machines with others: what they exchange is judged, not how fast.
        usual = (well,) if node.model is not None else ()
        results: list[PairResult] = []
        for number, pair in enumerate(second_pass((node.name,), good, 0, tests=CERTIFY.again)):
            read = self._pairs.measure(pair.a, pair.b, name=f"{label}/{number}", should_stop=should_stop)
            result = against(read, usual)
            if result.outcome is Outcome.UNKNOWN:
                waiting.why = f"{pair.a} and {pair.b}: {result.why}"
                return None
            results.append(result)
            found = concluded(FirstPass(certified=good, suspects=(node.name,)), (), results)
            if node.name in found.bad:
                said = f"{found.why[node.name]} (with {good[0]} and {good[1]}, which are well)"
                return Verdict(status=CheckStatus.FAIL, message=said)
            if node.name in found.certified:
                said = f"its own checks passed, and pair tests with {good[0]} and {good[1]}"
                return Verdict(status=CheckStatus.PASS, message=said)
        return None

    def _given_up(self, node: str, waiting: _Waiting) -> str:
        return (
            f"T4 needs pair tests, which did not come to their end within {self._wait_s / 60:.0f} min: {waiting.why}; "
            "its own checks passed. Keep two of them free, then `airyard health maintenance "
            f"{node} on` and `off` test it again"
        )
