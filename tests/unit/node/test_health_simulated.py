"""Faults that are made up for simulated nodes go through the rules of real ones, and concern nobody else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airyard.node.health_simulated import SimulatedFaults

XID = "NVRM: Xid (PCI:0000:14:00): 79, GPU has fallen off the bus."


def told(tmp_path: Path, *lines: Any, after: int = 0) -> list[tuple[str, str, int | None, str]]:
    path = tmp_path / "faults"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    faults = SimulatedFaults(path, after)
    assert faults.look() == []  # nothing is simulated yet
    faults.nodes({"sim": ("S-0", "S-1", "S-2", "S-3")})
    found = [(one.rule, one.node, one.device, one.device_uuid) for one in faults.look()]
    assert faults.position == path.stat().st_size
    assert faults.look() == []
    return found


def test_a_line_of_a_kernel_and_a_reading_of_a_gpu(tmp_path: Path) -> None:
    assert told(
        tmp_path,
        {"node": "sim", "device": 3, "kernel": XID},
        {"node": "sim", "device": 1, "nvml": {"recovery_action": 2}},
        {"node": "sim", "device": 2, "nvml": {"links": [True, True, False, True]}},
        {"node": "sim", "kernel": "EDAC MC0: 1 UE on DIMM_A1"},
    ) == [
        ("xid.79", "sim", 3, "S-3"),
        ("gpu.recovery", "sim", 1, "S-1"),
        ("gpu.nvlink", "sim", 2, "S-2"),
        ("host.edac", "sim", None, ""),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{",
        {"node": "real", "device": 0, "kernel": XID},
        {"node": "sim", "device": 0, "kernel": f"12,1,1,-;{XID}"},
        {"node": "sim", "device": 9, "nvml": {"recovery_action": 2}},
        {"node": "sim", "device": 0, "nvml": {"no_such_reading": 2}},
        {"node": "sim", "device": "x", "kernel": XID},
    ],
)
def test_what_is_no_fault_or_of_another_node(tmp_path: Path, line: Any) -> None:
    assert told(tmp_path, line) == []


def test_an_agent_that_starts_again_does_not_read_it_again(tmp_path: Path) -> None:
    fault = {"node": "sim", "device": 3, "kernel": XID}
    assert told(tmp_path, fault, after=len(json.dumps(fault)) + 1) == []
