"""Yards for end-to-end stories."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.yard import Yard

_count = itertools.count()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tell each story STORY_TIMES times on the same yard: for the soak, since a fleet takes long to start."""
    times = int(os.environ.get("STORY_TIMES", "1"))
    if times > 1:
        metafunc.fixturenames.append("story_time")
        metafunc.parametrize("story_time", range(times), ids=[f"time{number}" for number in range(times)])


@pytest.fixture(scope="session")
def environment_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the session's yards keep their environments."""
    return tmp_path_factory.mktemp("environments")


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a library to preload and the file that holds the seconds by which wall time is then off."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to build the stepped clock with")
    folder = tmp_path_factory.mktemp("clock")
    library, offset = folder / "stepped_clock.so", folder / "offset"
    source = Path(__file__).parent / "stepped_clock.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    offset.write_text("0")
    return library, offset


@pytest.fixture(scope="module")
def make_yard(
    tmp_path_factory: pytest.TempPathFactory, environment_cache: Path
) -> Iterator[Callable[..., Yard]]:
    """Make yards that are taken down with the module."""
    yards: list[Yard] = []

    def make(*, tracking: str = "off", simulate: str | None = None) -> Yard:
        home = tmp_path_factory.mktemp(f"yard{next(_count)}")
        yard = Yard(home, environment_cache, tracking=tracking, simulate=simulate)
        yards.append(yard)
        yard.up()
        return yard

    yield make
    for yard in yards:
        yard.close()


@pytest.fixture(scope="module")
def yard(make_yard: Callable[..., Yard]) -> Yard:
    """One yard with simulated nodes, without tracking."""
    return make_yard(simulate="GPU_8xH100=2,GPU_1xA10=4")
