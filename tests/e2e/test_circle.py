"""The unattended circle: a device fails under a run, the node is emptied, mended, tested, trusted; the run goes on.

The nodes are simulated, the fault is a line of the kernel's log; everything behind it is what a fleet does. A person's
hand is needed once: where the server died while a remedy was under way, of which nobody knows whether it was done.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.yard import Yard, wait_for

KIND, NODES, GANG = "GPU_1xA10", 4, 2
PATIENCE_S = 120.0
CIRCLE = ["CORDONED", "DRAINING", "QUARANTINED", "RESETTING", "RETESTING", "PROBATION", "HEALTHY"]
FELL_OFF = "NVRM: Xid (PCI:0000:11:00): 79, GPU has fallen off the bus."
MakeYard = Callable[[str, str], Yard]


@pytest.fixture
def circle_yard(tmp_path: Path, environment_cache: Path) -> Iterator[MakeYard]:
    """Make a yard of simulated nodes with commands that mend and test them; each is noted when it begins."""
    yard = Yard(tmp_path / "home", environment_cache, simulate=f"{KIND}={NODES}")

    def make(remedy: str, retest: str) -> Yard:
        said = yard.home / "said"
        said.touch()
        (yard.home / "config.toml").write_text(
            "[health]\n"
            f'simulated_remedy_command = "echo remedy $AIRYARD_NODE $AIRYARD_ATTEMPT >> {said}; {remedy}"\n'
            f'simulated_retest_command = "echo retest $AIRYARD_NODE $AIRYARD_ATTEMPT >> {said}; {retest}"\n'
        )
        yard.up()
        return yard

    yield make
    yard.close()


def fail(yard: Yard, node: str) -> None:
    """Have the kernel of a node say that its GPU is gone."""
    file = yard.home / "node" / "health" / "simulated-faults.jsonl"
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as out:
        out.write(json.dumps({"node": node, "device": 0, "kernel": FELL_OFF}) + "\n")


def at_work(yard: Yard, run_id: int, attempt: int) -> set[str]:
    """Wait until an attempt of a run is at work; return its nodes."""
    run = yard.until(
        run_id,
        lambda run: len(run["attempts"]) > attempt and bool(run["attempts"][attempt]["started_at"]),
        timeout=PATIENCE_S,
    )
    return {str(member["node"]) for member in run["attempts"][attempt]["members"]}


def ill_gang(yard: Yard) -> tuple[int, str]:
    """Start a gang and have a GPU fail under it; return the run and the node."""
    gang = yard.submit("sleep 600", accelerator=KIND, nodes=GANG)
    ill = sorted(at_work(yard, gang, 0))[0]
    fail(yard, ill)
    return gang, ill


def ran_on(yard: Yard) -> str:
    """Run something short to its end; return where it was."""
    run = yard.ended(yard.submit("true", accelerator=KIND), timeout=PATIENCE_S)
    assert run["outcome"] == "SUCCEEDED"
    return str(run["attempts"][0]["members"][0]["node"])


def page(yard: Yard, node: str) -> Any:
    return yard.data("nodes", node)


def moves(yard: Yard, node: str) -> list[str]:
    """Return the states that a node came to, by its page."""
    return [step["after"] for step in page(yard, node)["story"] if step["after"] != step["before"]]


def reached(yard: Yard, node: str, state: str) -> None:
    wait_for(lambda: state in moves(yard, node), timeout=PATIENCE_S, what=f"{node} {state}")


def said(yard: Yard, word: str) -> list[str]:
    """Return the attempts for which a command was begun, in order."""
    lines = (yard.home / "said").read_text().split("\n")
    return [line.split()[2] for line in lines if line.startswith(word)]


def healthy_after_runs(yard: Yard, node: str) -> None:
    """Three runs that end well on the node end its probation."""
    for _ in range(3 * NODES):
        if "HEALTHY" in moves(yard, node):
            return
        ran_on(yard)
    raise AssertionError(moves(yard, node))


def test_a_run_and_its_node_come_back_without_a_hand(circle_yard: MakeYard) -> None:
    yard = circle_yard("sleep 3", "sleep 1")
    gang, ill = ill_gang(yard)
    assert ill not in at_work(yard, gang, 1)
    reached(yard, ill, "CORDONED")
    first = ran_on(yard)
    # What began while the node was out went elsewhere; it is out until it is on probation.
    assert first != ill or "PROBATION" in moves(yard, ill)
    reached(yard, ill, "PROBATION")
    healthy_after_runs(yard, ill)

    run = yard.get(gang)
    attempt = run["attempts"][0]
    assert (attempt["cause"], run["retries_spent"], len(run["attempts"])) == ("DEVICE", 0, 2)
    assert moves(yard, ill) == CIRCLE
    story = page(yard, ill)["story"]
    assert story[0]["rule"] == "xid.79"
    assert any(FELL_OFF in line for line in story[0]["evidence"])
    assert {step["by"] for step in story} == {"agent", "airyard"}  # nobody by name
    text = yard.ok("nodes", ill)
    for state in CIRCLE:
        assert state.lower() in text
    # One remedy, and two tests in a row that pass.
    (mended,) = said(yard, "remedy")
    assert said(yard, "retest") == [f"{mended}/0", f"{mended}/1"]
    assert page(yard, ill)["node"]["cordoned"] is False
    assert "xid.79" in yard.ok("explain", str(gang))
    yard.ok("admin", "verify")


def test_a_server_killed_while_a_node_is_tested_goes_on_where_it_was(circle_yard: MakeYard) -> None:
    yard = circle_yard("true", "sleep 3")
    gang, ill = ill_gang(yard)
    wait_for(lambda: said(yard, "retest"), timeout=PATIENCE_S, what="a test of the node")
    os.kill(yard.server_pid(), signal.SIGKILL)
    yard.up()
    assert ill not in at_work(yard, gang, 1)
    reached(yard, ill, "PROBATION")
    healthy_after_runs(yard, ill)
    assert moves(yard, ill) == CIRCLE
    # A test may be asked for again; a remedy may not.
    assert len(said(yard, "remedy")) == 1
    assert set(said(yard, "retest")) == {f"{said(yard, 'remedy')[0]}/{number}" for number in range(2)}
    yard.ok("admin", "verify")


def test_a_remedy_under_way_when_the_server_dies_is_not_done_twice(circle_yard: MakeYard) -> None:
    yard = circle_yard("sleep 3", "sleep 1")
    gang, ill = ill_gang(yard)
    wait_for(lambda: said(yard, "remedy"), timeout=PATIENCE_S, what="a remedy")
    os.kill(yard.server_pid(), signal.SIGKILL)
    yard.up()
    # The run goes on without the node, and so do later ones; the node waits for somebody to look.
    assert ill not in at_work(yard, gang, 1)
    wait_for(
        lambda: page(yard, ill)["node"]["health"]["waits_for"], timeout=PATIENCE_S, what="a person's turn"
    )
    health = page(yard, ill)["node"]["health"]
    assert health["state"] == "QUARANTINED"
    assert "was started again meanwhile" in health["waits_for"]
    assert moves(yard, ill) == ["CORDONED", "DRAINING", "QUARANTINED", "RESETTING", "QUARANTINED"]
    assert len(said(yard, "remedy")) == 1
    assert ran_on(yard) != ill
    yard.ok("health", "acquit", ill)
    healthy_after_runs(yard, ill)
    assert (len(said(yard, "remedy")), said(yard, "retest")) == (1, [])
    yard.ok("admin", "verify")
