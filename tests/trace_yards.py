"""Small replays for tests: jobs in hours, one node of 8 GPUs, a clock that does not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airyard.core.policy import Policy
from airyard.core.workload import Priority
from airyard.sim.trace.demand import Demand, demand_of, even_nodes
from airyard.sim.trace.engine import Replay, Replayed, Rules, Watch
from airyard.sim.trace.outages import Outage
from airyard.sim.trace.policies import Contender, Tuning, entries
from airyard.sim.trace.records import Trace, TraceRun

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


def run(
    number: int,
    submit_h: float,
    hours: float,
    gpus: int,
    project: str = "team",
    *,
    per_node: int = 8,
    **more: Any,
) -> TraceRun:
    """A recorded run on as few nodes as hold it."""
    nodes = -(-gpus // per_node)
    submit_ms = round(submit_h * HOUR_MS)
    return TraceRun(
        run_id=number,
        submit_ms=submit_ms,
        begin_ms=submit_ms,
        duration_ms=round(hours * HOUR_MS),
        devices_per_node=gpus // nodes,
        nodes=nodes,
        project=project,
        user=more.pop("user", project),
        experiment=project,
        pool="gpu",
        **more,
    )


def trace(*rows: tuple[float, float, int] | TraceRun) -> Trace:
    """A trace of (submit in hours, duration in hours, GPUs), numbered from 1."""
    return Trace(
        runs=tuple(
            row if isinstance(row, TraceRun) else run(number, *row)
            for number, row in enumerate(rows, start=1)
        )
    )


def demand(*rows: tuple[float, float, int] | TraceRun, gpus: int = 8) -> Demand:
    """What such a trace asks of nodes of 8."""
    return demand_of(trace(*rows), even_nodes(gpus, 8), pool="gpu")


def replay(
    asked: Demand,
    contender: Contender = Contender.AIRYARD,
    *,
    tuning: Tuning | None = None,
    rules: Rules | None = None,
    policy: Policy | None = None,
    outages: Sequence[Outage] = (),
    watch: Watch | None = None,
) -> Replayed:
    """Replay under one policy; Airyard is told the true durations unless the tuning says otherwise."""
    entry = entries(
        [contender],
        asked.nodes,
        policy or Policy(),
        tuning or Tuning(known_durations=True),
        rules or Rules(),
    )[0]
    return Replay(
        asked,
        entry.policy,
        entry.rules,
        entry.durations(),
        stopwatch=lambda: 0.0,
        outages=outages,
        watch=watch,
    ).run()


def starts_h(found: Replayed) -> dict[int, float | None]:
    """When each run first started, in hours."""
    return {
        life.job.run.run_id: None if life.first_ms is None else life.first_ms / HOUR_MS
        for life in found.lives
    }


def ends_h(found: Replayed) -> dict[int, float | None]:
    """When each run ended, in hours."""
    return {
        life.job.run.run_id: None if life.ended_ms is None else life.ended_ms / HOUR_MS
        for life in found.lives
    }


def critical(number: int, submit_h: float, hours: float, gpus: int) -> TraceRun:
    """A run of the highest class."""
    return run(number, submit_h, hours, gpus, priority_class=Priority.CRITICAL)
