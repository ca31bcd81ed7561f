"""Tests of two nodes that persons ask for, one pair at a time: begun, waited for, judged.

Owns: what such a test comes to for who asked. Must not know: routes, how nodes are reached.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import structlog

from airyard.core.errors import AiryardError, Unavailable
from airyard.core.health.fabric import Measured, PairResult
from airyard.server.attended import Attended
from airyard.server.pair_rounds import PairRounds

_log = structlog.get_logger("airyard.pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """What a test came to: figures and a verdict, or ``problem``, why there are none."""

    one: str
    other: str
    machines: tuple[str, str]
    simulated: bool
    measured: Measured | None = None
    result: PairResult | None = None
    problem: AiryardError | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the wire form; figures only where there are some."""
        said: dict[str, Any] = {
            "nodes": [self.one, self.other],
            "machines": list(self.machines),
            "simulated": self.simulated,
            "problem": self.problem.as_json() if self.problem is not None else None,
        }
        if self.measured is not None and self.result is not None:
            said |= {"outcome": self.result.outcome.value, "why": self.result.why}
            if self.measured.finished:
                said |= {
                    "method": self.measured.method,
                    "busbw_gb_s": self.measured.busbw_gb_s,
                    "latency_p95_us": self.measured.latency_p95_us,
                    "correct": self.measured.correct,
                    "errors_grown": self.measured.errors_grown,
                    "adapters": [asdict(each) for each in self.measured.adapters],
                }
        return said


class PairDesk:
    """Takes what persons ask for. Any thread."""

    def __init__(self, pairs: PairRounds) -> None:
        self._pairs = pairs
        self._work = Attended[Paired]("test of two nodes")

    def begin(self, one: str, other: str) -> str:
        """Begin a test and return its name. Raises: NotFound, UserError, Conflict where too many are under way."""
        first, second = self._pairs.find(one, other)
        found = Paired(
            one=one, other=other, machines=(first.machine, second.machine), simulated=first.simulated
        )
        return self._work.begin(lambda name, should_stop: self._test(name, found, should_stop))

    def wait(self, name: str, wait_s: float) -> Paired | None:
        """Return what a test came to; None while it goes on. Raises: NotFound for one that is not known."""
        return self._work.wait(name, wait_s)

    def _test(self, name: str, found: Paired, should_stop: Callable[[], bool]) -> Paired:
        try:
            measured = self._pairs.test(found.one, found.other, name=name, should_stop=should_stop)
        except AiryardError as problem:
            return replace(found, problem=problem)
        except Exception as error:  # whoever waits hears of it
            _log.exception("pair_broke", nodes=[found.one, found.other])
            said = f"the test of {found.one} and {found.other} broke: {type(error).__name__}: {error}"
            return replace(found, problem=Unavailable(said))
        return replace(found, measured=measured, result=self._pairs.judge(measured))
