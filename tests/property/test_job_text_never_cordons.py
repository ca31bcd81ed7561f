"""Whatever jobs print, and whatever monitors say beside it: no text takes a node out, and none keeps one in."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from airyard.core import commands as c
from airyard.core.decide import Decision
from airyard.core.events import BreakerOpened, NodeCordoned, NodeHealthChanged
from airyard.core.health.blame import CORDON_FROM, HITS_KEPT, hit_of, joined, score
from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.health.machine import verdict
from airyard.core.health.states import HealthState, NodeHealth
from core_yard import START_MS, Yard, node

NODES = "abcdefgh"


def of(
    on: str, rule: str, number: int, severity: Severity, source: Source, device: int | None
) -> HealthEvent:
    """One thing that was said of a node."""
    return HealthEvent(
        event_id=f"{on}-{rule}-{number}-{source.value}-{device}",
        rule=rule,
        machine=on,
        node=on,
        at_ms=START_MS + number,
        component=Component.GPU,
        severity=severity,
        source=source,
        message=rule,
        device=device,
        code=int(rule[4:]) if rule.startswith("xid.") else None,
    )


def said(rules: tuple[str, ...], source: Source) -> st.SearchStrategy[HealthEvent]:
    """Events of some rules, about any node."""
    return st.builds(
        of,
        st.sampled_from(NODES),
        st.sampled_from(rules),
        st.integers(0, 9),
        st.sampled_from((Severity.WARNING, Severity.HIGH, Severity.CRITICAL)),
        st.just(source),
        st.sampled_from((0, 1, None)),
    )


MONITORS = said(("xid.48", "gpu.pcie_replays", "rdma.down", "gpu.nvlink_errors"), Source.NVML)
JOBS = said(("job.xid.79", "job.xid.48", "job.ecc", "job.gpu.lost"), Source.JOB_LOG)
FORGED = said(("xid.79", "xid.48", "gpu.lost", "rdma.down"), Source.JOB_LOG)
"""Under the names that monitors use, as no part of Airyard says it."""
HOUR = st.integers(1, 3_600)
"""Seconds: of twenty of them, less than the day after which evidence is forgotten."""


def yard() -> Yard:
    """A pool of eight nodes."""
    return Yard(*(node(name) for name in NODES))


def states(one: Yard) -> dict[str, HealthState]:
    """Where nodes are that are taken out, or were."""
    suspects = (HealthState.HEALTHY, HealthState.SUSPECT)
    return {name: health.state for name, health in one.state.health.items() if health.state not in suspects}


def takes_out(decision: Decision) -> bool:
    """Whether a node is taken out, or a pool's breaker opened."""
    return any(
        isinstance(event, NodeCordoned | BreakerOpened)
        or (isinstance(event, NodeHealthChanged) and event.health.state is HealthState.CORDONED)
        for event in decision.events
    )


REPLAYS = [of("a", "gpu.pcie_replays", 0, Severity.WARNING, Source.NVML, 0)] * 10
A_FULL_BUDGET = [
    *REPLAYS,
    of("a", "gpu.pcie_replays", 0, Severity.WARNING, Source.NVML, 1),
    of("a", "gpu.pcie_replays", 0, Severity.WARNING, Source.NVML, None),
    of("b", "xid.48", 0, Severity.WARNING, Source.NVML, 0),
    of("c", "xid.48", 0, Severity.WARNING, Source.NVML, 0),
    *[of("a", "xid.48", 0, Severity.WARNING, Source.NVML, 0)] * 6,
    of("c", "job.xid.79", 0, Severity.WARNING, Source.JOB_LOG, 0),
]
"""Node c is kept in by the budgets; text about it is no reason to look at them anew."""


@example(A_FULL_BUDGET)
@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(MONITORS, JOBS, FORGED), max_size=24))
def test_no_report_of_text_takes_a_node_out(script: list[HealthEvent]) -> None:
    one = yard()
    for event in script:
        decision = one.do(c.HealthReported(events=(event,)))
        assert not (event.source is Source.JOB_LOG and takes_out(decision))


@settings(max_examples=80, deadline=None)
@given(st.lists(st.one_of(MONITORS, JOBS, HOUR), max_size=20))
def test_with_text_the_same_nodes_are_taken_out_as_without(script: list[HealthEvent | int]) -> None:
    told, spared = yard(), yard()
    for step in script:
        if isinstance(step, int):
            told.tick(step)
            spared.tick(step)
            continue
        step = replace(step, at_ms=told.now_ms)
        told.do(c.HealthReported(events=(step,)))
        if step.source is not Source.JOB_LOG:
            spared.do(c.HealthReported(events=(step,)))
        assert states(told) == states(spared)


@settings(max_examples=200, deadline=None)
@given(st.lists(MONITORS, max_size=6), st.lists(st.one_of(JOBS, FORGED), max_size=40))
def test_the_score_reaches_the_threshold_only_by_what_is_confirmed(
    seen: list[HealthEvent], printed: list[HealthEvent]
) -> None:
    now_ms = START_MS + 100
    alone = joined(map(hit_of, seen), now_ms)
    both = joined(map(hit_of, [*seen, *printed]), now_ms)
    assert (score(both) >= CORDON_FROM) is (score(alone) >= CORDON_FROM)
    # A record of an older release, that noted more: what is known now decides.
    health = NodeHealth(state=HealthState.SUSPECT, hits=both, score=99.0)
    assert (verdict(health) is HealthState.CORDONED) is (score(alone) >= CORDON_FROM)


def test_much_text_drives_out_nothing_that_is_confirmed() -> None:
    seen = [of("a", f"gpu.soft{n}", n, Severity.WARNING, Source.NVML, 0) for n in range(3)]
    printed = [
        of("a", f"job.{n}", 50 + n, Severity.CRITICAL, Source.JOB_LOG, 0) for n in range(2 * HITS_KEPT)
    ]
    kept = joined(map(hit_of, [*printed, *seen]), START_MS + 500)
    assert len(kept) == HITS_KEPT
    assert sum(hit.confirmed for hit in kept) == 3
    assert score(kept) >= CORDON_FROM
