"""Faults that are made up for simulated nodes go through the rules of real ones, and concern nobody else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airyard.node.health_simulated import SimulatedFaults

XID = "NVRM: Xid (PCI:0000:14:00): 79, GPU has fallen off the bus."


def told(tmp_path: Path, *lines: Any, after: int = 0) -> list[tuple[str, str, int | None, str]]:
    return read(tmp_path, *lines, after=after)[0]


def read(
    tmp_path: Path, *lines: Any, after: int = 0
) -> tuple[list[tuple[str, str, int | None, str]], list[str]]:
    """Return what the lines lead to, and what is told of them."""
    path = tmp_path / "faults"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    problems: list[str] = []
    faults = SimulatedFaults(path, after, problems.append)
    assert faults.look() == []  # nothing is simulated yet
    faults.nodes({"sim": ("S-0", "S-1", "S-2", "S-3")})
    found = [(one.rule, one.node, one.device, one.device_uuid) for one in faults.look()]
    assert faults.position == path.stat().st_size
    once = list(problems)
    assert faults.look() == []
    assert problems == once
    return found, problems


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


def test_a_port_that_is_down_by_the_time_that_it_is(tmp_path: Path) -> None:
    def rules(*lines: Any) -> list[str]:
        return [rule for rule, *_ in told(tmp_path, *lines)]

    first, other = ({"node": "sim", "port": f"mlx5_{n}/1", "down_s": 5} for n in (0, 1))
    assert rules(first) == []
    assert rules({**first, "down_s": 20}) == ["rdma.down"]
    assert rules({**first, "down_s": 240}) == ["rdma.down", "rdma.downtime", "rdma.gone"]
    assert rules(first, other, first, {**other, "down_s": 16}) == ["rdma.down"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[]", "it is no JSON object"),
        ("{", "it is not JSON: Expecting property name"),
        ("[" * 100_000, "it is no JSON object"),
        ({"node": "real", "device": 0, "kernel": XID}, "node 'real' is none of the simulated ones here: sim"),
        ({"device": 0, "kernel": XID}, "node None is none"),
        ({"node": ["sim"], "kernel": XID}, "node ['sim'] is none"),
        (
            {"node": "sim", "devise": 0, "kernel": XID},
            "unknown: devise; there are device, down_s, kernel, load, node",
        ),
        ({"node": "sim", "device": 0}, "it needs one of kernel, nvml, load, port"),
        ({"node": "sim", "device": 0, "kernel": XID, "nvml": {}}, "it needs one of"),
        ({"node": "sim", "device": 0, "kernel": f"12,1,1,-;{XID}"}, "no rule knows this line"),
        ({"node": "sim", "device": 0, "kernel": 79}, "kernel is a text"),
        ({"node": "sim", "device": 9, "nvml": {"recovery_action": 2}}, "device 9: sim has devices 0 to 3"),
        ({"node": "sim", "device": -1, "kernel": XID}, "device -1: sim has"),
        ({"node": "sim", "device": True, "kernel": XID}, "device True: sim has"),
        ({"node": "sim", "device": "x", "kernel": XID}, "device 'x': sim has"),
        ({"node": "sim", "device": 0, "nvml": {"no_such_reading": 2}}, "unknown reading: no_such_reading"),
        ({"node": "sim", "device": 0, "nvml": {"links": 2}}, "links is tuple[bool, ...] | None, not 2"),
        (
            {"node": "sim", "device": 0, "nvml": {"links": [True, 1]}},
            "links is tuple[bool, ...] | None, not [",
        ),
        (
            {"node": "sim", "device": 0, "nvml": {"recovery_action": "two"}},
            "recovery_action is int | None, not 'two'",
        ),
        (
            {"node": "sim", "device": 0, "nvml": {"recovery_action": True}},
            "recovery_action is int | None, not True",
        ),
        ({"node": "sim", "device": 0, "nvml": {"remap_failure": 1}}, "remap_failure is bool | None, not 1"),
        ({"node": "sim", "device": 0, "nvml": {"name": None}}, "name is str, not None"),
        ('{"node": "sim", "device": 0, "nvml": {"power_w": NaN}}', "power_w is float | None, not nan"),
        (
            {"node": "sim", "pair": {"busbw_share": -1}},
            "busbw_share of pair is no number from 0 to 1,000,000: -1",
        ),
        ({"node": "sim", "pair": {"errors_grown": -1}}, "errors_grown of pair is no number from 0"),
        ('{"node": "sim", "pair": {"seconds": Infinity}}', "seconds of pair is no number from 0"),
        ('{"node": "sim", "pair": {"latency_factor": NaN}}', "latency_factor of pair is no number from 0"),
        ({"node": "sim", "nvml": {"links": [True]}}, "nvml needs a device"),
        ({"node": "sim", "device": 0, "nvml": 3}, "nvml is an object of readings"),
        ({"node": "sim", "port": "p"}, "port and down_s go together"),
        ({"node": "sim", "pair": {"busbw": 0.4}}, "unknown in pair: busbw; there are busbw_share"),
        ({"node": "sim", "pair": {"busbw_share": "slow"}}, "busbw_share of pair is no float: 'slow'"),
        ({"node": "sim", "pair": "slow"}, 'pair is null, "hang" or an object'),
        ({"node": "sim", "kernel": XID, "down_s": 3}, "port and down_s go together"),
        ({"node": "sim", "port": "p", "down_s": -1}, "down_s is a number of seconds"),
        ({"node": "sim", "port": 1, "down_s": 9}, "port is a name"),
    ],
)
def test_a_line_that_is_no_fault_is_told_of_once_and_no_other_is_lost(
    tmp_path: Path, line: Any, why: str
) -> None:
    fault = {"node": "sim", "device": 3, "kernel": XID}
    found, problems = read(tmp_path, "", line, fault)
    assert found == [("xid.79", "sim", 3, "S-3")]
    (problem,) = problems
    assert problem.startswith(f"{tmp_path / 'faults'}, line 2: {why}")
    assert problem.endswith("; it is left out")


def test_readings_of_their_kind_are_taken(tmp_path: Path) -> None:
    readings = {
        "power_w": 3,
        "temperature_c": None,
        "links": [True] * 4,
        "pids": [],
        "link_mb_s": [1, 2],
        "name": "x",
    }
    assert read(tmp_path, {"node": "sim", "device": 0, "nvml": readings}) == ([], [])


def test_the_agents_log_has_the_time_of_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "faults"
    path.write_text('{"node": "sim", "\\u001b[31m": 1}\n')
    faults = SimulatedFaults(path, 0)
    faults.nodes({"sim": ("S-0",)})
    assert faults.look() == []
    said = capsys.readouterr().err
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} .*, line 1: unknown: \\x1b.*\n", said), said


@pytest.mark.parametrize("said", [None, "hang", {"busbw_share": 0.4}, {"seconds": 2, "correct": False}])
def test_how_a_node_fares_in_pairs_is_no_fault_and_nothing_wrong(tmp_path: Path, said: Any) -> None:
    assert told(tmp_path, {"node": "sim", "pair": said}) == []


def test_a_line_that_never_ends_keeps_no_other_from_being_read(tmp_path: Path) -> None:
    fault = {"node": "sim", "device": 3, "kernel": XID}
    path = tmp_path / "faults"
    path.write_text("x" * (3 << 20) + "\n" + json.dumps(fault) + "\n")
    problems: list[str] = []
    faults = SimulatedFaults(path, 0, problems.append)
    faults.nodes({"sim": ("S-0", "S-1", "S-2", "S-3")})
    found = [one.rule for _ in range(5) for one in faults.look()]
    assert found == ["xid.79"]
    assert all("line 1: it is not JSON" in problem for problem in problems)


def test_lines_are_counted_from_the_top_by_an_agent_that_starts_again(tmp_path: Path) -> None:
    fault = {"node": "sim", "device": 3, "kernel": XID}
    _, problems = read(tmp_path, fault, fault, "?", after=len(json.dumps(fault)) + 1)
    assert "line 3: it is not JSON" in problems[0]


def test_an_agent_that_starts_again_does_not_read_it_again(tmp_path: Path) -> None:
    fault = {"node": "sim", "device": 3, "kernel": XID}
    assert told(tmp_path, fault, after=len(json.dumps(fault)) + 1) == []
