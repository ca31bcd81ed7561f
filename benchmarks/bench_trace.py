"""The recorded trace through the production planner, beside FIFO with fill and the shortest-first oracle.

Owns: the targets and their verdicts; the frontier over the ageing bound. Must not know: how a replay works.
Every figure is a ratio to another policy run by the same simulator on the same yard. One process, one core.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from airyard.core.policy import DAY_MS
from airyard.sim.trace import report
from airyard.sim.trace.comparison import Failures, Setting, Source, compare, read_setting
from airyard.sim.trace.engine import Rules
from airyard.sim.trace.metrics import Figures
from airyard.sim.trace.policies import NEVER_MS, Contender, Tuning
from benchmarks.figures import verdict

FILE = Path(__file__).resolve().parent / "data" / "philly-2017-sep-oct.csv.xz"
GPUS_PER_NODE = 8
QUICK_RUNS = 3_000
LIMIT_S = 300.0
FRONTIER_DAYS = (2, 4, 6, 8, 10, 12, 16, None)
"""Ageing bounds; None is none."""

TARGETS = {640: (1.25, 1.0, 12.0), 512: (2.0, 1.25, 14.0)}
"""GPUs → mean over the oracle's, p99 over that of FIFO with fill, longest wait in days: at most."""

SLICED_GPUS = 640
SLICED_MEDIAN_H = 0.5
SLICED_PREEMPTIONS = 0.5


def replayed(setting: Setting, which: Sequence[Contender], tuning: Tuning) -> dict[Contender, Figures]:
    """Replay under some policies and return their figures."""
    found = compare(
        setting,
        which,
        tuning=tuning,
        rules=Rules(),
        failures=Failures(),
        stopwatch=time.process_time,
    )
    return {Contender(column.name): column.figures for column in found.columns}


def setting_of(gpus: int, first: int | None) -> Setting:
    """Read the trace for a yard of so many GPUs in nodes of 8."""
    return read_setting(Source(file=FILE, gpus=gpus, gpus_per_node=GPUS_PER_NODE, first=first))


def judge_predicted(gpus: int, found: dict[Contender, Figures]) -> None:
    """Print the verdicts on predicted durations without slicing."""
    mean, p99, longest = TARGETS[gpus]
    ours, oracle, fill = found[Contender.AIRYARD], found[Contender.ORACLE], found[Contender.FILL]
    for title, figures in (("oracle", oracle), ("FIFO with fill", fill), ("Airyard", ours)):
        print(f"  {title:<15} {in_short(figures)}")
    print(
        f"  mean over the oracle's:        {verdict(ours.completion.mean / oracle.completion.mean, mean, '')}"
    )
    print(f"  p99 over FIFO with fill's:     {verdict(ours.completion.p99 / fill.completion.p99, p99, '')}")
    print(f"  longest wait:                  {verdict(ours.longest_wait_days, longest, ' d')}")


def judge_sliced(sliced: Figures, oracle: Figures) -> None:
    """Print the verdicts on time slicing."""
    print(f"  {'sliced':<15} {in_short(sliced)}")
    print(
        f"  mean over the oracle's:        {verdict(sliced.completion.mean / oracle.completion.mean, 1.0, '')}"
    )
    print(f"  median completion:             {verdict(sliced.completion.median, SLICED_MEDIAN_H, ' h')}")
    each = (sliced.preemptions or 0) / sliced.runs
    print(f"  preemptions a run:             {verdict(each, SLICED_PREEMPTIONS, '')}")


def in_short(figures: Figures) -> str:
    """Return a policy's figures in a line."""
    cost = figures.cost
    assert cost is not None
    return (
        f"mean {figures.completion.mean:6.2f} h, median {figures.completion.median:5.2f}, p99 "
        f"{figures.completion.p99:6.1f}, longest wait {figures.longest_wait_days:5.2f} d, "
        f"{figures.preemptions} preemptions; {cost.plans} plans of p50 {cost.plan_p50_ms:.2f} ms, p99 "
        f"{cost.plan_p99_ms:.2f} ms; {cost.wall_s:.0f} s"
    )


def frontier(first: int | None) -> None:
    """Print mean, p99 and longest wait over the ageing bound."""
    for gpus in TARGETS:
        setting = setting_of(gpus, first)
        print(f"{gpus} GPUs, predicted durations, over the ageing bound:")
        for days in FRONTIER_DAYS:
            tuning = Tuning(ageing_ms=NEVER_MS if days is None else days * DAY_MS)
            figures = replayed(setting, [Contender.AIRYARD], tuning)[Contender.AIRYARD]
            bound = "none" if days is None else f"{days} d"
            print(
                f"  {bound:>5}: mean {figures.completion.mean:6.2f} h, p99 {figures.completion.p99:6.1f} h, "
                f"longest wait {figures.longest_wait_days:5.2f} d",
                flush=True,
            )


def main(argv: Sequence[str] = ()) -> int:
    """Print each target beside what was measured; --frontier adds mean, p99 and longest wait over the ageing bound."""
    parser = argparse.ArgumentParser(prog="bench_trace", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="only the first runs, to see that it works")
    parser.add_argument("--frontier", action="store_true", help="also the figures over the ageing bound")
    options = parser.parse_args(argv)
    first = QUICK_RUNS if options.quick else None
    slowest = 0.0
    for gpus in TARGETS:
        setting = setting_of(gpus, first)
        print(report.head(setting.demand, setting.source), flush=True)
        found = replayed(setting, (Contender.ORACLE, Contender.FILL, Contender.AIRYARD), Tuning())
        judge_predicted(gpus, found)
        if gpus == SLICED_GPUS:
            sliced = replayed(setting, [Contender.AIRYARD], Tuning(slicing=True))[Contender.AIRYARD]
            judge_sliced(sliced, found[Contender.ORACLE])
            slowest = max(slowest, sliced.cost.wall_s if sliced.cost else 0.0)
        slowest = max([slowest, *(one.cost.wall_s for one in found.values() if one.cost)])
    print(f"slowest simulation of the trace: {verdict(slowest, LIMIT_S, ' s', digits=0)}")
    if options.frontier:
        frontier(first)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
