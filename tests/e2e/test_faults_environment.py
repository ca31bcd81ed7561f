"""Environments that cannot be built, are slow to build, or are written to by the command."""

from __future__ import annotations

import threading
import zipfile
from pathlib import Path

import pytest

from e2e.yard import Yard, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def slow_package(folder: Path) -> str:
    """Make a source package whose build sleeps; return it as a dependency."""
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "slowpoke"\nversion = "1"\n'
    )
    (folder / "backend.py").write_text(
        "import pathlib, subprocess\n"
        "def build_wheel(*_, **__):\n"
        "    pathlib.Path(__file__).with_name('building').touch()\n"
        "    subprocess.run(['sleep', '613'])\n"
        "build_sdist = prepare_metadata_for_build_wheel = build_wheel\n"
    )
    return f"slowpoke @ file://{folder}"


def wheel(folder: Path) -> Path:
    """Make a wheel by hand, so that no index is asked."""
    path = folder / "poison-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("poison.py", "WORD = 'bitter'\n")
        archive.writestr("poison-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: poison\nVersion: 1\n")
        archive.writestr(
            "poison-1.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(
            "poison-1.dist-info/RECORD",
            "poison.py,,\npoison-1.dist-info/METADATA,,\npoison-1.dist-info/WHEEL,,\npoison-1.dist-info/RECORD,,\n",
        )
    return path


def test_a_dependency_that_does_not_resolve(yard: Yard) -> None:
    path = yard.file(
        "echo never", environment={"dependencies": ["psutil==999.0"]}, max_retries=3, name="unresolved"
    )
    done = yard.call("run", path, "--watch")
    assert done.returncode == 9, done.stderr
    # uv's words come once, with the log; the last line only says what has failed.
    assert done.stderr.count("there is no version of psutil==999.0") == 1
    assert "never" not in done.stdout
    run = yard.data("get", "unresolved")
    run = run.get("run", run)
    assert (run["outcome"], run["cause"], len(run["attempts"])) == ("FAILED", "ENVIRONMENT", 1)
    log = yard.call("-o", "json", "logs", "unresolved")
    assert "there is no version of psutil==999.0" in log.stdout
    assert run["logs_complete"] is True


def test_cancel_while_the_environment_is_built(yard: Yard, tmp_path: Path) -> None:
    dependency = slow_package(tmp_path / "slowpoke")
    run_id = yard.submit("echo never", environment={"dependencies": [dependency]})
    wait_for((tmp_path / "slowpoke" / "building").exists, 60, what="the build")
    run = yard.get(run_id)
    assert run["status"] == "PREPARING"
    assert "environment" in [phase["name"] for phase in run["phases"]]
    yard.ok("cancel", str(run_id))
    run = yard.ended(run_id, timeout=30)
    assert (run["outcome"], run["exit_code"]) == ("CANCELLED", 6)
    assert not [line for line in yard.processes().values() if "uv " in line or "613" in line]
    # Nothing half-built is left to be taken for whole.
    again = yard.ended(yard.submit("echo fine"))
    assert again["outcome"] == "SUCCEEDED"


def test_pip_install_does_not_poison_the_shared_environment(yard: Yard, tmp_path: Path) -> None:
    install = (
        f"pip install --quiet --no-index --no-deps {wheel(tmp_path)} && "
        "python -c 'import poison; print(poison.WORD)' && pip uninstall --quiet --yes psutil"
    )
    look = "python -c 'import psutil; print(1)'; python -c 'import poison' 2>&1 | tail -n 1"
    first, beside = yard.submit(install), yard.submit(install)
    assert yard.ended(first)["outcome"] == yard.ended(beside)["outcome"] == "SUCCEEDED"
    assert "bitter" in yard.ok("logs", str(first))
    after = yard.ended(yard.submit(look))
    lines = yard.ok("logs", str(after["run_id"])).splitlines()
    assert lines == ["1", "ModuleNotFoundError: No module named 'poison'"]


def test_many_runs_with_one_new_environment_build_it_once(yard: Yard) -> None:
    dependency = {"environment": {"dependencies": ["iniconfig"]}}
    run_ids: list[int] = []
    threads = [
        threading.Thread(
            target=lambda: run_ids.append(yard.submit("python -c 'import iniconfig'", **dependency))
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    runs = [yard.ended(run_id, 90) for run_id in run_ids]
    assert {run["outcome"] for run in runs} == {"SUCCEEDED"}
    hits = [run["attempts"][0]["members"][0]["prepared"]["environment_hit"] for run in runs]
    assert sorted(hits) == [False, True]
