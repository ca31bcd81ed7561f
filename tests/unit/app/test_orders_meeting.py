"""What GO says of a gang's meeting: peers on several machines; on one only the checks of nodes that have GPUs."""

from __future__ import annotations

from typing import Any

import pytest

from airyard.app.orders import OrderDesk
from airyard.core.meeting import Meeting
from core_yard import Yard, node, workload

DESK = OrderDesk(bases={}, secret=lambda *_: ("", False), tracking_uri="", yard="yard-1")


def go_of(
    machines: str, *, addresses: tuple[str, ...] = (), gpus: str = "aa", members: int = 2
) -> dict[str, Any]:
    yard = Yard(*(node(f"n{place}", machine=name) for place, name in enumerate(machines)))
    run_id = yard.submit(workload(nodes=members))
    yard.place()
    for member in range(members):
        facts = (("gpus", gpus), ("node", f"n{member}"))
        meeting = Meeting(addresses=addresses, port=7, facts=facts, store_port=41 + member)
        yard.poll(f"{run_id}.0.{member}")
        yard.report(f"{run_id}.0.{member}", "READY", address=f"{member}.test", meeting=meeting)
    attempt = yard.attempt(run_id)
    orders = DESK.orders(yard.run(run_id), attempt, attempt.members[0], None, after=1)
    return next(order for order in orders if order["kind"] == "GO")


def test_nodes_of_one_machine_are_checked_together_where_they_have_gpus() -> None:
    go = go_of("mm")
    facts = [{"gpus": "aa", "node": "n0"}, {"gpus": "aa", "node": "n1"}]
    assert go["gang_checks"] == {"store_port": 41, "facts": facts, "address": "127.0.0.1"}
    assert "peers" not in go, "there is nobody to try"


@pytest.mark.parametrize("asked", [{"gpus": ""}, {"members": 1}])
def test_members_without_gpus_and_single_ones_are_not(asked: dict[str, Any]) -> None:
    assert "gang_checks" not in go_of("mm", **asked)


def test_on_several_machines_there_are_peers_and_no_address_beside_them() -> None:
    go = go_of("ab", addresses=("10.0.0.2/24",), gpus="")
    assert [peer["machine"] for peer in go["peers"]] == ["a", "b"]
    assert set(go["gang_checks"]) == {"store_port", "facts"}
