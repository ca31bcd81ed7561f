"""A reliability study over some seeds, and its table for people.

Owns: rows, units, the words for aims. Must not know: how a figure comes about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from airyard.sim.reliability.assumptions import Assumptions
from airyard.sim.reliability.study import (
    ALONE_AIM,
    ETTR_AIM,
    FALSE_CORDONS_AIM,
    KERNEL_CORDON_AIM_S,
    POLLED_CORDON_AIM_S,
    Figures,
    Question,
    figures,
    live,
)

_Row = tuple[str, Callable[[Figures], str]]


def _number(value: float, digits: int = 1, unit: str = "") -> str:
    return "-" if math.isnan(value) else f"{value:,.{digits}f}{unit}"


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"


ROWS: tuple[_Row, ...] = (
    (
        "ETTR, the share of time that counts",
        lambda f: f"{f.ettr:.3f} ({f.ettr_least:.3f} to {f.ettr_most:.3f})",
    ),
    ("  the published model, with what follows", lambda f: f"{f.analytic:.3f}"),
    ("interruptions of the run", lambda f: _number(f.interruptions)),
    ("starts that failed", lambda f: _number(f.failed_starts)),
    ("interrupted to the first new step, p50", lambda f: _number(f.recovery_p50_s / 60, 1, " min")),
    ("  p95", lambda f: _number(f.recovery_p95_s / 60, 1, " min")),
    ("work done twice", lambda f: _number(f.lost_h, 1, " h")),
    ("interrupted again by the same node in 14 days", lambda f: _number(f.repeated_kills)),
    ("interruptions by hardware with nobody's help", lambda f: _share(f.recovered_alone)),
    ("nodes that came back with nobody's help", lambda f: _share(f.returned_alone)),
    ("visits of persons to nodes", lambda f: _number(f.visits)),
    ("nodes taken out", lambda f: _number(f.cordons)),
    ("  falsely, per 1,000 node-days", lambda f: _number(f.false_cordons, 2)),
    ("a fault that the kernel tells of, to cordon, p95", lambda f: _number(f.kernel_cordon_p95_s, 1, " s")),
    ("one that is polled, or a host that is away, p95", lambda f: _number(f.polled_cordon_p95_s, 1, " s")),
    ("found first by the checks before a start", lambda f: _number(f.found_at_start)),
    ("nodes out of service, mean", lambda f: _share(f.out)),
    ("waited for nodes", lambda f: _number(f.short_h, 1, " h")),
    ("given up by the retry rules, all seeds", lambda f: str(f.given_up)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The same failures with health and without. Figures are means of a seed, where nothing else is said."""

    question: Question
    per_1000_node_days: float
    seeds: int
    well: Figures
    plain: Figures

    def as_text(self) -> str:
        """Return the table, and which aims are kept."""
        question, plural = self.question, "s" if self.seeds > 1 else ""
        head = (
            f"{question.gpus:,} GPUs for {question.days:g} days, {self.seeds} seed{plural}; "
            f"{self.per_1000_node_days:g} failures per 1,000 node-days ({question.rate})"
        )
        width = max(len(name) for name, _ in ROWS)
        lines = [head, f"{'':{width}}  {'with health':>24}  {'without':>24}"]
        lines += [f"{name:{width}}  {show(self.well):>24}  {show(self.plain):>24}" for name, show in ROWS]
        return "\n".join([*lines, *aims(self.well)])

    def as_json(self) -> dict[str, object]:
        """Return all figures; null where there was nothing to count."""
        return {
            **asdict(self.question),
            "per_1000_node_days": self.per_1000_node_days,
            "seeds": self.seeds,
            "with_health": _plainly(self.well),
            "without": _plainly(self.plain),
        }


def study(known: Assumptions, question: Question, seeds: Sequence[int]) -> Study:
    """Simulate all seeds twice. Cost: a second a seed for 60 days of 1,024 GPUs, or some."""
    well, plain = (
        figures(known, [live(known, question, seed, health=health) for seed in seeds])
        for health in (True, False)
    )
    return Study(
        question=question,
        per_1000_node_days=known.rates[question.rate],
        seeds=len(seeds),
        well=well,
        plain=plain,
    )


def _plainly(values: Figures) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in asdict(values).items()}


def aims(well: Figures) -> list[str]:
    """Say which aims are kept."""
    return [
        _aim("ETTR", well.ettr, well.ettr >= ETTR_AIM, f"at least {ETTR_AIM}", 3),
        _aim(
            "interruptions by hardware with nobody's help",
            well.recovered_alone,
            well.recovered_alone >= ALONE_AIM,
            f"at least {ALONE_AIM}",
            3,
        ),
        _aim(
            "false cordons per 1,000 node-days",
            well.false_cordons,
            well.false_cordons <= FALSE_CORDONS_AIM,
            f"at most {FALSE_CORDONS_AIM}",
            2,
        ),
        *_fast(well),
    ]


def _fast(well: Figures) -> list[str]:
    """Say how fast faults lead to a cordon; nothing of those that did not come."""
    found = (
        ("the kernel's faults to cordon, p95 in s", well.kernel_cordon_p95_s, KERNEL_CORDON_AIM_S),
        ("what is polled to cordon, p95 in s", well.polled_cordon_p95_s, POLLED_CORDON_AIM_S),
    )
    return [
        _aim(name, value, value <= aim_s, f"at most {aim_s:g}", 1)
        for name, value, aim_s in found
        if not math.isnan(value)
    ]


def _aim(name: str, value: float, kept: bool, aim: str, digits: int) -> str:
    return f"{name}: {_number(value, digits)}, aim {aim}: {'kept' if kept else 'MISSED'}"
