"""What PREPARE says of the pool's prolog and epilog, and what EXITED says of them when they fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from airyard.app.orders import OrderDesk
from airyard.app.reports import exit_of
from airyard.core.policy import NodeCommand, PoolPolicy, Preflight
from airyard.core.run import Cause
from core_yard import Yard, node, workload

DESK = OrderDesk(bases={}, secret=lambda *_: ("", False), tracking_uri="")


def prepare(pool: PoolPolicy | None) -> dict[str, Any]:
    yard = Yard(node("n1"))
    run_id = yard.submit(workload())
    yard.place()
    run, attempt = yard.run(run_id), yard.attempt(run_id)
    return DESK.orders(run, attempt, attempt.members[0], yard.state.nodes["n1"], 0, pool)[0]


def test_a_pool_without_commands_says_that_there_are_none() -> None:
    for pool in (None, PoolPolicy(name="h100", accelerator="GPU_8xH100")):
        order = prepare(pool)
        assert (order["prolog"], order["epilog"]) == (None, None)


def test_each_command_comes_with_its_limit_and_what_it_is_told() -> None:
    pool = PoolPolicy(
        name="h100", accelerator="GPU_8xH100", prolog=NodeCommand(command="check", timeout_ms=1_500)
    )
    order = prepare(pool)
    assert (order["prolog"], order["epilog"]) == ({"command": "check", "timeout_s": 1.5}, None)
    assert order["around"] == {"node": "n1", "pool": "h100", "owner": "ada", "project": "default"}


def test_a_run_from_before_accounts_is_told_to_come_again_where_they_are_asked_for() -> None:
    desk = replace(DESK, asks_for_account=lambda pool: pool == "managed")
    yard = Yard(node("n1"))
    run_id = yard.submit(workload())
    yard.place()
    run, attempt = yard.run(run_id), yard.attempt(run_id)
    told = {
        name: desk.orders(
            run,
            attempt,
            attempt.members[0],
            yard.state.nodes["n1"],
            0,
            PoolPolicy(name=name, accelerator="GPU_8xH100"),
        )[0]["problem"]
        for name in ("managed", "open")
    }
    assert "pool managed asks for a Unix account" in told["managed"]
    assert "Unix account" not in (told["open"] or "")


def test_an_exit_says_which_command_found_the_node_unfit() -> None:
    found = exit_of({"cause": None, "fault": "epilog", "fault_message": "dirty"}, 5)
    assert (found.cause, found.fault, found.fault_message) == (None, "epilog", "dirty")
    assert exit_of({"cause": None}, 5).fault == ""


def test_a_run_that_was_refused_by_a_mount_has_to_pass_that_check_afresh_on_its_next_node() -> None:
    pool = PoolPolicy(name="h100", accelerator="GPU_8xH100", preflight=Preflight.FAST)
    yard = Yard(node("n1"), node("n2"))
    run_id = yard.submit(workload())

    def order() -> dict[str, Any]:
        run, attempt = yard.run(run_id), yard.attempt(run_id)
        return DESK.orders(run, attempt, attempt.members[0], yard.state.nodes["n1"], 0, pool)[0]

    yard.place()
    assert "afresh" not in order()["preflight"]
    yard.poll(f"{run_id}.0.0")
    said = "preflight: node n1 failed host.mounts: /shared (nfs4) does not answer; next: look"
    yard.exit(f"{run_id}.0.0", Cause.NODE, started=False, fault="preflight", fault_message=said)
    yard.place()
    assert order()["preflight"]["afresh"] == ["host.mounts"]
