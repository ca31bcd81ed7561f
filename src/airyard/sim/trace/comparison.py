"""``airyard sim trace``: reads a trace, replays it under several policies, and sums them up side by side.

Owns: the order of these steps and the refusal of what makes no sense together. Must not know: the command line's form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from airyard.core.errors import UserError
from airyard.core.policy import Policy
from airyard.core.scheduling.plan import NodeView
from airyard.sim.slurm.reader import read_slurm
from airyard.sim.trace import report
from airyard.sim.trace.demand import DEFAULT_POOL, Demand, demand_of, even_nodes, nodes_of
from airyard.sim.trace.engine import HOUR_MS, Replay, Rules, Watch
from airyard.sim.trace.metrics import figures_of, recorded_figures
from airyard.sim.trace.outages import Outage, draw_outages
from airyard.sim.trace.philly import read_philly
from airyard.sim.trace.policies import Contender, Entry, Tuning, entries, recorded_policy
from airyard.sim.trace.records import Trace
from airyard.spec.yard import load_yard

Progress = Callable[[str, int, int, int], None]
"""Is told (title, runs arrived, runs in all, runs waiting)."""


class TraceFormat(StrEnum):
    """The forms of trace files."""

    PHILLY = "philly"
    SACCT = "sacct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the demand comes from, and the yard that it is put to.

    ``more`` are other outputs of Slurm (nodes, associations, QOS, topology). ``gpus`` None takes the recorded nodes.
    ``first`` keeps only so many runs.
    """

    file: Path
    format: TraceFormat = TraceFormat.PHILLY
    more: tuple[Path, ...] = ()
    gpus: int | None = None
    gpus_per_node: int = 8
    first: int | None = None
    policy: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How nodes fail; a rate of 0 is never."""

    per_gpu_day: float = 0.0
    repair_ms: int = 4 * HOUR_MS
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A demand with the policy that was declared or recorded for it."""

    source: str
    trace: Trace
    demand: Demand
    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What came of it."""

    setting: Setting
    columns: tuple[report.Column, ...] = ()
    stuck: tuple[str, ...] = field(default=())
    """Of each policy that left runs waiting for ever: how many, and the planner's reason for the first."""

    def as_text(self) -> str:
        """Return all of it for people."""
        parts = [
            report.head(self.setting.demand, self.setting.source),
            report.table(self.columns),
            report.accuracy(self.columns),
            "\n".join(self.stuck),
            report.not_carried(self.setting.trace.not_carried),
        ]
        return "\n\n".join(part for part in parts if part)

    def as_json(self) -> dict[str, Any]:
        """Return all of it for machines."""
        return {
            "source": self.setting.source,
            "demand": report.demand_json(self.setting.demand),
            "policies": [
                {"policy": one.name, "title": one.title, **report.figures_json(one.figures)}
                for one in self.columns
            ],
            "stuck": list(self.stuck),
            "not_carried": report.not_carried_json(self.setting.trace.not_carried),
        }


def read_setting(source: Source) -> Setting:
    """Read the trace and put it to its yard. Raises: UserError for a malformed file or a yard that cannot be."""
    trace = _read(source)
    if source.first is not None:
        trace = Trace(runs=trace.runs[: source.first], yard=trace.yard, not_carried=trace.not_carried)
    nodes, pool = _nodes(source, trace)
    demand = demand_of(trace, nodes, pool=pool)
    if not demand.jobs:
        raise UserError(
            f"{source.file}: {_none_fits(len(trace.runs))} the yard even if it were empty: "
            f"{demand.too_large[0].why}.",
            code="BAD_TRACE",
            fix="Give a larger yard, or nodes with more devices.",
        )
    policy = recorded_policy(trace.yard.projects, demand.pools)
    if source.policy is not None:
        policy = load_yard(source.policy).policy
    return Setting(source=source.file.name, trace=trace, demand=demand, policy=policy)


def _none_fits(runs: int) -> str:
    return f"none of its {runs:,} runs would fit" if runs != 1 else "its only run would not fit"


def _read(source: Source) -> Trace:
    if source.format is TraceFormat.SACCT:
        return read_slurm(source.file, source.more)
    if source.more:
        raise UserError(
            f"{source.more[0]} is given beside {source.file}, which is read as a trace in four columns.",
            code="INVALID_ARGS",
            fix="Nodes and associations go with --format sacct.",
        )
    return read_philly(source.file, gpus_per_node=source.gpus_per_node)


def _nodes(source: Source, trace: Trace) -> tuple[Sequence[NodeView], str | None]:
    """Return the nodes, and the one pool that all runs go to when the yard is not the recorded one."""
    recorded = nodes_of(trace.yard.nodes)
    if source.gpus is not None:
        nodes = even_nodes(source.gpus, source.gpus_per_node)
        return nodes, DEFAULT_POOL
    if recorded:
        return recorded, None
    if trace.yard.nodes:
        raise UserError(
            f"All {len(trace.yard.nodes)} nodes were down or drained when they were recorded.",
            code="BAD_TRACE",
            fix="Give --gpus and --gpus-per-node instead of the nodes.",
        )
    raise UserError(
        f"{source.file} does not say what yard its runs ran on.",
        code="INVALID_ARGS",
        fix="Give --gpus N (and --gpus-per-node K)"
        + (", or the nodes with --nodes-file." if source.format is TraceFormat.SACCT else "."),
    )


def outages_of(demand: Demand, failures: Failures) -> tuple[Outage, ...]:
    """Draw the failures of a replay: between its first arrival and twice the time to its last."""
    if failures.per_gpu_day <= 0:
        return ()
    first, last = demand.jobs[0].arrives_ms, demand.jobs[-1].arrives_ms
    longest = max(job.run.duration_ms for job in demand.jobs)
    return draw_outages(
        demand.nodes,
        per_gpu_day=failures.per_gpu_day,
        repair_ms=failures.repair_ms,
        from_ms=first,
        to_ms=2 * last - first + longest,
        seed=failures.seed,
    )


def compare(
    setting: Setting,
    which: Sequence[Contender],
    *,
    tuning: Tuning,
    rules: Rules,
    failures: Failures,
    stopwatch: Callable[[], float],
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Comparison:
    """Replay the setting under each policy. Raises: UserError for a policy that does not fit the yard."""
    demand = setting.demand
    outages = outages_of(demand, failures)
    columns, stuck = [], []
    recorded = recorded_figures(demand)
    if recorded is not None:
        columns.append(report.Column(name="recorded", title="really", figures=recorded))
    for entry in entries(which, demand.nodes, setting.policy, tuning, rules):
        replay = Replay(
            demand,
            entry.policy,
            entry.rules,
            entry.durations(),
            stopwatch=stopwatch,
            outages=outages,
            watch=watch,
            progress=_reporter(entry, demand, progress),
        )
        replayed = replay.run()
        if replayed.stuck:
            reason = next(iter(replayed.stuck.values()))
            why = f": {reason.message}" if reason is not None else ""
            count = report.counted(len(replayed.stuck), "run")
            stuck.append(f"{entry.title}: {count} never started, the first{why}")
        figures = figures_of(replayed, demand)
        columns.append(report.Column(name=entry.contender.value, title=entry.title, figures=figures))
    return Comparison(setting=setting, columns=tuple(columns), stuck=tuple(stuck))


def _reporter(entry: Entry, demand: Demand, progress: Progress | None) -> Callable[[int, int], None] | None:
    if progress is None:
        return None

    def tell(arrived: int, waiting: int) -> None:
        progress(entry.title, arrived, len(demand.jobs), waiting)

    return tell
