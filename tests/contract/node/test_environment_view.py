"""Views of a real environment: what an attempt does in its view never reaches the shared tree."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from airyard.node import environment_view
from airyard.node.environment import EnvironmentRequest, EnvironmentStore
from airyard.node.environment_view import View, prepare_view


@pytest.fixture
def shared(tmp_path: Path, wheels: Path) -> Path:
    inherited = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PIP_FIND_LINKS": str(wheels)}
    store = EnvironmentStore(tmp_path / "store", inherited=inherited)
    return store.ensure(
        EnvironmentRequest(
            base_version="5",
            python=Path(sys.executable),
            dependencies=("tool==1.0",),
            flags=("--no-index",),
        )
    ).path


@pytest.fixture(params=["overlay", "hardlinks"])
def view(request: pytest.FixtureRequest, shared: Path, tmp_path: Path) -> View:
    attempt = tmp_path / "attempt, 1"
    if request.param == "overlay":
        made = prepare_view(shared, attempt)
        if made.kind != "overlay":
            pytest.skip("this machine does not allow an overlay mount")
        return made
    attempt.mkdir()
    assert environment_view._link_tree(shared, attempt / "env") == "hardlinks"
    return View(kind="hardlinks", path=attempt / "env", layer=attempt / "env", before_exec=lambda: None)


def run(view: View, *command: str) -> str:
    done = subprocess.run(
        command,
        env={"PATH": f"{view.bin}:{os.environ['PATH']}", "HOME": os.environ["HOME"], **view.variables},
        preexec_fn=view.before_exec,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def contents(folder: Path) -> dict[str, str]:
    """Every file's hash; bytecode left out, which the interpreter may add anywhere."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_interpreter_and_scripts_are_those_of_the_view(view: View) -> None:
    assert run(view, "python", "-c", "import sys; print(sys.prefix)") == str(view.path)
    assert run(view, "python", "-c", "import tool; print(tool.__file__)").startswith(str(view.path))
    assert run(view, "tool-cli") == "tool 1.0"
    assert run(view, "sh", "-c", "command -v python; command -v pip").splitlines() == [
        f"{view.bin}/python",
        f"{view.bin}/pip",
    ]


def test_installing_in_the_view_leaves_the_shared_tree(view: View, shared: Path, wheels: Path) -> None:
    before = contents(shared)
    install = ["pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", "--find-links"]
    script = f"{' '.join(install)} {wheels} --force-reinstall tool==2.0 && tool-cli"
    assert run(view, "sh", "-c", script).splitlines()[-1] == "tool 2.0"
    assert run(view, "tool-cli") == "tool 2.0"
    assert (
        run(view, "sh", "-c", "pip uninstall --yes --quiet tool; command -v tool-cli || echo gone") == "gone"
    )
    assert contents(shared) == before


def test_edits_in_place_stay_in_an_overlay(view: View, shared: Path) -> None:
    if view.kind != "overlay":
        pytest.skip("hard links share files that are edited in place; documented")
    before = contents(shared)
    edit = "import tool; open(tool.__file__, 'a').write('VALUE = \"edited\"\\n')"
    run(view, "python", "-c", edit)
    assert run(view, "tool-cli") == "tool edited"
    assert contents(shared) == before


def test_two_attempts_do_not_see_each_other(shared: Path, tmp_path: Path) -> None:
    one, two = prepare_view(shared, tmp_path / "one"), prepare_view(shared, tmp_path / "two")
    run(one, "sh", "-c", f"rm -f {one.bin}/tool-cli; echo x > {one.path}/extra")
    assert run(two, "tool-cli") == "tool 1.0"
    assert run(two, "sh", "-c", f"ls {two.path}").find("extra") == -1


def test_overlay_is_seen_by_the_process_only(shared: Path, tmp_path: Path) -> None:
    view = prepare_view(shared, tmp_path / "attempt")
    if view.kind != "overlay":
        pytest.skip("this machine does not allow an overlay mount")
    run(view, "true")
    assert list(view.path.iterdir()) == []
    assert str(view.path) not in Path("/proc/self/mounts").read_text()


def test_another_file_system_gets_a_copy(shared: Path, tmp_path: Path) -> None:
    other = Path("/dev/shm")
    if not os.access(other, os.W_OK) or other.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system to write to")
    folder = other / f"airyard-test-{os.getpid()}"
    folder.mkdir()
    try:
        assert environment_view._link_tree(shared, folder / "env") == "copy"
        assert contents(folder / "env") == contents(shared)
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)
