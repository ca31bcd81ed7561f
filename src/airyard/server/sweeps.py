"""Carries one sweep out: pairs of idle nodes are measured a few at a time, and make room at once when work comes.

Owns: what becomes of a pair when one of its nodes is wanted, when a sweep is broken off. Must not know: how a pair is
measured, how its figures are judged (``core/health/sweeping``), what a verdict leads to.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from airyard.core.errors import AiryardError
from airyard.core.health.fabric import Measured
from airyard.core.health.fabric_faults import FabricFault, edges_to_see, found_well
from airyard.core.health.idle import Sweep
from airyard.core.health.idle_records import SweepNote
from airyard.core.health.sweeping import Swept, steps
from airyard.core.health.tournament import Pair, Wave

_log = structlog.get_logger("airyard.sweeps")


class Measure(Protocol):
    """Tests two nodes against each other; see ``PairRounds.measure``."""

    def __call__(self, one: str, other: str, *, name: str, should_stop: Callable[[], bool]) -> Measured:
        """Block until it is done or ``should_stop``."""
        ...


class Ground(Protocol):
    """Who says which nodes may be tested at the moment."""

    def claim(self, pair: Pair) -> Callable[[], bool] | None:
        """Take a pair for a test; return what says that it has to make room. None: a node of it is not free."""
        ...

    def release(self, pair: Pair) -> None:
        """Give a pair back."""
        ...

    def in_the_way(self, names: Iterable[str], began_ms: int) -> bool:
        """True when somebody was, or is, on one of the nodes since: what was measured says nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepAsk:
    """One sweep: its nodes, their leaf switches, which edges it meets, and what a pair has to reach."""

    sweep: Sweep
    number: int
    leaf_of: Mapping[str, str]
    floor_gb_s: float
    compare: bool
    """False for slots of CPUs, which share their machines with others: their speed says nothing."""
    least: int
    """A sweep of which fewer nodes are left is broken off: it says nothing."""
    standing: tuple[FabricFault, ...] = ()
    """What earlier sweeps found between nodes, and none found well since."""
    doubted_edges: tuple[tuple[str, str], ...] = ()
    """What sums over gangs speak against."""


class Sweeper:
    """Carries out one sweep at a time, on the caller's thread and one for each pair."""

    def __init__(self, measure: Measure, ground: Ground, now_ms: Callable[[], int]) -> None:
        self._measure = measure
        self._ground = ground
        self._now_ms = now_ms

    def run(self, asked: SweepAsk, should_stop: Callable[[], bool]) -> SweepNote | None:
        """Return what came of it; None when it was broken off, or nothing could be measured. Blocks."""
        sweep, began_ms = asked.sweep, self._now_ms()
        name = f"sweep/{uuid.uuid4().hex[:12]}"
        made = steps(
            sweep.nodes,
            asked.number,
            leaf_of=asked.leaf_of,
            at_once=sweep.at_once,
            floor_gb_s=asked.floor_gb_s,
            compare=asked.compare,
            see=edges_to_see(asked.standing, sweep.nodes),
            doubted_edges=asked.doubted_edges,
        )
        count = 0
        with ThreadPoolExecutor(max(sweep.at_once // 2, 1), thread_name_prefix="pair") as pool:
            try:
                wave = next(made)
                while True:
                    if should_stop() or self._too_few(asked, began_ms):
                        _log.info("sweep_broken_off", pool=sweep.pool, tests=count)
                        return None
                    wave = made.send(self._wave(pool, wave, f"{name}/{count}", began_ms))
                    count += len(wave)
            except StopIteration as end:
                found: Swept = end.value
        if not found.is_telling:
            _log.info("sweep_told_nothing", pool=sweep.pool)
            return None
        return note_of(asked, found, began_ms=began_ms, now_ms=self._now_ms())

    def _too_few(self, asked: SweepAsk, began_ms: int) -> bool:
        free = sum(not self._ground.in_the_way((name,), began_ms) for name in asked.sweep.nodes)
        return free < asked.least

    def _wave(self, pool: ThreadPoolExecutor, wave: Wave, name: str, began_ms: int) -> Sequence[Measured]:
        asked = [
            pool.submit(self._pair, pair, f"{name}.{place}", began_ms) for place, pair in enumerate(wave)
        ]
        return [each.result() for each in asked]

    def _pair(self, pair: Pair, name: str, began_ms: int) -> Measured:
        if self._ground.in_the_way(pair.edge, began_ms):
            return Measured(pair=pair, stopped=True)
        should_stop = self._ground.claim(pair)
        if should_stop is None:
            return Measured(pair=pair, stopped=True)
        try:
            found = self._measure(pair.a, pair.b, name=name, should_stop=should_stop)
            stopped = should_stop()
        except AiryardError as error:
            found, stopped = Measured(pair=pair, problem=error.message), True
        except Exception as error:  # a bug of ours is no fault of a node
            _log.exception("pair_broke", one=pair.a, other=pair.b)
            found, stopped = Measured(pair=pair, problem=repr(error)), True
        finally:
            self._ground.release(pair)
        if stopped or self._ground.in_the_way(pair.edge, began_ms):
            # Whatever it read, it shared the nodes with somebody's work.
            return Measured(pair=pair, stopped=True, problem=found.problem)
        return replace(found, pair=pair)


def note_of(asked: SweepAsk, found: Swept, *, began_ms: int, now_ms: int) -> SweepNote:
    """Return a sweep as it is journalled."""
    verdict = found.verdict
    unknown = tuple(name for name in verdict.unknown if name not in found.doubtful)
    told = {*verdict.certified, *verdict.bad, *verdict.unknown}
    return SweepNote(
        number=asked.number,
        at_ms=now_ms,
        tests=len(found.tests),
        took_ms=max(now_ms - began_ms, 0),
        certified=verdict.certified,
        bad=verdict.bad,
        doubtful=found.doubtful,
        unknown=unknown,
        spared=tuple(name for name in asked.sweep.nodes if name not in told),
        edges=verdict.edges,
        leaves=verdict.leaves,
        rails=verdict.rails,
        why=dict(verdict.why),
        well=found_well(asked.standing, found.tests, verdict, asked.leaf_of),
    )
