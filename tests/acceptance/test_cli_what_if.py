"""``airyard sim what-if`` on what a real yard has recorded."""

from __future__ import annotations

import json

import pytest

from acceptance_yard import Yard

pytestmark = pytest.mark.e2e


def test_recorded_runs_are_replayed_on_a_changed_yard(yard: Yard) -> None:
    gang = yard.write("whole", "sleep 3", accelerator="GPU_1xA10", count=2)
    both = [yard.spawn("run", gang, "--watch", "--name", name) for name in ("first", "second")]
    assert [process.wait(90) for process in both] == [0, 0]
    change = ["--change", "pool gpu_1xa10 +2 nodes"]
    done = yard.run("sim", "what-if", *change, "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["data"]
    assert found["demand"]["before"]["pools"] == {"GPU_1xA10": 2}
    assert found["demand"]["after"]["pools"] == {"GPU_1xA10": 4}
    assert found["before"]["runs"] == 2
    assert found["before"]["waiting_h"]["mean"] > 0, "one waited for the other"
    assert found["after"]["waiting_h"]["mean"] == 0
    text = yard.run("sim", "what-if", *change)
    assert text.stdout.startswith("the last 30 days of this yard: 2 runs of ")
    assert "Change: pool gpu_1xa10 +2 nodes" in text.stdout
    none = yard.run("sim", "what-if", "--change", "pool h100 +1 nodes")
    assert (none.returncode, "there is GPU_1xA10" in none.stderr) == (2, True)
