"""One study: the same failures with health and without, over some seeds, and the figures of each.

Owns: composition, figures, the analytic model beside them. Must not know: how they are printed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from airyard.sim.reliability.assumptions import Assumptions
from airyard.sim.reliability.by_hand import ByHand
from airyard.sim.reliability.draws import draw_alarms, draw_faults
from airyard.sim.reliability.nursed import Nursed
from airyard.sim.reliability.tally import Tally, percentile
from airyard.sim.reliability.training import Training
from airyard.sim.reliability.world import World

ETTR_AIM = 0.97
ALONE_AIM = 0.9
FALSE_CORDONS_AIM = 0.2
"""At most, per 1,000 node-days."""
KERNEL_CORDON_AIM_S, POLLED_CORDON_AIM_S = 15.0, 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is simulated."""

    gpus: int = 1024
    days: float = 60.0
    rate: str = "rsc1"
    """A name of the section ``rates``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lived:
    """What came of one seed, with health or without."""

    tally: Tally
    training: Training
    nodes: int
    days: float
    done_s: float

    @property
    def ettr(self) -> float:
        """The share of time that was work which counts."""
        return self.done_s / (self.days * 86_400)


def live(known: Assumptions, question: Question, seed: int, *, health: bool) -> Lived:
    """Simulate one seed. The same arguments give the same figures."""
    need = max(question.gpus // int(known.fleet["gpus_per_node"]), 1)
    count = need + max(1, round(need * known.fleet["spare_share"]))
    nodes = [f"n{number:04}" for number in range(count)]
    per_1000 = known.rates[question.rate]
    faults = draw_faults(known, nodes, per_1000_node_days=per_1000, days=question.days, seed=seed)
    alarms = draw_alarms(known, nodes, days=question.days, seed=seed)
    world = World(known, nodes, need, days=question.days, seed=seed, faults=faults, alarms=alarms)
    tally = world.run(Nursed(world, seed) if health else ByHand(world, seed))
    done_s = world.training.done_s(world.end_s)
    return Lived(tally=tally, training=world.training, nodes=count, days=question.days, done_s=done_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What several seeds came to together. Shares are from 0 to 1; NaN where there was nothing to count."""

    ettr: float
    ettr_least: float
    ettr_most: float
    analytic: float
    """The published model, with the restart time and the interruptions that were seen."""
    interruptions: float
    """A seed."""
    failed_starts: float
    recovery_p50_s: float
    recovery_p95_s: float
    kernel_cordon_p95_s: float
    polled_cordon_p95_s: float
    found_at_start: float
    repeated_kills: float
    false_cordons: float
    """Per 1,000 node-days."""
    cordons: float
    recovered_alone: float
    returned_alone: float
    visits: float
    out: float
    """Share of nodes out of service."""
    short_h: float
    breakers: int
    given_up: int
    lost_h: float
    """Work that was done twice, a seed."""


def figures(known: Assumptions, lives: Sequence[Lived]) -> Figures:
    """Put seeds together."""
    count = len(lives)
    tallies = [life.tally for life in lives]
    node_days = sum(life.nodes * life.days for life in lives)
    recoveries = [span for tally in tallies for span in tally.recoveries_s]
    interruptions = sum(tally.interruptions for tally in tallies)
    alone = sum(tally.recovered_alone for tally in tallies)
    helped = sum(tally.recovered_helped for tally in tallies)
    back, back_helped = (
        sum(tally.returned_alone for tally in tallies),
        sum(tally.returned_helped for tally in tallies),
    )
    ettrs = [life.ettr for life in lives]
    return Figures(
        ettr=sum(ettrs) / count,
        ettr_least=min(ettrs),
        ettr_most=max(ettrs),
        analytic=analytic_ettr(
            interruptions / sum(life.days for life in lives),
            sum(recoveries) / len(recoveries) if recoveries else 0.0,
            known.job["checkpoint_s"],
            known.job["write_s"],
        ),
        interruptions=interruptions / count,
        failed_starts=sum(tally.failed_starts for tally in tallies) / count,
        recovery_p50_s=percentile(recoveries, 0.5),
        recovery_p95_s=percentile(recoveries, 0.95),
        kernel_cordon_p95_s=percentile([s for tally in tallies for s in tally.kernel_to_cordon_s], 0.95),
        polled_cordon_p95_s=percentile([s for tally in tallies for s in tally.polled_to_cordon_s], 0.95),
        found_at_start=sum(tally.found_at_start for tally in tallies) / count,
        repeated_kills=sum(tally.repeated_kills() for tally in tallies) / count,
        false_cordons=sum(tally.false_cordons for tally in tallies) / node_days * 1000,
        cordons=sum(tally.cordons for tally in tallies) / count,
        recovered_alone=alone / (alone + helped) if alone + helped else math.nan,
        returned_alone=back / (back + back_helped) if back + back_helped else math.nan,
        visits=sum(tally.visits for tally in tallies) / count,
        out=sum(tally.out_s for tally in tallies) / (node_days * 86_400),
        short_h=sum(tally.short_s for tally in tallies) / count / 3600,
        breakers=sum(tally.breakers for tally in tallies),
        given_up=sum(tally.given_up for tally in tallies),
        lost_h=sum(life.training.lost_s for life in lives) / count / 3600,
    )


def analytic_ettr(per_day: float, restart_s: float, checkpoint_s: float, write_s: float) -> float:
    """Return E[ETTR] ≈ (1 - r (u0 + Δ/2)) / (1 + w/Δ). ``per_day``: interruptions of the run.

    Source: Meta's model (arXiv 2410.21680), r being nodes times failures a node and day.
    """
    lost = per_day / 86_400 * (restart_s + checkpoint_s / 2)
    return max(1 - lost, 0.0) / (1 + write_s / checkpoint_s)
