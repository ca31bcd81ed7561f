"""Which pairs are measured when, and what T4 makes of them: the engine is a script, all else is real."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from airyard.checks.limit import Limit
from airyard.core.actions import RunRetest
from airyard.core.cluster import Device, Node
from airyard.core.errors import NotFound, Unavailable, UserError
from airyard.core.health.fabric import Measured, Outcome, judged
from airyard.core.health.facts import CheckStatus, Retest
from airyard.server.node_rounds import Retests
from airyard.server.pair_retests import PairRetests
from airyard.server.pair_rounds import PairRounds

WELL = {"busbw_gb_s": 40.0, "latency_p95_us": 20.0, "correct": True, "errors_grown": 0}
ACTION = RunRetest(node="n1", machine="m1", name="n1/1/1/0", level=Retest.T4, simulated=False)


@dataclass
class Fabric:
    """What pairs come to: ``share`` of a good bandwidth by node, ``states`` by node where there are no figures."""

    share: dict[str, float] = field(default_factory=dict)
    states: dict[str, str] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)
    method: str = ""

    def __call__(
        self, machines: tuple[str, str], asked: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        one, other = asked["nodes"]
        self.pairs.append((one, other))
        for node in (one, other):
            if self.states.get(node) == "away":
                raise Unavailable(f"machine of {node} cannot be reached", code="MACHINE_AWAY")
            if node in self.states:
                return {"state": self.states[node], "served": {}, "called": {}, "problem": ""}
        share = min(self.share.get(node, 1.0) for node in (one, other))
        called = {**WELL, "busbw_gb_s": 40.0 * share, "method": self.method}
        return {
            "state": "done",
            "served": {"correct": True, "errors_grown": 0},
            "called": called,
            "problem": "",
        }


def find(name: str) -> Node | None:
    if not name.startswith(("n", "s", "c")):
        return None
    return Node(
        name=name,
        machine=f"m{name[1:]}",
        accelerator="CPU" if name[0] == "c" else "GPU_1xH100",
        model=None if name[0] == "c" else "H100",
        devices=(Device(index=0, uuid=name),),
        cpus=1,
        memory_bytes=1,
        simulated=name[0] == "s",
    )


def rounds(fabric: Fabric) -> PairRounds:
    return PairRounds(pair_nodes=fabric, find_node=find, python="")


def outcome_of(fabric: Fabric, idle: tuple[str, ...], node: str = "n1", wait_s: float = 1800.0) -> Any:
    made = PairRetests(rounds(fabric), find_node=find, partners=lambda _: idle, wait_s=wait_s)
    action = RunRetest(node=node, machine="m", name="t", level=Retest.T4, simulated=False)
    return made.test(action, lambda: False)


def test_a_node_that_is_well_passes_in_both_directions() -> None:
    fabric = Fabric()
    verdict = outcome_of(fabric, ("n2", "n3"))
    assert verdict.status is CheckStatus.PASS, verdict
    assert fabric.pairs == [("n2", "n3"), ("n1", "n2"), ("n3", "n1")]


@pytest.mark.parametrize(
    "bad", [{"share": {"n1": 0.5}}, {"states": {"n1": "hung"}}, {"states": {"n1": "apart"}}]
)
def test_two_failures_fail_it(bad: dict[str, Any]) -> None:
    fabric = Fabric(**bad)
    verdict = outcome_of(fabric, ("n2", "n3"))
    assert verdict.status is CheckStatus.FAIL, verdict
    assert "2 of 2 pair tests failed" in verdict.message
    assert len(fabric.pairs) == 3


def test_a_bad_partner_is_found_before_it_costs_the_node_its_test() -> None:
    fabric = Fabric(states={"n2": "hung"})
    made = PairRetests(rounds(fabric), find_node=find, partners=lambda _: ("n2", "n3", "n4"))
    verdicts = [made.test(ACTION, lambda: False) for _ in range(2)]
    assert verdicts[0] is None, verdicts
    assert verdicts[1] is not None
    assert verdicts[1].status is CheckStatus.PASS
    assert ("n1", "n2") not in fabric.pairs


@pytest.mark.parametrize(
    ("idle", "states", "said"),
    [
        ((), {}, "there was none"),
        (("n2",), {}, "there was n2"),
        (("n2", "n3"), {"n2": "hung"}, "did not end in time"),
        (("n2", "n3"), {"n1": "stopped"}, "did not come to its end"),
        (("n2", "n3"), {"n3": "away"}, "cannot be reached"),
    ],
)
def test_what_cannot_be_told_waits_and_then_is_unknown_with_its_reason(
    idle: tuple[str, ...], states: dict[str, str], said: str
) -> None:
    assert outcome_of(Fabric(states=states), idle) is None
    verdict = outcome_of(Fabric(states=states), idle, wait_s=0.0)
    assert verdict.status is CheckStatus.UNKNOWN
    assert said in verdict.message
    assert "airyard health maintenance n1 on" in verdict.message


def test_slots_of_cpus_are_judged_by_what_they_exchange_not_by_speed() -> None:
    assert outcome_of(Fabric(share={"c1": 0.2}), ("c2", "c3"), "c1").status is CheckStatus.PASS
    assert outcome_of(Fabric(states={"c1": "apart"}), ("c2", "c3"), "c1").status is CheckStatus.FAIL


def test_the_nodes_own_checks_come_first_and_once() -> None:
    asked: list[str] = []
    idle: list[str] = ["c2"]

    def check_node(
        machine: str, wish: Mapping[str, Any], *, should_stop: Callable[[], bool]
    ) -> Mapping[str, Any]:
        asked.append(str(wish["profile"]))
        passed = {"check": "host.disk", "status": "PASS", "message": "m", "component": "DISK"}
        return {"state": "done", "results": [passed]}

    in_pairs = PairRetests(rounds(Fabric()), find_node=find, partners=lambda _: tuple(idle))
    retests = Retests(check_node=check_node, find_node=find, python="", in_pairs=in_pairs)
    action = RunRetest(node="c1", machine="m1", name="t", level=Retest.T4, simulated=False)
    assert retests.test(action, lambda: False) is None
    idle.append("c3")
    done = retests.test(action, lambda: False)
    assert done is not None
    assert done.status is CheckStatus.PASS
    assert asked == ["full"]


def test_what_is_no_pair_is_refused() -> None:
    pairs = rounds(Fabric())
    for one, other, kind, code in (
        ("n1", "n1", UserError, "SAME_NODE"),
        ("n1", "x", NotFound, "NODE_NOT_FOUND"),
        ("n1", "s2", UserError, "MIXED_PAIR"),
    ):
        with pytest.raises(kind) as refused:
            pairs.find(one, other)
        assert refused.value.code == code
        measured = pairs.measure(one, other, name="p", should_stop=lambda: False)
        assert (measured.stopped, measured.problem) == (True, refused.value.message)


def test_a_node_is_in_one_test_at_a_time_and_who_waits_may_stop() -> None:
    held, going = threading.Event(), threading.Event()
    fabric = Fabric()

    def slow(*given: Any, **how: Any) -> Mapping[str, Any]:
        going.set()
        assert held.wait(30)
        return fabric(*given, **how)

    pairs = PairRounds(pair_nodes=slow, find_node=find, python="")
    found: list[Measured] = []
    first = threading.Thread(
        target=lambda: found.append(pairs.measure("n1", "n2", name="a", should_stop=lambda: False))
    )
    first.start()
    assert going.wait(30)
    assert pairs.measure("n2", "n3", name="b", should_stop=lambda: True).stopped
    assert fabric.pairs == []
    held.set()
    first.join(30)
    assert found[0].finished
    assert pairs.measure("n2", "n3", name="c", should_stop=lambda: False).finished


def test_by_hand_a_slow_pair_stands_out_from_what_others_had_lately() -> None:
    fabric = Fabric(share={"n9": 0.5})
    pairs = rounds(fabric)

    def judged(one: str, other: str) -> Outcome:
        return pairs.judge(pairs.measure(one, other, name="p", should_stop=lambda: False)).outcome

    assert judged("n9", "n1") is Outcome.PASS  # nobody knows what is usual
    assert [judged(f"n{one}", f"n{one + 1}") for one in range(2, 6)] == [Outcome.PASS] * 4
    assert judged("n9", "n8") is Outcome.FAIL


def test_what_the_pool_asks_of_a_pair_counts_where_it_is_measured_as_meant() -> None:
    due = Limit(50.0, (("nodes_gb_s", "pool train"),))
    for method, outcome in (("nccl", Outcome.FAIL), ("tcp", Outcome.PASS), ("gloo", Outcome.PASS)):
        fabric = Fabric(method=method)
        pairs = PairRounds(pair_nodes=fabric, find_node=find, python="", due=lambda node: due)
        result = pairs.judge(pairs.measure("n1", "n2", name="t", should_stop=lambda: False))
        assert result.outcome is outcome, result
    made = PairRounds(pair_nodes=Fabric(method="nccl"), find_node=find, python="", due=lambda node: due)
    read = made.measure("n1", "n2", name="t", should_stop=lambda: False)
    assert made.judge(read).why == "40 GB/s, at least 50 are due (nodes_gb_s of pool train)"
    assert judged([replace(read, busbw_gb_s=45.0)], floor_gb_s=60.0)[0].why.endswith("at least 60 are due")
