"""What ``explain`` says of a run whose machine cannot be reached."""

from __future__ import annotations

from airyard.app.views import explanation
from core_yard import Yard, node, workload


def test_a_machine_that_is_away_is_named_with_what_one_can_do() -> None:
    yard = Yard(node("a", machine="h1"), node("b", machine="h2"))
    run_id = yard.submit(workload("GPU_8xH100", 2))
    yard.place()
    for member in (0, 1):
        yard.start(f"{run_id}.0.{member}")
    run = yard.state.runs[run_id]
    said = explanation(run, away={"h2", "h9"})
    assert "h2 cannot be reached now" in said["message"]
    assert said["evidence"]["machines_away"] == ["h2"]
    assert said["fix"]["command"] == "airyard confirm-dead h2"
    there = explanation(run)
    assert "cannot be reached" not in there["message"]
    assert there["fix"] is None
