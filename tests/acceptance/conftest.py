"""Yards for acceptance: one shared by a module, one for a single test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from acceptance_yard import Yard


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    """A yard with two simulated A10 nodes, its server running."""
    folder = tmp_path_factory.mktemp("yard")
    made = Yard(home=folder / "home", work=folder / "work")
    try:
        started = made.run("up", "--simulate", "GPU_1xA10=2")
        assert started.returncode == 0, started.stderr
        yield made
    finally:
        made.close()


@pytest.fixture
def own_yard(tmp_path: Path) -> Iterator[Yard]:
    """A yard for one test; nothing runs yet."""
    made = Yard(home=tmp_path / "home", work=tmp_path / "work")
    try:
        yield made
    finally:
        made.close()
