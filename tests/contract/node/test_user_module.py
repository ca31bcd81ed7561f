"""``from airyard import checkpoint`` in real environments, in which Airyard is not installed, or is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import airyard
from airyard.node.beats import decode
from airyard.node.environment_view import View, can_overlay, prepare_view
from airyard.node.user_module import add_user_module

EXPECTING_AN_EXIT = """
import sys
try:
    exec(sys.argv[1], {})
except SystemExit as left:
    print("SystemExit:", left.code)
"""
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
WHAT_IT_LOADS = """
import json, sys
before = set(sys.modules)
from airyard import checkpoint
print(json.dumps({
    "file": checkpoint.__file__, "loaded": sorted(set(sys.modules) - before), "last on the path": sys.path[-1],
    "answers": [checkpoint.saved(1, "x"), checkpoint.latest(), checkpoint.stop_requested()],
}))
"""


def interpreter(version: str) -> str | None:
    """Return an interpreter of this version that really runs."""
    folders = [Path(name) for name in os.environ["PATH"].split(":")]
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    folders += sorted(pyenv.glob(f"versions/{version}.*/bin"))
    for folder in folders:
        python = folder / f"python{version}"
        if (
            python.exists()
            and subprocess.run([python, "-V"], capture_output=True, check=False).returncode == 0
        ):
            return str(python)
    return None


@pytest.fixture(params=VERSIONS)
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A bare environment of each Python version that is there."""
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"no Python {request.param} on this machine")
    path = tmp_path / "shared"
    subprocess.run([python, "-m", "venv", "--without-pip", path], check=True, capture_output=True)
    return path


@pytest.fixture(params=["overlay", "hardlinks"])
def view(request: pytest.FixtureRequest, environment: Path, tmp_path: Path) -> View:
    if request.param == "overlay" and not can_overlay(tmp_path):
        pytest.skip("this machine does not allow an overlay mount")
    view = prepare_view(environment, tmp_path / "attempt", overlay_works=request.param == "overlay")
    assert view.kind == request.param
    add_user_module(environment, view.layer)
    return view


def run(view: View, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        ["python", *arguments],
        env={"PATH": f"{view.bin}:{os.environ['PATH']}", **view.variables, **variables},
        preexec_fn=view.before_exec,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def site_packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python*/site-packages")
    return found


def test_it_is_there_without_installing_and_loads_next_to_nothing(view: View, environment: Path) -> None:
    before = sorted(str(path) for path in environment.rglob("*"))
    for flags in ((), ("-I",)):
        told = json.loads(run(view, *flags, "-c", WHAT_IT_LOADS))
        assert told["file"].startswith(str(view.path))
        assert told["answers"] == [False, None, False]
        assert set(told["loaded"]) <= {"__future__", "airyard", "airyard.checkpoint", "errno", "time"}
        assert told["file"].startswith(told["last on the path"])
    assert sorted(str(path) for path in environment.rglob("*")) == before
    version = run(view, "-c", "import airyard; print(airyard.__version__)")
    assert version.strip() == airyard.__version__


def test_the_other_parts_of_airyard_are_not_pretended(view: View) -> None:
    script = "try:\n import airyard.sdk\nexcept ModuleNotFoundError as error:\n print(error)\n"
    assert run(view, "-c", script).strip() == "No module named 'airyard.sdk'"


def test_steps_are_told_without_installing_anything(view: View, tmp_path: Path) -> None:
    script = (
        "import airyard\nwith airyard.compute(): pass\nairyard.step(7)\nprint(sorted(vars(airyard.step)))\n"
    )
    assert run(view, "-c", script).strip() == "[]"
    beats = tmp_path / "beats"
    beats.mkdir()
    run(view, "-c", script, AIRYARD_PROGRESS_DIR=str(beats), RANK="5")
    (path,) = beats.glob("beats-5-*[0-9]")
    found = decode(path.read_bytes(), time.monotonic())
    assert found is not None
    assert (found.rank, found.step) == (5, 7)


def test_an_airyard_of_the_user_goes_first(view: View, environment: Path, tmp_path: Path) -> None:
    own = site_packages(environment) / "airyard"
    own.mkdir()
    (own / "__init__.py").write_text("")
    (own / "checkpoint.py").write_text("def saved(step, path): return 'the user\\'s own'\n")
    ask = "from airyard import checkpoint; print(checkpoint.saved(1, 'x'))"
    if view.kind == "hardlinks":
        # This view was made before: install there, as a command does.
        target = site_packages(view.path) / "airyard"
        target.mkdir()
        for path in own.iterdir():
            (target / path.name).write_text(path.read_text())
    assert run(view, "-c", ask).strip() == "the user's own"
    elsewhere = tmp_path / "elsewhere" / "airyard"
    elsewhere.mkdir(parents=True)
    (elsewhere / "__init__.py").write_text("")
    (elsewhere / "checkpoint.py").write_text("def saved(step, path): return 'from PYTHONPATH'\n")
    assert run(view, "-c", ask, PYTHONPATH=str(elsewhere.parent)).strip() == "from PYTHONPATH"


def test_it_survives_another_pythonpath(view: View) -> None:
    ask = "from airyard import checkpoint; print(checkpoint.stop_requested())"
    assert run(view, "-c", ask, PYTHONPATH="/nowhere").strip() == "False"


def test_the_whole_package_has_it_too() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", WHAT_IT_LOADS], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["answers"] == [False, None, False]


def test_the_first_example_of_its_page_loses_nothing_when_it_is_stopped(view: View, tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "docs" / "checkpoints.md"
    script = page.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    folder, stop = tmp_path / "checkpoints", tmp_path / "stop.json"
    folder.mkdir()
    variables = {
        "AIRYARD_CHECKPOINT_DIR": str(folder),
        "AIRYARD_CHECKPOINT_ACK": str(tmp_path / "acknowledged.json"),
        "AIRYARD_STOP_FILE": str(stop),
        "NODE_RANK": "0",
    }
    stop.write_text("{}")
    for step in range(3):
        assert "SystemExit: 143" in run(view, "-c", EXPECTING_AN_EXIT, script, **variables)
        assert json.loads((tmp_path / "acknowledged.json").read_text())["step"] == step
    stop.unlink()
    assert run(view, "-c", script, **variables).strip() == f"the sum is {sum(range(1000))}"
