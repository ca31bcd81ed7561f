"""What a replay, or the record itself, comes to in figures.

Owns: their definitions. Must not know: how the replay went about it, how figures are shown.
Completion is from arrival to the last end; waiting is all the time in the queue, also after an eviction or a failure.
Percentiles are by nearest rank. GPU-hours are those of devices held, whatever was done with them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airyard.sim.trace.demand import Demand, Job
from airyard.sim.trace.durations import Accuracy
from airyard.sim.trace.engine import HOUR_MS, Replayed
from airyard.sim.trace.lives import Life

DAY_MS = 24 * HOUR_MS
SHORT_MS = 600_000
"""A run shorter than this counts as this long where its slowdown is taken: else seconds would decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Hours."""

    mean: float
    median: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What simulating took, in real time."""

    wall_s: float
    plans: int
    plan_p50_ms: float
    plan_p99_ms: float
    events: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One policy's figures. What a record cannot say is None.

    ``utilisation`` is between first and last arrival, of the devices that were not down. ``idle_placeable`` are
    GPU-hours of free devices that waiting runs which fitted there could have used. ``worst_slowdown`` is the mean
    slowdown (completion over duration) of the project that fares worst, over the mean of all runs. ``lost`` are
    GPU-hours of work done twice, ``leaving`` those held to write a last checkpoint. ``share`` is each project's part
    of the GPU-hours held between first and last arrival. ``unended`` runs never ended; nothing of them is counted.
    """

    runs: int
    unended: int
    completion: Spread
    waiting: Spread
    longest_wait_days: float
    utilisation: float
    worst_project: str
    worst_slowdown: float
    idle_placeable: float | None = None
    preemptions: int | None = None
    failures: int | None = None
    lost: float | None = None
    leaving: float | None = None
    most_waiting: int | None = None
    share: Mapping[str, float] = field(default_factory=dict)
    accuracy: Accuracy | None = None
    cost: Cost | None = None


def figures_of(replayed: Replayed, demand: Demand) -> Figures:
    """Sum up a replay."""
    ended = [life for life in replayed.lives if life.ended_ms is not None]
    rows = [_Row(life.job, _completion(life), life.waited_ms) for life in ended]
    worst, slowdown = _worst(rows)
    window = (replayed.to_ms - replayed.from_ms) * demand.devices() - replayed.down
    all_lives = replayed.lives
    plans = sorted(replayed.plans_s)
    return Figures(
        runs=len(ended),
        unended=len(all_lives) - len(ended),
        completion=_spread([row.completion_ms for row in rows]),
        waiting=_spread([row.waited_ms for row in rows]),
        longest_wait_days=max((row.waited_ms for row in rows), default=0) / DAY_MS,
        utilisation=sum(replayed.held.values()) / window if window > 0 else 0.0,
        worst_project=worst,
        worst_slowdown=slowdown,
        idle_placeable=replayed.idle_placeable / HOUR_MS,
        preemptions=sum(life.evictions for life in all_lives),
        failures=sum(life.failures for life in all_lives),
        lost=sum(life.lost for life in all_lives) / HOUR_MS,
        leaving=sum(life.paid for life in all_lives) / HOUR_MS,
        most_waiting=replayed.most_waiting,
        share=_parts(replayed.held),
        accuracy=replayed.judge.accuracy(),
        cost=Cost(
            wall_s=replayed.wall_s,
            plans=len(plans),
            plan_p50_ms=1000 * at_rank(plans, 0.5),
            plan_p99_ms=1000 * at_rank(plans, 0.99),
            events=replayed.events,
        ),
    )


def recorded_figures(demand: Demand) -> Figures | None:
    """Sum up what really happened; None when the record does not say when every run started and ended."""
    rows: list[_Row] = []
    held: dict[str, int] = {}
    first = min((job.arrives_ms for job in demand.jobs), default=0)
    last = max((job.arrives_ms for job in demand.jobs), default=0)
    for job in demand.jobs:
        run = job.run
        if run.really_started_ms is None or run.really_ended_ms is None:
            return None
        completion_ms = run.really_ended_ms - run.begin_ms
        rows.append(_Row(job, completion_ms, max(completion_ms - run.duration_ms, 0)))
        # A run that started more than once held its devices for a part of the time between.
        span_ms = max(run.really_ended_ms - run.really_started_ms, 1)
        overlap_ms = min(run.really_ended_ms, last) - max(run.really_started_ms, first)
        inside = max(overlap_ms, 0) * run.devices * min(run.duration_ms, span_ms) // span_ms
        held[run.project] = held.get(run.project, 0) + inside
    if not rows:
        return None
    worst, slowdown = _worst(rows)
    window = (last - first) * demand.devices()
    return Figures(
        runs=len(rows),
        unended=0,
        completion=_spread([row.completion_ms for row in rows]),
        waiting=_spread([row.waited_ms for row in rows]),
        longest_wait_days=max(row.waited_ms for row in rows) / DAY_MS,
        utilisation=sum(held.values()) / window if window > 0 else 0.0,
        worst_project=worst,
        worst_slowdown=slowdown,
        share=_parts(held),
    )


def load(demand: Demand) -> float:
    """Return the work asked for over what the yard can do between first and last arrival; 0 when all arrive at once."""
    if not demand.jobs:
        return 0.0
    window = (demand.jobs[-1].arrives_ms - demand.jobs[0].arrives_ms) * demand.devices()
    return sum(job.run.devices * job.run.duration_ms for job in demand.jobs) / window if window else 0.0


def at_rank(ordered: Sequence[float], part: float) -> float:
    """Return the nearest-rank percentile of sorted values; 0 when there are none."""
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)] if ordered else 0.0


@dataclass(frozen=True, slots=True)
class _Row:
    job: Job
    completion_ms: int
    waited_ms: int


def _completion(life: Life) -> int:
    assert life.ended_ms is not None
    return life.ended_ms - life.job.arrives_ms


def _spread(values_ms: Sequence[int]) -> Spread:
    ordered = sorted(value / HOUR_MS for value in values_ms)
    return Spread(
        mean=sum(ordered) / len(ordered) if ordered else 0.0,
        median=at_rank(ordered, 0.5),
        p95=at_rank(ordered, 0.95),
        p99=at_rank(ordered, 0.99),
    )


def _worst(rows: Sequence[_Row]) -> tuple[str, float]:
    """Return the project with the largest mean slowdown, and how many times the mean of all runs that is."""
    of_project: dict[str, list[float]] = {}
    for row in rows:
        duration_ms = row.job.run.duration_ms
        slowdown = max((row.completion_ms - duration_ms) / max(duration_ms, SHORT_MS), 0.0) + 1
        of_project.setdefault(row.job.run.project, []).append(slowdown)
    if not of_project:
        return "", 1.0
    mean = sum(map(sum, of_project.values())) / len(rows)
    means = {name: sum(values) / len(values) for name, values in of_project.items()}
    worst = max(sorted(means), key=lambda name: means[name])
    return worst, means[worst] / mean


def _parts(held: Mapping[str, int]) -> dict[str, float]:
    total = sum(held.values())
    return (
        {name: held[name] / total for name in sorted(held, key=lambda one: (-held[one], one))}
        if total
        else {}
    )
