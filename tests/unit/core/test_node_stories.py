"""A node's story says what was seen each time, and the cordon what weighs most; whatever kept it comes after it."""

from __future__ import annotations

from typing import Any

from airyard.core import commands as c
from airyard.core.health import ladder
from airyard.core.health.facts import Component, HealthEvent, Severity, Source
from airyard.core.health.states import HealthState, Step
from core_yard import Yard, node

S = HealthState


def see(yard: Yard, rule: str, severity: Severity = Severity.CRITICAL, **fields: Any) -> None:
    """Have a monitor report something of node ``a``."""
    told: dict[str, Any] = {
        "event_id": f"{rule}{yard.now_ms}",
        "rule": rule,
        "machine": "a",
        "node": "a",
        "at_ms": yard.now_ms,
        "component": Component.HOST,
        "severity": severity,
        "source": Source.NVML,
        "message": f"words of {rule}",
        "evidence": (f"line of {rule}",),
    }
    yard.do(c.HealthReported(events=(HealthEvent(**{**told, **fields}),)))


def newest(yard: Yard) -> Step:
    """The last line of the story."""
    return yard.state.stories["a"][-1]


def test_each_step_is_of_what_was_seen_then_and_the_cordon_of_what_weighs_most() -> None:
    yard = Yard(node("a"), node("b"))
    yard.do(c.CordonNodes(nodes=("b",), by="op"))  # the last of its pool that works stays
    see(yard, "gpu.count")
    assert (newest(yard).after, newest(yard).rule, newest(yard).budget != "") == (
        S.SUSPECT,
        "gpu.count",
        True,
    )
    see(yard, "nvml.hang", Severity.WARNING)
    step = newest(yard)
    assert (step.rule, step.why, step.evidence, step.score) == (
        "nvml.hang",
        "words of nvml.hang",
        ("line of nvml.hang",),
        10.0,
    )
    assert yard.state.health["a"].rule == "gpu.count"
    yard.do(c.UncordonNodes(nodes=("b",), by="op"))
    yard.tick(1)
    cordon = yard.state.cordons["a"]
    assert cordon.reason == "gpu.count: words of gpu.count"
    assert cordon.drain is not None
    assert cordon.drain.reason == cordon.reason
    # What comes while it is out is in the story, too.
    see(yard, "disk.error", Severity.HIGH)
    assert (newest(yard).rule, newest(yard).why) == ("disk.error", "words of disk.error")


def test_what_takes_it_out_is_what_came_last_and_closed_it_is_for_the_gravest() -> None:
    yard = Yard(*(node(name) for name in "abcd"))
    see(yard, "one.high", Severity.HIGH)
    see(yard, "two.warning", Severity.WARNING)
    out = next(step for step in yard.state.stories["a"] if step.after is S.CORDONED)
    assert (out.rule, out.why) == ("two.warning", "words of two.warning")
    assert yard.state.cordons["a"].reason == "one.high: words of one.high"


def on_probation() -> Yard:
    """Return a yard whose node ``a`` came back, and whose other node is closed: it is the last of its pool."""
    yard = Yard(node("a"), node("b"))
    see(yard, "nic.down")
    yard.tick(1)
    yard.do(c.AcquitNodes(nodes=("a",), by="op"))
    yard.do(c.CordonNodes(nodes=("b",), by="op"))
    yard.later(1)
    return yard


def test_a_fault_on_probation_that_only_a_budget_kept_is_neither_forgotten_nor_outlived() -> None:
    yard = on_probation()
    see(yard, "gpu.count")
    assert (newest(yard).after, newest(yard).budget != "") == (S.PROBATION, True)
    yard.tick(ladder.PROBATION_MS / 1000 + 1)
    assert (yard.state.health["a"].state, yard.state.health["a"].score) == (S.PROBATION, 8.0)
    yard.do(c.UncordonNodes(nodes=("b",), by="op"))
    yard.tick(1)
    assert yard.state.health["a"].state is S.DRAINING
    assert yard.state.cordons["a"].reason == "gpu.count: words of gpu.count"
