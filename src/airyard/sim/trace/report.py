"""The figures of a comparison as text for people and as JSON.

Owns: labels, units, columns. Must not know: how figures come about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airyard.core.wording import hours as amount
from airyard.core.wording import span
from airyard.sim.trace.demand import Demand
from airyard.sim.trace.engine import HOUR_MS
from airyard.sim.trace.metrics import Figures, load
from airyard.sim.trace.records import NotCarried

Row = tuple[str, Callable[[Figures], str | None]]
MOST_PROJECTS = 12
NOTHING = "-"
LOAD_FROM_MS = HOUR_MS
"""The load is the demand over what the yard serves while runs come: within less time it says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One policy's figures, or those of the record."""

    name: str
    title: str
    figures: Figures


def _hours(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.1f}"


def _count(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


ROWS: tuple[Row, ...] = (
    ("runs that ended", lambda f: _count(f.runs)),
    ("runs that never ended", lambda f: _count(f.unended) if f.unended else None),
    ("completion, mean (h)", lambda f: _hours(f.completion.mean)),
    ("            median", lambda f: _hours(f.completion.median)),
    ("            p95", lambda f: _hours(f.completion.p95)),
    ("            p99", lambda f: _hours(f.completion.p99)),
    ("waiting, mean (h)", lambda f: _hours(f.waiting.mean)),
    ("         median", lambda f: _hours(f.waiting.median)),
    ("         p95", lambda f: _hours(f.waiting.p95)),
    ("         p99", lambda f: _hours(f.waiting.p99)),
    ("         longest (d)", lambda f: f"{f.longest_wait_days:.2f}"),
    ("utilisation (%)", lambda f: f"{100 * f.utilisation:.1f}"),
    ("idle while placeable work waits (GPU-h)", lambda f: _count(f.idle_placeable)),
    ("worst project's slowdown over the mean", lambda f: f"{f.worst_slowdown:.2f}"),
    ("preemptions", lambda f: _count(f.preemptions)),
    ("stops by failed nodes", lambda f: _count(f.failures) if f.failures else None),
    ("lost work (GPU-h)", lambda f: _count(f.lost)),
    ("held while leaving (GPU-h)", lambda f: _count(f.leaving) if f.leaving else None),
    ("most runs waiting", lambda f: _count(f.most_waiting)),
    ("plans made", lambda f: _count(f.cost.plans) if f.cost else None),
    ("time per plan, p50 (ms)", lambda f: f"{f.cost.plan_p50_ms:.2f}" if f.cost else None),
    ("               p99 (ms)", lambda f: f"{f.cost.plan_p99_ms:.2f}" if f.cost else None),
    ("simulated in (s)", lambda f: f"{f.cost.wall_s:.1f}" if f.cost else None),
)


def table(columns: Sequence[Column]) -> str:
    """Return the figures, one policy a column; rows that say nothing are left out."""
    cells = [(label, [of(column.figures) for column in columns]) for label, of in ROWS]
    rows = [("", [column.title for column in columns])]
    rows += [(label, [value or NOTHING for value in values]) for label, values in cells if any(values)]
    rows += [("share of GPU-hours (%)", [""] * len(columns))] if _shares(columns) else []
    rows += _shares(columns)
    left = max(len(label) for label, _ in rows)
    widths = [max(len(values[at]) for _, values in rows) for at in range(len(columns))]
    return "\n".join(
        "  ".join(
            [f"{label:<{left}}", *(f"{value:>{width}}" for value, width in zip(values, widths, strict=True))]
        ).rstrip()
        for label, values in rows
    )


def _shares(columns: Sequence[Column]) -> list[tuple[str, list[str]]]:
    """Return a row for each of the largest projects; the rest is one row."""
    total: dict[str, float] = {}
    for column in columns:
        for name, part in column.figures.share.items():
            total[name] = total.get(name, 0.0) + part
    if len(total) < 2:
        return []
    names = sorted(total, key=lambda name: (-total[name], name))
    shown = names if len(names) <= MOST_PROJECTS else names[: MOST_PROJECTS - 1]
    rest = names[len(shown) :]
    rows = [(f"  {name}", [_part(column.figures.share.get(name)) for column in columns]) for name in shown]
    if rest:
        sums = [sum(column.figures.share.get(name, 0.0) for name in rest) for column in columns]
        rows.append((f"  {len(rest)} others", [_part(value) for value in sums]))
    return rows


def _part(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.1f}"


def counted(count: int, word: str) -> str:
    """Return ``1 run``, ``2,000 runs``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _span(duration_ms: float) -> str:
    """Return ``60.9 days``, and below two days ``5 h 20 min``."""
    days = duration_ms / HOUR_MS / 24
    return f"{days:.1f} days" if days >= 2 else span(int(duration_ms))


def _few(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 10 else amount(hours)


def head(demand: Demand, source: str) -> str:
    """Return what was replayed, in a line or two."""
    jobs = demand.jobs
    hours = sum(job.run.devices * job.run.duration_ms for job in jobs) / HOUR_MS
    came_ms = jobs[-1].arrives_ms - jobs[0].arrives_ms if jobs else 0
    when = f" that came within {_span(came_ms)}" if came_ms else ""
    share = f": load {100 * load(demand):.0f} %" if came_ms >= LOAD_FROM_MS else ""
    lines = [
        f"{source}: {counted(len(jobs), 'run')} of {_few(hours)} GPU-hours{when}, on "
        f"{counted(demand.devices(), 'GPU')} in {counted(len(demand.nodes), 'node')}{share}"
    ]
    if demand.too_large:
        first = demand.too_large[0]
        lines.append(
            f"Left out: {counted(len(demand.too_large), 'run')} that would not fit the empty yard (run "
            f"{first.job.run.name or first.job.run.run_id}: {first.why})"
        )
    return "\n".join(lines)


def accuracy(columns: Sequence[Column]) -> str:
    """Return how far off the forecast of the last policy was that had to predict; empty when none had."""
    for column in reversed(columns):
        found = column.figures.accuracy
        if found is not None and found.runs and found.factor_p90 > 1:
            return (
                f"Durations as {column.title} predicted them at the start of a run: within a factor of "
                f"{found.factor_p50:.1f} for half of the runs and {found.factor_p90:.1f} for nine of ten; "
                f"{100 * found.within_p50:.0f} % lasted no longer than the p50 named, {100 * found.within_p90:.0f} % "
                "no longer than the p90."
            )
    return ""


def not_carried(records: Sequence[NotCarried]) -> str:
    """Return what the source has and the replay has not; empty when that is nothing."""
    if not records:
        return ""
    width = max(len(f"{one.count:,}") for one in records)
    lines = [f"  {one.count:>{width},}  {one.what}: {one.why}" for one in records]
    return "\n".join(["Not carried over:", *lines])


def figures_json(figures: Figures) -> dict[str, Any]:
    """Return the figures by name, with units in the names."""
    return {
        "runs": figures.runs,
        "unended": figures.unended,
        "completion_h": asdict(figures.completion),
        "waiting_h": asdict(figures.waiting),
        "longest_wait_d": figures.longest_wait_days,
        "utilisation": figures.utilisation,
        "idle_placeable_gpu_h": figures.idle_placeable,
        "worst_project": figures.worst_project,
        "worst_slowdown_over_mean": figures.worst_slowdown,
        "preemptions": figures.preemptions,
        "stops_by_failures": figures.failures,
        "lost_gpu_h": figures.lost,
        "leaving_gpu_h": figures.leaving,
        "most_waiting": figures.most_waiting,
        "share": dict(figures.share),
        "prediction": asdict(figures.accuracy) if figures.accuracy else None,
        "cost": asdict(figures.cost) if figures.cost else None,
    }


def demand_json(demand: Demand) -> dict[str, Any]:
    """Return what was replayed."""
    return {
        "runs": len(demand.jobs),
        "gpu_hours": sum(job.run.devices * job.run.duration_ms for job in demand.jobs) / HOUR_MS,
        "gpus": demand.devices(),
        "nodes": len(demand.nodes),
        "pools": {pool: demand.devices(pool) for pool in demand.pools},
        "load": load(demand),
        "too_large": [
            {"run": one.job.run.name or str(one.job.run.run_id), "why": one.why} for one in demand.too_large
        ],
    }


def not_carried_json(records: Sequence[NotCarried]) -> list[Mapping[str, Any]]:
    """Return what the source has and the replay has not."""
    return [{"what": one.what, "count": one.count, "why": one.why} for one in records]
