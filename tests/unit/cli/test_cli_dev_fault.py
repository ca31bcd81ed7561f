"""``airyard dev fault``: what it refuses before anything is written, and where it sends people to look."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airyard.node.inventory import host_name

NODE = "sim-1"


def answers() -> dict[str, list[Any]]:
    """A simulated node of this machine, with one GPU."""
    device = {"index": 0, "uuid": "a", "state": "free", "run_id": None, "detail": None}
    node = {"name": NODE, "machine": host_name(), "simulated": True, "devices": [device]}
    return {f"GET /nodes/{NODE}": [{"node": node, "runs": []}], "GET /nodes": [{"nodes": [node]}]}


def written(home: Path) -> list[Any]:
    file = home / "node" / "health" / "simulated-faults.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--clear"], "of which node?"),
        (["--device", "3"], "of which node?"),
        (["--seconds", "3"], "of which node?"),
        ([NODE], "which fault is sim-1 to have?"),
        ([NODE, "xid-79", "--clear"], "either a KIND or --clear"),
        ([NODE, "xid-97"], "did you mean xid-79?"),
        ([NODE, "--clear", "--device", "0"], "--clear is of no single GPU"),
        ([NODE, "hang", "--device", "0"], "hang is of no single GPU"),
        ([NODE, "ib-down", "--device", "0"], "ib-down is of no single GPU"),
        ([NODE, "xid-79", "--seconds", "3"], "xid-79 takes no --seconds"),
        ([NODE, "xid-79", "--device", "1"], "sim-1 has no GPU 1"),
        ([NODE, "xid-79", "--device", "-1"], "sim-1 has no GPU -1"),
        ([NODE, "power-off"], "in `airyard dev fleet` only"),
    ],
)
def test_what_would_do_nothing_is_refused(airyard: Any, tmp_path: Path, given: list[str], says: str) -> None:
    code, out, err = airyard("dev", "fault", *given, answers=answers())
    assert (code, out) == (2, "")
    assert says in err
    assert "next: " in err
    assert written(tmp_path / "home") == []


@pytest.mark.parametrize(
    ("kind", "see"),
    [("xid-79", f"airyard nodes {NODE}"), ("slow-pair", f"airyard health pair {NODE} OTHER")],
)
def test_what_is_given_is_written_and_says_where_to_look(
    airyard: Any, tmp_path: Path, kind: str, see: str
) -> None:
    code, out, err = airyard("dev", "fault", NODE, kind, answers=answers())
    assert (code, err) == (0, "")
    assert f"See `{see}`" in out
    (line,) = written(tmp_path / "home")
    assert line["node"] == NODE


def test_without_a_node_all_kinds_are_listed(airyard: Any) -> None:
    code, out, _ = airyard("dev", "fault")
    assert code == 0
    assert "power-brake" in out
