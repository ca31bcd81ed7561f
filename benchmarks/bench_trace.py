"""The recorded trace through the production planner, beside FIFO with fill and the shortest-first oracle.

Owns: the targets and their verdicts; the frontier over the ageing bound. Must not know: how a replay works.
Every figure is a ratio to another policy run by the same simulator on the same yard, in one process, one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
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

NAMES = {Contender.ORACLE: "oracle", Contender.FILL: "FIFO with fill", Contender.AIRYARD: "Airyard"}

SLICED_GPUS = 640
SLICED_MEDIAN_H = 0.5
SLICED_PREEMPTIONS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One policy's figures, and the seconds of one core that the simulation took."""

    figures: Figures
    core_s: float


def replayed(setting: Setting, contender: Contender, tuning: Tuning) -> Measured:
    """Replay under one policy."""
    begun_s = time.process_time()
    found = compare(
        setting,
        [contender],
        tuning=tuning,
        rules=Rules(),
        failures=Failures(),
        stopwatch=time.perf_counter,
    )
    return Measured(figures=found.columns[-1].figures, core_s=time.process_time() - begun_s)


def setting_of(gpus: int, first: int | None) -> Setting:
    """Read the trace for a yard of so many GPUs in nodes of 8."""
    return read_setting(Source(file=FILE, gpus=gpus, gpus_per_node=GPUS_PER_NODE, first=first))


def judge_predicted(gpus: int, ours: Figures, oracle: Figures, fill: Figures) -> None:
    """Print the verdicts on predicted durations without slicing."""
    mean, p99, longest = TARGETS[gpus]
    print(f"  mean over the oracle's:     {verdict(ours.completion.mean / oracle.completion.mean, mean, '')}")
    print(f"  p99 over FIFO with fill's:  {verdict(ours.completion.p99 / fill.completion.p99, p99, '')}")
    print(f"  longest wait:               {verdict(ours.longest_wait_days, longest, ' d')}")


def judge_sliced(sliced: Figures, oracle: Figures) -> None:
    """Print the verdicts on time slicing."""
    each = (sliced.preemptions or 0) / sliced.runs
    print(
        f"  mean over the oracle's:     {verdict(sliced.completion.mean / oracle.completion.mean, 1.0, '')}"
    )
    print(f"  median completion:          {verdict(sliced.completion.median, SLICED_MEDIAN_H, ' h')}")
    print(f"  preemptions a run:          {verdict(each, SLICED_PREEMPTIONS, '')}")


def say(title: str, measured: Measured) -> None:
    """Print a policy's figures in a line."""
    figures, cost = measured.figures, measured.figures.cost
    assert cost is not None
    print(
        f"  {title:<15} mean {figures.completion.mean:6.2f} h, median {figures.completion.median:5.2f}, p99 "
        f"{figures.completion.p99:6.1f}, longest wait {figures.longest_wait_days:5.2f} d, "
        f"{figures.preemptions:6} preemptions; {cost.plans:6} plans, p50 {cost.plan_p50_ms:.2f} ms, p99 "
        f"{cost.plan_p99_ms:.2f} ms; {measured.core_s:.0f} s of one core",
        flush=True,
    )


def frontier(first: int | None) -> None:
    """Print mean, p99 and longest wait over the ageing bound."""
    for gpus in TARGETS:
        setting = setting_of(gpus, first)
        print(f"{gpus} GPUs, predicted durations, over the ageing bound:")
        for days in FRONTIER_DAYS:
            tuning = Tuning(ageing_ms=NEVER_MS if days is None else days * DAY_MS)
            figures = replayed(setting, Contender.AIRYARD, tuning).figures
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
        found = {}
        for contender in (Contender.ORACLE, Contender.FILL, Contender.AIRYARD):
            found[contender] = replayed(setting, contender, Tuning())
            say(NAMES[contender], found[contender])
        oracle, fill = found[Contender.ORACLE].figures, found[Contender.FILL].figures
        judge_predicted(gpus, found[Contender.AIRYARD].figures, oracle, fill)
        slowest = max([slowest, *(one.core_s for one in found.values())])
        if gpus == SLICED_GPUS:
            sliced = replayed(setting, Contender.AIRYARD, Tuning(slicing=True))
            say("Airyard, sliced", sliced)
            judge_sliced(sliced.figures, oracle)
            slowest = max(slowest, sliced.core_s)
    print(f"slowest simulation of the trace: {verdict(slowest, LIMIT_S, ' s of one core', digits=0)}")
    if options.frontier:
        frontier(first)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
