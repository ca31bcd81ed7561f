"""The machine's clock is set forward and back while work goes on; server, agent and runner see it."""

from __future__ import annotations

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
