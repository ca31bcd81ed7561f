"""Runs that never call ``airyard.step``: one that stops to log metrics is found, and started again where it asks."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
SCRIPT = Path(__file__).with_name("silent_training.py")


@pytest.fixture(scope="module")
def tracked(make_yard: Callable[..., Yard]) -> Yard:
    yard = make_yard(tracking="embedded")
    wait_for(lambda: yard.data("status")["mlflow"]["kind"] == "up", 90, "MLflow")
    return yard


def command(folder: Path, what: str) -> str:
    return shlex.join([sys.executable, str(SCRIPT), str(folder), what])


def test_metrics_that_stop_are_a_stall_until_they_come_again(tracked: Yard, tmp_path: Path) -> None:
    run_id = tracked.submit(command(tmp_path, "pause"), hang={"timeout_seconds": 6})
    found = tracked.until(run_id, lambda run: run["attempts"] and run["attempts"][0]["stall"], 120)
    stall = found["attempts"][0]["stall"]
    assert (stall["source"], stall["case"], stall["step"]) == ("metrics", "SILENT", 13)
    assert stall["message"].startswith("no metric for ")
    assert "(limit 6 s), the last at step 13" in stall["message"]
    assert (stall["ranks"], stall["nodes"], stall["suspect_node"]) == ([], [], None)
    assert stall["over_at"] is None
    assert found["state"] == "ACTIVE", "it is only told of"
    told = tracked.data("explain", str(run_id))["progress"]
    assert (told["source"], told["limit_ms"], told["stall"]["source"]) == ("metrics", 6000, "metrics")
    shown = tracked.ok("explain", str(run_id))
    assert "MLflow metrics" in shown
    assert "no metric for" in shown
    (tmp_path / "go").touch()
    over = tracked.until(run_id, lambda run: run["attempts"][0]["stall"]["over_at"], 60)
    assert over["state"] == "ACTIVE"
    progress = tracked.data("explain", str(run_id))["progress"]
    assert progress is None or progress["stall"] is None, "such a silence is known now"
    tracked.ok("cancel", str(run_id))
    tracked.ended(run_id)


def test_lines_that_stop_are_a_stall_where_nothing_else_tells(tracked: Yard) -> None:
    talks = "for n in $(seq 14); do echo line $n; sleep 1.2; done; sleep 600"
    run_id = tracked.submit(talks, hang={"timeout_seconds": 6})
    off = tracked.submit(talks, hang={"timeout_seconds": 6, "action": "off"})
    found = tracked.until(run_id, lambda run: run["attempts"] and run["attempts"][0]["stall"], 120)
    stall = found["attempts"][0]["stall"]
    assert (stall["source"], stall["case"], stall["nodes"]) == ("logs", "SILENT", [])
    assert stall["message"].startswith("no log line for ")
    assert "log lines" in tracked.ok("explain", str(run_id))
    assert tracked.get(off)["attempts"][0]["stall"] is None
    for each in (run_id, off):
        tracked.ok("cancel", str(each))
        tracked.ended(each)


def test_a_look_names_the_rank_that_stands_elsewhere(tracked: Yard, tmp_path: Path) -> None:
    run_id = tracked.submit(command(tmp_path, "apart"), hang={"timeout_seconds": 6}, nodes=3)
    found = tracked.until(run_id, lambda run: run["attempts"] and run["attempts"][0]["stall"], 120)
    stall = found["attempts"][0]["stall"]
    assert (stall["source"], stall["case"], stall["ranks"]) == ("metrics", "ODD_STACK", [1])
    assert "rank 1 on" in stall["message"]
    assert "stands elsewhere in the program" in stall["message"]
    assert any("wait_for_data (silent_training.py" in text for text in stall["evidence"])
    assert (stall["confidence"], stall["suspect_node"]) == (0.4, None), "a stack is no proof"
    tracked.ok("cancel", str(run_id))
    tracked.ended(run_id)


def test_where_it_asks_for_it_it_is_started_again(tracked: Yard, tmp_path: Path) -> None:
    asked = {"timeout_seconds": 6, "action": "restart"}
    run = tracked.ended(tracked.submit(command(tmp_path, "once"), hang=asked, max_retries=1), timeout=150)
    first, second = run["attempts"]
    assert (first["cause"], first["stop"]["reason"], first["stall"]["source"]) == (
        "USER_CODE",
        "STALLED",
        "metrics",
    )
    assert first["failure"]["message"].startswith("no metric for")
    assert (second["outcome"], run["outcome"]) == ("SUCCEEDED", "SUCCEEDED")
