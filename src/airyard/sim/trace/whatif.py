"""``airyard sim what-if``: the same demand before and after changes of the yard, and what differs.

Owns: the two replays and the comparison of their figures. Must not know: how demand is fetched, the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airyard.core.policy import Policy
from airyard.sim.trace import report
from airyard.sim.trace.changes import Change, Yard, changed
from airyard.sim.trace.comparison import Failures, Progress, outages_of
from airyard.sim.trace.demand import Demand, Job, sorted_out
from airyard.sim.trace.engine import Replay, Rules
from airyard.sim.trace.metrics import Figures, figures_of
from airyard.sim.trace.policies import Contender, Tuning, entries, tuned

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure that is compared, ``digits`` after the point."""

    name: str
    label: str
    of: Callable[[Figures], float]
    digits: int = 2


MEASURES = (
    Measure(name="waiting_mean_h", label="waiting, mean (h)", of=lambda f: f.waiting.mean),
    Measure(name="waiting_p99_h", label="         p99", of=lambda f: f.waiting.p99),
    Measure(name="completion_mean_h", label="completion, mean (h)", of=lambda f: f.completion.mean),
    Measure(name="completion_p99_h", label="            p99", of=lambda f: f.completion.p99),
    Measure(name="longest_wait_d", label="longest wait (d)", of=lambda f: f.longest_wait_days),
    Measure(name="utilisation_percent", label="utilisation (%)", of=lambda f: 100 * f.utilisation, digits=1),
    Measure(name="preemptions", label="preemptions", of=lambda f: float(f.preemptions or 0), digits=0),
    Measure(name="unended", label="runs that never ended", of=lambda f: float(f.unended), digits=0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Both sides. ``notes`` are what a reader should know of the demand."""

    source: str
    changes: tuple[str, ...]
    before: Figures
    after: Figures
    demands: tuple[Demand, Demand]
    notes: tuple[str, ...] = ()

    def as_text(self) -> str:
        """Return the comparison for people."""
        lines = [report.head(self.demands[0], self.source)]
        if len(self.demands[1].too_large) > len(self.demands[0].too_large):
            more = len(self.demands[1].too_large) - len(self.demands[0].too_large)
            lines.append(
                f"{report.counted(more, 'run')} would fit the changed yard no more, and counts only before."
            )
        lines += self.notes
        return "\n".join([*lines, *(f"Change: {text}" for text in self.changes), "", _table(self._rows())])

    def _rows(self) -> list[tuple[str, float, float, int]]:
        rows = [(one.label, one.of(self.before), one.of(self.after), one.digits) for one in MEASURES]
        rows = [row for row in rows if row[1] or row[2] or row[3]]
        for name in self._projects():
            parts = 100 * self.before.share.get(name, 0.0), 100 * self.after.share.get(name, 0.0)
            rows.append((f"share of {name} (%)", *parts, 1))
        return rows

    def _projects(self) -> list[str]:
        total = {
            name: self.before.share.get(name, 0.0) + self.after.share.get(name, 0.0)
            for name in {**self.before.share, **self.after.share}
        }
        return sorted(total, key=lambda name: (-total[name], name))

    def as_json(self) -> dict[str, Any]:
        """Return the comparison for machines."""
        return {
            "source": self.source,
            "changes": list(self.changes),
            "notes": list(self.notes),
            "demand": {
                BEFORE: report.demand_json(self.demands[0]),
                AFTER: report.demand_json(self.demands[1]),
            },
            BEFORE: report.figures_json(self.before),
            AFTER: report.figures_json(self.after),
            "change": {one.name: one.of(self.after) - one.of(self.before) for one in MEASURES}
            | {
                "share": {
                    name: self.after.share.get(name, 0.0) - self.before.share.get(name, 0.0)
                    for name in self._projects()
                }
            },
        }


def _table(rows: Sequence[tuple[str, float, float, int]]) -> str:
    cells = [("", BEFORE, AFTER, "change", "")]
    for label, before, after, digits in rows:
        percent = f"{_signed(100 * (after - before) / before, 0)} %" if before and "(%)" not in label else ""
        cells.append(
            (
                label,
                f"{before:,.{digits}f}",
                f"{after:,.{digits}f}",
                _signed(after - before, digits),
                percent,
            )
        )
    widths = [max(len(row[at]) for row in cells) for at in range(5)]
    return "\n".join(
        "  ".join(
            [f"{row[0]:<{widths[0]}}", *(f"{cell:>{widths[at]}}" for at, cell in enumerate(row[1:], start=1))]
        ).rstrip()
        for row in cells
    )


def _signed(value: float, digits: int) -> str:
    """Return a difference with its sign; one that rounds to nothing has none."""
    text = f"{value:+,.{digits}f}"
    return text if any(digit in "123456789" for digit in text) else text[1:]


def what_if(
    demand: Demand,
    policy: Policy,
    changes: Sequence[Change],
    *,
    source: str,
    tuning: Tuning,
    rules: Rules,
    failures: Failures,
    stopwatch: Callable[[], float],
    progress: Progress | None = None,
    notes: Sequence[str] = (),
) -> WhatIf:
    """Replay the demand on the yard as it is and as it would be.

    Raises: UserError for a change that cannot be made, before anything is replayed.
    """
    jobs: list[Job] = [*demand.jobs, *(one.job for one in demand.too_large)]
    accelerators = {node.pool: node.accelerator for node in demand.nodes}
    yard = Yard(
        nodes=demand.nodes,
        policy=tuned(policy, accelerators, tuning),
        projects=frozenset(job.run.project for job in jobs),
    )
    other = changed(yard, changes)
    sides: list[tuple[Demand, Figures]] = []
    for name, side in ((BEFORE, yard), (AFTER, other)):
        asked = sorted_out(jobs, side.nodes)
        figures = _replay(asked, side.policy, name, tuning, rules, failures, stopwatch, progress)
        sides.append((asked, figures))
    return WhatIf(
        source=source,
        changes=tuple(change.text for change in changes),
        before=sides[0][1],
        after=sides[1][1],
        demands=(sides[0][0], sides[1][0]),
        notes=tuple(notes),
    )


def _replay(
    demand: Demand,
    policy: Policy,
    name: str,
    tuning: Tuning,
    rules: Rules,
    failures: Failures,
    stopwatch: Callable[[], float],
    progress: Progress | None,
) -> Figures:
    untuned = replace(Tuning(), known_durations=tuning.known_durations)
    entry = entries([Contender.AIRYARD], demand.nodes, policy, untuned, rules)[0]

    def tell(arrived: int, waiting: int) -> None:
        if progress is not None:
            progress(name, arrived, len(demand.jobs), waiting)

    replay = Replay(
        demand,
        entry.policy,
        entry.rules,
        entry.durations(),
        stopwatch=stopwatch,
        outages=outages_of(demand, failures),
        progress=tell,
    )
    return figures_of(replay.run(), demand)
