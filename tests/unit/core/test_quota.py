"""What is held, borrowed, spent and left of guarantees."""

from __future__ import annotations

import pytest

from airyard.core import commands as c
from airyard.core import quota
from airyard.core.policy import Policy, PoolPolicy, ProjectPolicy, Share
from airyard.core.quota import Holding
from airyard.core.workload import Priority
from core_yard import Yard, node, workload


@pytest.mark.parametrize(
    ("holding", "guarantee", "borrowed"),
    [
        (Holding(), 8, 0),
        (Holding(devices=8), 8, 0),
        (Holding(devices=12), 8, 4),
        (Holding(devices=12), 0, 12),
        (Holding(devices=8, best_effort=8), 8, 8),
        (Holding(devices=16, best_effort=4), 8, 8),
        (Holding(devices=10, best_effort=4), 8, 4),
    ],
)
def test_best_effort_and_what_exceeds_the_guarantee_is_borrowed(
    holding: Holding, guarantee: int, borrowed: int
) -> None:
    assert holding.borrowed(guarantee) == borrowed


def test_guarantees_shrink_together_when_nodes_go() -> None:
    assert quota.scaled_guarantee(8, 24, 24) == 8
    assert [quota.scaled_guarantee(each, 24, 12) for each in (8, 16)] == [4, 8]
    assert [quota.scaled_guarantee(each, 24, 10) for each in (8, 16)] == [3, 6]
    assert quota.scaled_guarantee(8, 24, 0) == 0


def test_holdings_count_what_is_not_given_back() -> None:
    yard = Yard(node("a"), node("b"), node("cpu", None))
    both = yard.submit(workload(nodes=2, project="nlp"))
    yard.place()
    yard.start(f"{both}.0.0", f"{both}.0.1")
    yard.submit(workload("CPU", priority=Priority.BEST_EFFORT))
    yard.place()
    assert quota.holdings(yard.state) == {
        ("nlp", "GPU_8xH100", "ada"): Holding(devices=16),
        ("default", "CPU", "ada"): Holding(devices=1, best_effort=1),
    }
    yard.exit(f"{both}.0.1")
    assert quota.holdings(yard.state)["nlp", "GPU_8xH100", "ada"] == Holding(devices=8)


def test_spent_grows_while_devices_are_held() -> None:
    yard = Yard(node("a"))
    yard.submit(workload(project="nlp"))
    yard.place()
    yard.later(1800)
    assert quota.spent(yard.state, "nlp", yard.now_ms) == pytest.approx(4)
    assert quota.spent(yard.state, "other", yard.now_ms) == 0
    assert quota.spent(yard.state, "nlp", quota.month_end_ms(yard.now_ms) + 3_600_000) == pytest.approx(8)


def test_capacity_counts_open_nodes_by_pool() -> None:
    yard = Yard(node("a"), node("b"), node("c"))
    pool = PoolPolicy(name="fast", accelerator="GPU_8xH100", nodes=("a", "b"))
    project = ProjectPolicy(name="nlp", shares=(Share(pool="fast", guarantee=8), Share(pool="GPU_8xH100")))
    yard.do(c.DeclarePolicy(policy=Policy(pools=(pool,), projects=(project,)), by="op"))
    assert quota.capacity(yard.state) == {"fast": 16, "GPU_8xH100": 8}
    yard.do(c.MachineAway(machine="a"))
    yard.do(c.CordonNodes(nodes=("c",), by="op", reason="fan"))
    assert quota.capacity(yard.state) == {"fast": 8, "GPU_8xH100": 0}
    assert quota.guaranteed_totals(yard.state.policy) == {"fast": 8, "GPU_8xH100": 0}
