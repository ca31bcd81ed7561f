"""Every check that needs hardware, on hardware: it comes to a result, and says nothing against a sound node.

AIRYARD_TORCH_PYTHON names an interpreter that has torch with CUDA; without it this one is taken.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from airyard.checks import catalogue
from airyard.checks.preflight import __main__ as program

PYTHON = os.environ.get("AIRYARD_TORCH_PYTHON", sys.executable)
PARTS = catalogue.parts(gpus=True)
RDMA = Path("/sys/class/infiniband")
SEVERAL = {"compute.peers", "compute.all_reduce", "pcie.peers"}
"""There is nothing to compare with one GPU alone."""
SAME_OR_NOT = {"compute.checksum", "compute.burn"}
"""Their result is that nothing differs, which is no number."""

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1200)]


def gpus() -> int:
    """Count the GPUs of this machine."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


def checked(names: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """Run these checks as a full round does, and return what each says."""
    wish = {"profile": "full", "setting": {"python": PYTHON, "only": list(names)}}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for one in json.loads(json.dumps(program.check(wish))):
        found.setdefault(one["check"], []).append(one)
    return found


def may_skip(name: str) -> bool:
    """Return whether this machine has not got what the check is of."""
    no_rdma = not RDMA.is_dir() or not any(RDMA.iterdir())
    return (name.startswith("rdma.") and no_rdma) or (name in SEVERAL and gpus() < 2)


def needs_gpu() -> None:
    """Skip where there is no GPU, or nothing to compute with."""
    if not gpus():
        pytest.skip("no NVIDIA GPU on this machine")
    if sys.executable == PYTHON and importlib.util.find_spec("torch") is None:
        pytest.skip("AIRYARD_TORCH_PYTHON names no interpreter that has torch")


@pytest.mark.parametrize("part", [part for part in PARTS if part != catalogue.READING])
def test_what_computes_or_copies_is_well_and_says_how_well(part: str) -> None:
    needs_gpu()
    names = PARTS[part]
    for name, results in checked(names).items():
        assert results, f"{name} says nothing"
        allowed = {"PASS", "WARN", "SKIP"} if may_skip(name) else {"PASS", "WARN"}
        assert {one["status"] for one in results} <= allowed, results
        if part == name and name not in SAME_OR_NOT and not may_skip(name):
            assert any(one.get("value") is not None for one in results), f"{name} measured nothing: {results}"


def test_what_the_driver_says_is_told_by_every_check() -> None:
    needs_gpu()
    names = tuple(name for name in PARTS[catalogue.READING] if name != catalogue.OWN)
    for name, results in checked(names).items():
        assert results, f"{name} says nothing"
        if name.startswith(("gpu.", "card.", "pcie.")):
            assert {one["status"] for one in results} <= {"PASS", "WARN", "SKIP"}, results
