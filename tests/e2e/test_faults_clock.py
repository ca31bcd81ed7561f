"""The machine's clock is set forward and back while work goes on; server, agent and runner see it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]

HOUR_S = 3600
LINES = 60


def test_the_clock_goes_forward_an_hour_and_back_two(
    environment_cache: Path, tmp_path: Path, stepped: tuple[Path, Path]
) -> None:
    library, offset = stepped
    yard = Yard(tmp_path / "home", environment_cache)
    yard.set(LD_PRELOAD=str(library), STEPPED_CLOCK=str(offset))
    try:
        yard.up()
        _work_through_steps(yard, offset, tmp_path)
    finally:
        yard.close()


def _work_through_steps(yard: Yard, offset: Path, tmp_path: Path) -> None:
    first = yard.submit(
        f"for i in $(seq {LINES}); do echo line $i; sleep 0.1; done", timeout_minutes=1, max_retries=0
    )
    yard.until(first, lambda run: run["status"] == "RUNNING")
    for step in (HOUR_S, -HOUR_S):
        offset.write_text(str(step))
        # The first run's minute is counted in time that passed, and new work is taken and ends.
        run = yard.ended(yard.submit("echo new"))
        assert (run["outcome"], run["logs_complete"]) == ("SUCCEEDED", True)
        assert 0 <= run["duration_ms"] < 60_000
        if step > 0:
            # The step was seen: this yard's time is an hour ahead of ours.
            ahead = datetime.fromisoformat(run["submitted_at"]) - datetime.now(UTC)
            assert ahead.total_seconds() > HOUR_S - 300
    run = yard.ended(first)
    assert (run["outcome"], len(run["attempts"])) == ("SUCCEEDED", 1)
    assert run["logs_complete"] is True
    yard.ok("logs", str(first), "--download-to", str(tmp_path / "logs"))
    (log,) = (tmp_path / "logs").rglob("node_0.log")
    assert log.read_text() == "".join(f"line {i}\n" for i in range(1, LINES + 1))
    # A retry's back-off is waited for in time that passed, not in time that was set.
    again = yard.submit("[ $AIRYARD_ATTEMPT = 1 ] || exit 4", max_retries=1)
    assert yard.ended(again)["outcome"] == "SUCCEEDED"
    wait_for(lambda: yard.call("admin", "verify").returncode == 0, what="a journal that verifies")


def test_after_the_clock_was_ahead_and_is_set_right_faults_of_nodes_still_count(
    environment_cache: Path, tmp_path: Path, stepped: tuple[Path, Path]
) -> None:
    library, offset = stepped
    yard = Yard(tmp_path / "home", environment_cache, simulate="GPU_1xA10=12")
    yard.set(LD_PRELOAD=str(library), STEPPED_CLOCK=str(offset))
    try:
        yard.up()
        first, second, third = (one["name"] for one in yard.data("nodes")["nodes"][:3])
        offset.write_text(str(HOUR_S))
        _fails(yard, first, 48)
        _comes_to(yard, first, "PROBATION")
        offset.write_text("0")
        # What the agent says, what a person says, on the node that was cured then and on another.
        _fails(yard, first, 79)
        _comes_to(yard, first, "QUARANTINED")
        yard.ok("health", "report", second, "--rule", "xid.95")
        _comes_to(yard, second, "PROBATION")
        # A server that starts now has a clock behind that of the journal.
        yard.ok("down")
        yard.up()
        yard.ok("health", "report", second, "--rule", "xid.64")
        _comes_to(yard, second, "RETIRED")
        _fails(yard, third, 48)
        _comes_to(yard, third, "PROBATION")
    finally:
        yard.close()


def _fails(yard: Yard, node: str, xid: int) -> None:
    file = yard.home / "node" / "health" / "simulated-faults.jsonl"
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as out:
        line = f"NVRM: Xid (PCI:0000:11:00): {xid}, pid=1"
        out.write(json.dumps({"node": node, "device": 0, "kernel": line}) + "\n")


def _comes_to(yard: Yard, node: str, state: str) -> None:
    def there() -> bool:
        return bool((yard.data("nodes", node)["node"]["health"] or {}).get("state") == state)

    wait_for(there, what=f"{node} {state}", timeout=60)
