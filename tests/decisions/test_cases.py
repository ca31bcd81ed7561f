"""Runs every case of this folder: a yard, a queue, and what the planner says of them (``reading.py`` has the format).

A case's name says what it shows; the first comment of its ``queue.toml`` says why it is right. Run this file with
Python to print what the planner says: ``python tests/decisions/test_cases.py CASE``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from reading import NOW_MS, in_words, read_case  # the folder is put on the path above

from airyard.core.scheduling.planner import plan_snapshot  # as above

CASES = sorted(path.parent.name for path in Path(__file__).parent.glob("*/queue.toml"))


def says(case: str) -> str:
    """Plan a case."""
    snapshot = read_case(case)
    return in_words(snapshot, plan_snapshot(snapshot, NOW_MS))


def test_there_are_cases() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("case", CASES)
def test_the_planner_decides(case: str) -> None:
    assert says(case) == (Path(__file__).parent / case / "expected.txt").read_text(encoding="utf-8")


if __name__ == "__main__":
    for argument in sys.argv[1:] or CASES:
        print(f"== {argument}\n{says(argument)}", end="")
