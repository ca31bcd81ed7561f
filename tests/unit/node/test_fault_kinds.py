"""Faults by name: each leads to the rule that it says, on the device it was given to, and can be taken away."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airyard.node.fault_kinds import KINDS, FaultKind, clearing_of, lines_of
from airyard.node.health_simulated import SimulatedFaults

NODE = "sim-8xh100-0"
WRITTEN = [kind for kind in KINDS.values() if kind.lines]
WATCHED = [kind for kind in WRITTEN if kind.name != "slow-pair"]


class Watched:
    """A node whose file of faults is followed."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "faults"
        self.problems: list[str] = []
        self._faults = SimulatedFaults(self._file, 0, self.problems.append)
        self._faults.nodes({NODE: [f"uuid-{index}" for index in range(8)]})

    def seen(self, *lines: dict[str, object]) -> list[tuple[str, int | None]]:
        with self._file.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return [(one.rule, one.device) for one in self._faults.look()]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.name)
def test_each_kind_is_seen_by_the_rule_that_it_says(kind: FaultKind, watched: Watched) -> None:
    found = watched.seen(*lines_of(kind, NODE, 3))
    assert (kind.seen_as, 3 if kind.of == "device" else None) in found
    assert watched.problems == []


@pytest.mark.parametrize("name", ["row-remap-failed", "nvlink-down", "pcie-width"])
def test_a_reading_that_was_cleared_can_go_wrong_again(name: str, watched: Watched) -> None:
    lines = lines_of(KINDS[name], NODE, 0)
    assert watched.seen(*lines) != []
    assert watched.seen(*lines) == [], "it is so already"
    assert watched.seen(*clearing_of(NODE, range(8))) == []
    assert watched.seen(*lines) != []
    assert watched.problems == []


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ({"seconds": 0}, "1 to 600"),
        ({"seconds": 10_000}, "1 to 600"),
        ({"seconds": "60"}, "whole numbers"),
        (None, "whole numbers"),
        ({"seconds": 60, "heat": 3}, "heat"),
    ],
)
def test_a_load_that_is_none_is_told_of(load: object, said: str, watched: Watched) -> None:
    assert watched.seen({"node": NODE, "device": 0, "load": load}) == []
    assert said in watched.problems[0]
    assert watched.seen({"node": NODE, "load": {"seconds": 60}}) == []
    assert "needs a device" in watched.problems[1]
