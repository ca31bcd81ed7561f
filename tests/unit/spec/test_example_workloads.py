"""Every folder of ``examples`` is whole and its workload is one that ``airyard run`` takes."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from airyard.spec.load import load_workload

EXAMPLES = Path(__file__).parents[3] / "examples"
WORKLOADS = sorted(path.parent.name for path in EXAMPLES.glob("*/workload.yaml"))


def test_the_examples_are_these() -> None:
    assert WORKLOADS == ["digits-ddp", "hello", "ray-in-gang", "ray-tune-sweep", "sweep"]


@pytest.mark.parametrize("name", WORKLOADS)
def test_an_example_is_whole(name: str) -> None:
    folder = EXAMPLES / name
    assert load_workload(folder / "workload.yaml").workload is not None
    assert (folder / "README.md").read_text().startswith(f"# {name}\n")
    for source in folder.rglob("*.py"):
        ast.parse(source.read_text())
